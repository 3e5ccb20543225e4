"""What ranks are asked and what they answer: seconds, one value a round, so that the rounds tell the spread."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

# Files in the folder that a measurement works in.
REQUEST, ANSWER = "request.json", "answer.json"

Rounds = list[float]


@dataclass(frozen=True)
class MeasureRequest:
    """Seconds for each thing to measure; `asked_at` is when the command was given, in seconds since 1970."""

    seconds: float
    asked_at: float


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
    what the first step at a new size costs more. A save in the middle of a run takes `save_seconds` from it, the last
    one `last_save_seconds`.
    """

    device: str
    world_size: int
    workers: int
    cores: int
    start_seconds: float
    steps: list[StepTimes]
    transfer_seconds: Rounds
    first_batch_seconds: float
    epoch_start_seconds: Rounds
    new_size_seconds: Rounds
    evaluation: EvaluationTimes
    save_seconds: Rounds
    last_save_seconds: float

    @property
    def rounds(self) -> int:
        return len(self.steps[0].step_seconds)

    @property
    def mean_transfer(self) -> float:
        """Seconds to copy a batch to the device."""
        return statistics.fmean(self.transfer_seconds)
