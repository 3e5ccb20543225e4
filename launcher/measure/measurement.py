"""What was measured of a config's steps, as JSON: seconds, one value a round, so that the rounds tell the spread."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from launcher import atomic

# Files in the folder that a measurement works in.
REQUEST, ANSWER = "request.json", "measured.json"

Rounds = list[float]


@dataclass(frozen=True)
class StepTimes:
    """One kind of step: alone on a batch that is there, and where measured, loading alone and both together."""

    image_size: int
    acting: list[str]
    step_seconds: Rounds
    load_seconds: Rounds | None
    both_seconds: Rounds | None


@dataclass(frozen=True)
class EvaluationTimes:
    """Until the first batch, with and without starting the loader's workers; then a batch of `batches` on a rank."""

    first_start_seconds: float
    start_seconds: Rounds
    batch_seconds: Rounds
    batches: int


@dataclass(frozen=True)
class Measurement:
    """All that an estimate needs; `start_seconds` from the command to the first batch's request.

    `first_batch_seconds` includes starting the loader's workers, `epoch_start_seconds` does not; `new_size_seconds` is
    what the first step at a new side costs more. A save in the middle of a run takes `save_seconds` from it, the last
    one `last_save_seconds`.
    """

    device: str
    world_size: int
    workers: int
    cores: int
    start_seconds: float
    points: list[StepTimes]
    transfer_seconds: Rounds
    first_batch_seconds: float
    epoch_start_seconds: Rounds
    new_size_seconds: Rounds
    evaluation: EvaluationTimes
    save_seconds: Rounds
    last_save_seconds: float

    def write(self, path: Path) -> None:
        atomic.write_text(path, json.dumps(asdict(self), indent=1) + "\n")


def read_measurement(path: Path) -> Measurement:
    """What `Measurement.write` wrote."""
    values = json.loads(path.read_text())
    values["points"] = [StepTimes(**point) for point in values["points"]]
    values["evaluation"] = EvaluationTimes(**values["evaluation"])
    return Measurement(**values)
