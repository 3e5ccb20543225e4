from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

import launcher
from launcher.records.metrics import read_metrics
from tests.runs import SMALL, Equal, Train, processes_of, ranks_of, steps_done, wait_for

pytestmark = pytest.mark.system

DECIDED = ("step", "model", "weights", "optimizer", "algorithms", "evaluated_step", "best_top1")


def decided(train: Train, run: Path) -> dict[str, object]:
    """What the config decides: everything saved but the clocks."""
    state = train.state(run)
    return {key: state[key] for key in DECIDED}


def results(run: Path) -> list[tuple[object, ...]]:
    keys = ("kind", "step", "loss", "top1", "top5", "samples", "lr", "image_size")
    rows = read_metrics(run / "metrics.jsonl")
    return [tuple(row.get(key) for key in keys) for row in rows if row["kind"] in ("train", "eval", "epoch")]


def test_two_ranks_train_evaluate_and_leave_a_whole_record(train: Train) -> None:
    said = train(*SMALL, "run_name=whole").stdout
    # after 18 steps of mild's half-life of 100
    assert "note: the averaged weights, which are evaluated, end with 88% of the initial ones" in said
    run = train.folder / "runs" / "whole"
    kinds = [row["kind"] for row in read_metrics(run / "metrics.jsonl")]
    assert (kinds[0], kinds[-1]) == ("start", "end")
    assert (kinds.count("train"), kinds.count("eval"), kinds.count("epoch")) == (18, 3, 3)
    evaluations = [row for row in read_metrics(run / "metrics.jsonl") if row["kind"] == "eval"]
    assert [row["samples"] for row in evaluations] == [50, 50, 50]
    assert {path.name for path in run.iterdir()} >= {"config.yaml", "environment.json", "curve.png", "logs"}
    assert (run / "logs" / "rank-1.log").exists()
    environment = json.loads((run / "environment.json").read_text())
    assert environment["packages"]["torch"]
    assert environment["version"] == launcher.__version__
    assert not processes_of(run)


def test_the_seed_decides_the_weights(train: Train, equal: Equal) -> None:
    first, again, other = train.small("first"), train.small("again"), train.small("other", "seed=7")
    assert equal(decided(train, first), decided(train, again))
    assert results(first) == results(again)
    assert not equal(train.state(first)["model"], train.state(other)["model"])


def assert_parts_equal_the_whole(train: Train, equal: Equal, words: list[str], stop: signal.Signals) -> None:
    """Train at once, and stopped in the middle and resumed; compare all that the config decides."""
    whole = train.small("whole", *words)
    process = train.start(*SMALL, "run_name=parts", *words)
    parts = train.folder / "runs" / "parts"
    wait_for(lambda: steps_done(parts) >= 8)
    process.send_signal(stop)
    process.communicate(timeout=240)
    assert process.returncode == {signal.SIGTERM: 143, signal.SIGINT: 130}[stop]
    assert 8 <= train.state(parts)["step"] < 18  # type: ignore[operator]
    train("resume", str(parts))
    assert equal(decided(train, whole), decided(train, parts))
    assert results(whole) == results(parts)


def test_stopped_and_resumed_is_bit_equal_to_uninterrupted(train: Train, equal: Equal) -> None:
    assert_parts_equal_the_whole(train, equal, [], signal.SIGTERM)


def test_hot_in_bf16_on_ffcv_is_bit_equal_too(train: Train, equal: Equal) -> None:
    pytest.importorskip("ffcv", reason="FFCV is not installed here", exc_type=ImportError)
    data = [word for word in SMALL if word.startswith("dataset")]
    train("prepare", *data, "dataloader.workers=1")
    words = ["recipe=hot", "precision=bf16", "dataloader=ffcv", "algorithms.sam.interval=2"]
    words.append("algorithms.progressive_resizing.initial_scale=0.9")
    assert_parts_equal_the_whole(train, equal, words, signal.SIGINT)


def test_a_run_that_is_stopped_before_its_first_step_leaves_nothing(train: Train) -> None:
    run = train.folder / "runs" / "early"
    process = train.start(*SMALL, "run_name=early")
    wait_for(lambda: any((run / "logs").glob("rank-*.log")))
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (130, "")
    assert "stopped; before the first step: nothing is kept" in output
    assert not run.exists()


