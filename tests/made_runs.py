"""Run folders like those of real runs, with chosen numbers."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest
import yaml

from launcher.config.schema import RunConfig
from launcher.loggers import build_sinks
from launcher.records.metrics import EndRecord, EpochRecord, EvalRecord, Record, StartRecord, TrainRecord
from launcher.records.run_folder import RunFolder
from launcher.records.sinks import MetricsWriter, Recorder


def machine(name: str, price: float | None = None, gpu: str | None = None, gpus: int | None = None) -> dict[str, Any]:
    return {"name": name, "gpu": gpu, "gpus": gpus, "price_per_hour": price}


CONFIG: dict[str, Any] = {
    **{"recipe": "mild", "epochs": 2, "seed": 0, "batch_size": 64, "model": {"name": "resnet18"}},
    **{"dataset": {"name": "shapes"}, "schedule": {"name": "cosine", "dilate": 1.0}},
    **{"hardware": machine("this_machine"), "algorithms": {"ema": {"half_life": "100ba"}}},
}
STEPS = 10


def evaluation(step: int, top1: float = 0.5) -> EvalRecord:
    return EvalRecord(step, 1e9, step / 10, {"top1": top1, "top5": 0.9}, float("nan"), 50, 2.0, step * 0.1)


def end(step: int, *, finished: bool = True) -> EndRecord:
    return EndRecord(step, 1e9, finished, 30.0, 4.0, 1.0)


def append(metrics: Path, *records: Record) -> None:
    writer = MetricsWriter(metrics)
    for record in records:
        writer.write(record)
    writer.close()


def log(folder: RunFolder, config: RunConfig, *records: Record) -> None:
    """Write records to all sinks of a run of the config, and close them."""
    recorder = Recorder(build_sinks(folder, config))
    for record in records:
        recorder.record(record)
    recorder.close()


class MakeRun(Protocol):
    def __call__(
        self,
        name: str,
        top1: Sequence[float] = (0.5, 0.6),
        seconds: Sequence[float] = (70.0, 60.0),
        *,
        finished: bool | None = True,
        **changes: Any,
    ) -> Path: ...


def records(top1: Sequence[float], seconds: Sequence[float], finished: bool | None) -> list[Record]:
    """Return records of one epoch per value: its final accuracy and training time, and 5 s of evaluation."""
    rows: list[Record] = [StartRecord(0, 1000.0, 1, STEPS * len(top1), len(top1), "cpu", "float32", "top1", "higher")]
    clock, wall = 0.0, 1000.0
    for number, (accuracy, took) in enumerate(zip(top1, seconds, strict=True), 1):
        clock, wall, step = clock + took, wall + took + 5, STEPS * number
        rows.append(EvalRecord(step, wall, number, {"top1": accuracy, "top5": 1.0}, 1.0, 100, 5.0, clock))
        rows.append(EpochRecord(step, wall, number, 1.0, took, 10.0, 0.0, clock))
    if finished is not None:
        rows.append(EndRecord(STEPS * len(top1), wall, finished, clock, 5.0 * len(top1), 0.0))
    return rows


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    def make(
        name: str,
        top1: Sequence[float] = (0.5, 0.6),
        seconds: Sequence[float] = (70.0, 60.0),
        *,
        finished: bool | None = True,
        **changes: Any,
    ) -> Path:
        folder = tmp_path / name
        (folder / "logs").mkdir(parents=True)
        (folder / "checkpoints").mkdir()
        (folder / "config.yaml").write_text(yaml.safe_dump({**CONFIG, "epochs": len(top1), **changes}))
        (folder / "environment.json").write_text(
            json.dumps({"command": ["/bin/train", "recipe=mild", f"run_name={name}"]})
        )
        append(folder / "metrics.jsonl", *records(top1, seconds, finished))
        return folder

    return make


def training(step: int, loss: float = 1.0) -> TrainRecord:
    return TrainRecord(step, 1e9, step / 10, loss, 0.1, 32, 100.0, 0.1, 0.01, None, step * 0.1)


def written(folder: RunFolder, *records: Record) -> RunFolder:
    append(folder.metrics, *records)
    return folder
