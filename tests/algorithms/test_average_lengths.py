"""Moving averages of any length from snapshots, against Karras et al. 2024 and averages tracked directly."""

import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from torch import nn

from launcher.data.batch import Moment
from launcher.power_averages import LENGTHS, coefficients, exponent, rate
from launcher.records.run_folder import SNAPSHOT, RunFolder, checkpoint_files, checkpoint_name
from launcher.training import checkpoint
from launcher.training.mirror import Mirror
from launcher.weights.lengths import of_length
from tests.commands import refused
from tests.runs import SMALL, Here, Train, draw_nothing, killed_and_resumed, same
from tests.saved_runs import finished
from tests.trainers import VIT

STEPS, INTERVAL = 400, 2
# Of a run on two ranks whose checkpoints are kept.
SAVED = ["recipe=null", "algorithms=[ema]", "launch.nproc=2", "checkpoint.every=3ba", "checkpoint.keep=9"]
KEPT = ["algorithms.ema.snapshots=4ba", "algorithms.ema.update_interval=1ba"]


def profile(end: float, length: float) -> Callable[[float], float]:
    """Return the density of the weights of an average: (g + 1) s^g / t^(g + 1) until its end t, equation 4."""
    power = exponent(length)
    return lambda step: (power + 1) * (step / end) ** power / end if step <= end else 0.0


def total(function: Callable[[float], float], end: float) -> float:
    return float(quad(function, 0, end, limit=500, epsabs=1e-12)[0])


@pytest.mark.parametrize("length", [0.01, 0.05, 0.1, 0.2, 0.25])
def test_the_length_is_the_standard_deviation_of_the_profile(length: float) -> None:
    of_step = profile(1, length)
    mean = total(lambda step: step * of_step(step), 1)
    assert total(of_step, 1) == pytest.approx(1)
    assert total(lambda step: (step - mean) ** 2 * of_step(step), 1) ** 0.5 == pytest.approx(length, rel=1e-6)


def test_the_exponents_are_those_of_the_paper() -> None:
    """Section 3.2: lengths 0.05 and 0.10 have the exponents 16.97 and 6.94."""
    assert [round(exponent(length), 2) for length in LENGTHS] == [16.97, 6.94]


def test_updates_give_each_step_the_weight_of_the_profile() -> None:
    weights = np.zeros(STEPS + 1)
    for step in range(1, STEPS + 1):
        weights *= 1 - rate(0.1, step, 1)
        weights[step] += rate(0.1, step, 1)
    of_step = profile(STEPS, 0.1)
    np.testing.assert_allclose(weights[200:], [of_step(step - 0.5) for step in range(200, STEPS + 1)], rtol=1e-3)


@pytest.mark.parametrize("length", [0.02, 0.07, 0.15, 0.25])
def test_the_factors_are_the_least_squares_of_the_profiles(length: float) -> None:
    """Numpy fits the profiles on a fine grid; the factors of the paper have no sum, so both are scaled to 1."""
    ends = [step for step in range(50, 401, 50) for _ in LENGTHS]
    lengths = [*LENGTHS] * 8
    grid = np.arange(0.005, 400, 0.01)
    columns = [np.vectorize(profile(*pair))(grid) for pair in zip(ends, lengths, strict=True)]
    wanted = np.vectorize(profile(400, length))(grid)
    fitted, *_ = np.linalg.lstsq(np.stack(columns, 1), wanted, rcond=None)
    factors, error = coefficients(ends, lengths, 400, length)
    np.testing.assert_allclose(factors, fitted / fitted.sum(), rtol=0.02, atol=0.01)
    residual = np.stack(columns, 1) @ factors - wanted
    assert error == pytest.approx(np.linalg.norm(residual) / np.linalg.norm(wanted), rel=0.02)


def walk(model: nn.Module, step: int) -> None:
    """Move the weights towards a value, with noise, as training does."""
    with torch.no_grad():
        model.weight.add_(0.02 * (1 - model.weight) + 0.01 * torch.randn_like(model.weight))  # type: ignore[operator]
        model.running_var.copy_(model.weight.square() + 0.1)  # type: ignore[operator]
        model.num_batches_tracked.fill_(step)  # type: ignore[operator]