def test_a_killed_rank_ends_all_and_is_named_first(train: Train) -> None:
    process = train.start(*SMALL, "run_name=broken", "epochs=200", "launch.max_restarts=0")
    run = train.folder / "runs" / "broken"
    wait_for(lambda: steps_done(run) >= 2)
    ranks_of(run)[1].kill()
    start = time.monotonic()
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 1
    assert time.monotonic() - start < 20
    assert errors.startswith("error: rank 1 failed: killed by SIGKILL")
    assert not processes_of(run)


def test_a_user_error_in_a_rank_is_one_line(train: Train) -> None:
    pictures = train.folder / "pictures"
    for split in ("train", "val"):
        for name in ("a", "b"):
            (pictures / split / name).mkdir(parents=True)
            for number in range(8):
                (pictures / split / name / f"{number}.jpg").write_bytes(b"no picture")
    words = ["launch=cpu", "dataset=image_folder", f"dataset.path={pictures}", "batch_size=4", "schedule.warmup=0ba"]
    done = train(*words, "dataloader.workers=1", code=2)
    assert "0.jpg" in done.stderr or ".jpg" in done.stderr
    assert "cannot be read" in done.stderr


def test_a_run_folder_in_use_is_refused(train: Train) -> None:
    process = train.start(*SMALL, "run_name=busy", "epochs=200")
    run = train.folder / "runs" / "busy"
    try:
        wait_for(lambda: steps_done(run) >= 1)
        assert "in use by process" in train("resume", str(run), code=2).stderr
        assert "choose another run_name" in train(*SMALL, "run_name=busy", code=2).stderr
    finally:
        os.kill(process.pid, signal.SIGINT)
        time.sleep(0.2)
        os.kill(process.pid, signal.SIGINT)
        process.communicate(timeout=240)
    assert not processes_of(run)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["epoch=240"], "did you mean epochs?"),
        (["recipe=warm"], "no such recipe"),
        (["recipe=mild"], "dataset.path=/data/imagenet"),
        (["dataset=image_folder", "dataset.path=/nowhere"], "is no folder"),
        (["launch=cpu", "launch.nproc=3", "batch_size=64"], "does not divide among 3 processes"),
        (["recipe=mild", "dataset=shapes", "epochs=3"], "the warmup lasts as long as the whole run"),
        (["launch.device=cuda"], "no GPU is visible"),
    ],
)
def test_a_mistake_is_one_line_and_writes_nothing(train: Train, words: list[str], expected: str) -> None:
    done = train(*words, code=2)
    assert done.stderr.startswith("error: ")
    assert expected in done.stderr
    assert not (train.folder / "runs").exists()


def test_eval_and_export_of_a_finished_run(train: Train) -> None:
    import torch
    import torchvision
    from safetensors.torch import load_file

    run = train.small("finished", "algorithms.blurpool=off")
    last = [row for row in read_metrics(run / "metrics.jsonl") if row["kind"] == "eval"][-1]
    again = json.loads(train("eval", str(run), "--json").stdout)
    assert (again["step"], again["samples"]) == (18, 50)
    assert again["top1"] == pytest.approx(last["top1"])
    assert again["loss"] == pytest.approx(last["loss"], rel=1e-5)

    path = Path(train("export", str(run)).stdout.strip())
    model = torchvision.models.resnet18(num_classes=10)
    model.load_state_dict(load_file(train.folder / path))
    card = json.loads((train.folder / path).with_name("model_card.json").read_text())
    assert card["surgery"] == {}
    assert card["top1"] == last["top1"]
    assert torch.isfinite(model.eval()(torch.zeros(1, 3, 32, 32))).all()


def test_diff_of_runs_and_recipes(train: Train) -> None:
    first, second = train.small("a"), train.small("b", "seed=7")
    shown = train("diff", str(first), str(second)).stdout
    assert "seed" in shown
    assert "optimizer.lr" not in shown
    assert "algorithms.sam.rho" in train("diff", "mild", "medium").stdout
