"""Measurements on GPUs correct predictions of runs with the same launches."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from launcher.config.compose import compose
from launcher.config.gpus import efficiencies, gpus
from launcher.config.resolved import as_mapping, write
from launcher.measure.estimate import StepTimes
from launcher.plan.plan import Plan, plan_for
from launcher.prediction.prediction import Predictor
from launcher.prediction.profiles import correction, gpu_named, read_profiles
from launcher.prediction.rates import Rates
from launcher.records.metrics import Record, StartRecord, TrainRecord
from launcher.records.run_folder import RunFolder
from launcher.records.summary import save_estimate
from tests.counted_steps import made_up
from tests.made_runs import append, end, evaluation

H100, A100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB"


@pytest.fixture(autouse=True)
def _by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.prediction.prediction.counted_steps", made_up)
    monkeypatch.setattr("launcher.prediction.profiles.cached_steps", lambda _: made_up(plan(Path())))


EAGER = ("compile=off", "cuda_graphs=off")


def plan(runs: Path, *words: str) -> Plan:
    return plan_for(compose(["recipe=mild", "dataset=imagenet", f"runs={runs}", *EAGER, *words]).config, 8)


def keep(run: Plan, device: str, times: float) -> Path:
    """Write an estimate, as `train estimate` does, in which every step takes `factor` times the predicted time."""
    rates = Rates(gpus()[gpu_named(device) or "H100 80GB"], run.world_size)
    steps = []
    for step in made_up(run):
        seconds = times * rates.parts(step, run.config).seconds
        steps.append(asdict(StepTimes(step.view, list(step.acting), [seconds, seconds], None, None)))
    machine = {"device": device, "processes": run.world_size}
    return save_estimate(run.config, {"config": as_mapping(run.config), **machine, "steps": steps, "wall": {}})


@pytest.mark.parametrize(
    ("device", "gpu"),
    [
        (H100, "H100 80GB"),
        ("NVIDIA A100 80GB PCIe", None),
        ("NVIDIA H100 NVL", None),
        ("NVIDIA A10", None),
        ("NVIDIA L4", "L4 24GB"),
        ("NVIDIA GH200 480GB", "GH200 96GB"),
        ("NVIDIA GeForce RTX 3090", "RTX 3090 24GB"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("Quadro RTX 6000", None),
        ("cpu", None),
    ],
)
def test_a_device_is_one_of_the_known_gpus_or_none(device: str, gpu: str | None) -> None:
    assert gpu_named(device) == gpu


def test_an_estimate_carries_over_to_another_machine(tmp_path: Path) -> None:
    run = plan(tmp_path)
    keep(run, H100, 1.3)
    profiles, notes = read_profiles(tmp_path)
    assert not notes
    corrected = correction(run, "H200 141GB", profiles, efficiencies())
    assert corrected.factor == pytest.approx(1.3)
    assert "these steps on 8 x H100 80GB (an estimate)" in corrected.made_from


def test_other_steps_count_less_and_several_are_averaged(tmp_path: Path) -> None:
    run = plan(tmp_path)
    keep(run, H100, 1.3)
    keep(plan(tmp_path, "seed=1"), A100, 1.2)
    profiles, _ = read_profiles(tmp_path)
    other = plan(tmp_path, "algorithms.label_smoothing.smoothing=0.05")
    assert correction(run, "H100 80GB", profiles, efficiencies()).factor == pytest.approx((1.3 * 1.2) ** (1 / 2))
    assert correction(other, "A100 40GB", profiles, efficiencies()).factor == pytest.approx(1.2 ** (1 / 2))
    assert correction(other, "V100 16GB", profiles, efficiencies()).factor == pytest.approx((1.3 * 1.2) ** (1 / 3))
    compiled = plan(tmp_path, "compile=on")
    assert correction(compiled, "H100 80GB", profiles, efficiencies()).factor == 1.0


def test_an_estimate_on_a_cpu_corrects_nothing(tmp_path: Path) -> None:
    run = plan(tmp_path)
    keep(run, "AMD EPYC 7763", 50.0)
    assert read_profiles(tmp_path) == ([], [])
    assert "nothing was measured" in correction(run, "H100 80GB", [], efficiencies()).made_from


def test_a_damaged_estimate_is_skipped_with_a_note(tmp_path: Path) -> None:
    path = keep(plan(tmp_path), H100, 1.3)
    path.write_text(path.read_text()[:-100])
    assert read_profiles(tmp_path) == (
        [], [f"{path} cannot be read and is skipped; remove it, and run `train estimate` again"]
    )  # fmt: skip


@pytest.mark.parametrize("device", [H100, "AMD EPYC 7763"])
def test_a_finished_run_adds_a_profile(tmp_path: Path, device: str) -> None:
    run = plan(tmp_path)
    folder = RunFolder(tmp_path / "one")
    folder.path.mkdir()
    write(run.config, folder.config)
    predicted = {
        phase.view: phase
        for phase in Predictor(replace_loader(run)).on(run.config.hardware, gpus()["H100 80GB"]).phases
    }
    rows: list[Record] = [StartRecord(0, 0.0, 8, 1, 36, device, "bf16", "top1", "higher")]
    for size in (88, 176):
        times = (9.0, 1.1 * predicted[size].seconds, 1.1 * predicted[size].seconds)
        rows += [TrainRecord(1, 0.0, 0.0, 1.0, 1.0, size, 1.0, time + 0.5, 0.5, None, 0.0) for time in times]
    append(folder.metrics, *rows, evaluation(1), end(1))
    profiles, notes = read_profiles(tmp_path)
    assert not notes
    if device != H100:
        assert not profiles
        return
    corrected = correction(run, "H200 141GB", profiles, efficiencies())
    assert corrected.factor == pytest.approx(1.1)
    assert "run one" in corrected.made_from


def replace_loader(run: Plan) -> Plan:
    """Return the plan with synthetic images."""
    return plan_for(replace(run.config, dataloader=compose(["dataloader=synthetic"]).config.dataloader), run.world_size)