def saved_walk(bound: Callable[..., Any], folder: RunFolder, lengths: Sequence[float]) -> tuple[Any, dict[float, Any]]:
    """Train a layer, save its snapshots, and return its newest state with averages of lengths tracked directly."""
    folder.checkpoints.mkdir(parents=True)
    model = nn.BatchNorm1d(50)
    algorithm = bound("ema", "epochs=40", update_interval=f"{INTERVAL}ba", snapshots="20ba")
    algorithm.change_model(model)
    names, tracked = ("weight", "running_var"), dict[float, dict[str, torch.Tensor]]()
    for step in range(STEPS):
        walk(model, step)
        algorithm.after_step(model, Moment(0, 0, step, STEPS), torch.tensor(True))
        weights = {name: model.state_dict()[name].double().clone() for name in names}
        for length in lengths if (step + 1) % INTERVAL == 0 else ():
            average = tracked.setdefault(length, weights)
            part = 1 - (1 - INTERVAL / (step + 1)) ** (exponent(length) + 1)
            tracked[length] = {name: average[name].lerp(weights[name], part) for name in names}
        if (step + 1) % 20 == 0:
            checkpoint.save(algorithm.snapshot(), folder.checkpoints / checkpoint_name(step + 1, SNAPSHOT))
    return algorithm.snapshot(), tracked


def test_the_average_of_a_length_is_next_to_one_tracked_directly(bound: Callable[..., Any], tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    newest, tracked = saved_walk(bound, folder, [0.03, 0.05, 0.07, 0.1, 0.15, 0.2])
    state = {"step": STEPS, "weights": {}, "snapshot": newest}
    for length, average in tracked.items():
        result = of_length(state, folder, length)
        for name in average:
            error, largest = (
                (one[name] - average[name]).square().mean().sqrt().item() for one in (result["weights"], tracked[0.2])
            )
            # note: the shortest and the longest one are 0.03 apart
            assert error < (1e-6 if length in LENGTHS else 0.01 * max(largest, 0.03)), (length, name)
        assert result["average"]["error"] < 0.03
        assert result["weights"]["num_batches_tracked"] == STEPS - 1
    assert {one.dtype for one in result["weights"].values()} == {torch.float32, torch.int64}


def test_variances_stay_positive(bound: Callable[..., Any], tmp_path: Path) -> None:
    """Some factors are negative, and so would be variances that are large only there."""
    folder = RunFolder(tmp_path)
    newest, _ = saved_walk(bound, folder, [])
    files = dict(checkpoint_files(folder.checkpoints, SNAPSHOT))
    factors, _ = coefficients([step for step in files for _ in LENGTHS], [*LENGTHS] * len(files), STEPS, 0.02)
    of_files = np.where(factors < 0, 1e3, 1e-3).reshape(-1, len(LENGTHS)).tolist()
    for (step, path), variances in zip(files.items(), of_files, strict=True):
        averages = [{"running_var": torch.tensor([variance])} for variance in variances]
        checkpoint.save({**newest, "step": step, "averages": averages}, path)
    state = {"step": STEPS, "snapshot": checkpoint.load(files[STEPS])}
    weights = of_length(state, folder, 0.02)["weights"]
    assert weights["running_var"] == pytest.approx(5e-4)


def test_the_state_between_steps_has_the_averages(bound: Callable[..., Any]) -> None:
    def built() -> Any:
        algorithm = bound("ema", update_interval="2ba", snapshots="10ba")
        algorithm.change_model(model := nn.BatchNorm1d(3))
        return algorithm, model

    (algorithm, model), (again, _) = built(), built()
    assert algorithm.snapshot() is None
    for step in range(9):
        walk(model, step)
        algorithm.after_step(model, Moment(0, 0, step, 100), torch.tensor(True))
        if step == 4:
            again.load_state_dict(algorithm.state_dict())
        elif step > 4:
            again.after_step(model, Moment(0, 0, step, 100), torch.tensor(True))
    before = copy.deepcopy(algorithm.snapshot())
    assert same(again.state_dict(), algorithm.state_dict())
    algorithm.after_step(model, Moment(0, 0, 9, 100), torch.tensor(False))
    assert before["step"] == 8
    assert same(algorithm.snapshot(), before), "a dropped step changes neither an average nor its step"


def snapshots(run: Path) -> dict[int, dict[str, Any]]:
    return {step: checkpoint.load(path) for step, path in checkpoint_files(run / "checkpoints", SNAPSHOT)}


@pytest.mark.system
def test_a_killed_run_resumes_to_the_same_snapshots_also_on_another_number_of_ranks(train: Train) -> None:
    train = replace(train, before=(draw_nothing,))
    whole, run = killed_and_resumed(train, [*SMALL, *VIT, *KEPT, *SAVED], 10)
    expected = snapshots(whole)
    assert [*expected] == [4, 8, 12, 16]
    assert same(expected, snapshots(run))
    assert same(train.decided(whole), train.decided(run))
    words = ("--ema-length", "0.05,0.2")
    assert train("eval", str(run), *words).stdout == train("eval", str(whole), *words).stdout
    for step, path in checkpoint_files(run / "checkpoints"):
        if step > 9:
            path.unlink()
    train("resume", str(run), "launch.nproc=1")
    again = snapshots(run)
    assert same([again[4], again[8]], [expected[4], expected[8]])
    torch.testing.assert_close(again, expected, rtol=1e-3, atol=1e-4)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Here:
    here = Here(tmp_path_factory.mktemp("lengths"))
    here(*SMALL, *KEPT, "run_name=a", "recipe=null", "algorithms=[ema]", "loss=cross_entropy", "optimizer.lr=0.05")
    return here


@pytest.mark.slow
@pytest.mark.usefixtures("tiny_networks", "forked_checks")
def test_an_evaluation_and_an_export_have_the_average_of_a_length(trained: Here) -> None:
    """The average of a length that the run keeps is the run's own."""
    folder = RunFolder(trained.folder / "runs" / "a")
    (row,) = json.loads(trained("eval", "runs/a", "--ema-length", "0.05", "--json").stdout)["lengths"]
    assert (row["ema_length"], row["step"], row["samples"]) == (0.05, 18, 50)
    done = trained("export", "runs/a", "--ema-length", "0.05", "-o", "out")
    card = json.loads((trained.folder / "out" / "model_card.json").read_text())
    assert card["average"] == {"length": 0.05, "error": pytest.approx(0, abs=1e-6)}
    assert card["checked"]["value"] == row["metrics"]["top1"]
    assert card["top1"] is None, "the run's records are of other weights"
    assert "note" not in done.stderr
    state = checkpoint.newest_valid(folder.checkpoints)
    assert state is not None
    weights = of_length(state, folder, 0.05)["weights"]
    for name, tensor in state["snapshot"]["averages"][0].items():
        torch.testing.assert_close(weights[name], tensor)


def test_a_length_far_from_those_kept_is_noted(trained: Here) -> None:
    done = trained("eval", "runs/a", "--ema-length", "0.01,0.05")
    assert "note: the average of length 0.01 has an error of 5" in done.stderr
    assert "length 0.05 has" not in done.stderr
    assert [line.split(",")[0] for line in done.stdout.splitlines()[:2]] == ["length 0.01", "length 0.05"]


def test_the_newest_snapshots_are_not_those_of_the_best_checkpoint(trained: Here) -> None:
    """Later snapshots are of another step's future."""
    folder = RunFolder(trained.folder / "runs" / "a")
    state = dict(checkpoint.newest_valid(folder.checkpoints) or {})
    earlier = snapshots(folder.path)[8]
    first = of_length({**state, "step": 8, "snapshot": earlier}, folder, 0.07)["weights"]
    files = dict(checkpoint_files(folder.checkpoints, SNAPSHOT))
    moved = [files[step].replace(files[step].with_suffix(".away")) for step in (12, 16)]
    again = of_length({**state, "step": 8, "snapshot": earlier}, folder, 0.07)["weights"]
    for path in moved:
        path.replace(path.with_suffix(".pt"))
    assert same(first, again)


def test_wrong_words_are_refused(trained: Here, tmp_path: Path, tiny_networks: None) -> None:
    run = str(trained.folder / "runs" / "a")
    for text in ("0.005", "0.3", "x", "nan", "0.05,"):
        assert f"--ema-length={text}: must be fractions of the run between 0.01 and 0.25" in refused(
            "eval", run, "--ema-length", text
        )
    assert "--by-class is for one network" in refused("eval", run, "--ema-length", "0.05", "--by-class")
    assert "--csv is for one network" in refused("eval", run, "--ema-length", "0.05", "--csv", "a.csv")
    assert "exports one length" in refused("export", run, "--ema-length", "0.05,0.1")
    without = str(finished(tmp_path).path)
    message = "keeps no snapshots of averages; start a new run with algorithms.ema.snapshots=0.05dur"
    assert message in refused("eval", without, "--ema-length", "0.05")
    assert message in refused("export", without, "--ema-length", "0.05")
    words = [
        "algorithms=[ema]",
        "algorithms.ema.snapshots=5ba",
        "algorithms.ema.update_interval=20ba",
        "dataset=shapes",
    ]
    assert "algorithms.ema.snapshots=5ba" in refused("plan", *words)


def test_a_mirror_has_the_snapshots(trained: Here, tmp_path: Path) -> None:
    folder = RunFolder(trained.folder / "runs" / "a")
    copy = Mirror(f"file://{tmp_path}/copy")
    copy.push(folder)
    assert snapshots(tmp_path / "copy").keys() == snapshots(folder.path).keys() == {4, 8, 12, 16}
