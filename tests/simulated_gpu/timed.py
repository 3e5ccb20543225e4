"""A run whose epochs are fixed by measured steps, `stop.minutes`, is killed at several points and resumed."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from launcher.launch.devices import Devices
from launcher.launch.prepare import Prepared
from launcher.measure import launch
from launcher.measure.estimate import Measurement, estimate
from launcher.measure.probes import StepProfiler
from launcher.plan.plan import plan_for
from launcher.rank.group import Ranks, gather
from launcher.training import trainer
from launcher.training.nonfinite import NonFiniteGuard
from launcher.training.trainer import Trainer
from tests.simulated_gpu import runs
from tests.simulated_gpu.cases import Case
from tests.simulated_gpu.torch_sim import may_wait

EPOCHS = ("epochs=6", "eval_every=1ep")
MINUTES = "stop.minutes=30"


class Killed(BaseException):
    """Ends a rank as SIGKILL does."""


def measured(case: Case, ranks: Ranks, folder: Path) -> tuple[Measurement, float]:
    """Measure the steps of a case; return the part of them that replayed graphs, too."""
    run = trainer.build_trainer(runs.config_of(case, folder), ranks)
    result = may_wait(StepProfiler(run, 0.1, time.monotonic()).measure)(folder)
    graphs = run.train_step.captured
    part = graphs.replays / graphs.count if graphs else 0.0
    if graphs:
        graphs.forget()
    run.loaders.close()
    return result, part


def fitting(case: Case, ranks: Ranks, result: Measurement, folder: Path) -> float:
    """Return the `schedule.dilate` that fits in 3.6 of 6 parts of the measured time, as the launcher computes it."""
    config = runs.config_of(case, folder)
    plan = plan_for(config, ranks.world_size)
    whole = estimate(plan, result)
    minutes = sum(span.high for span in (whole.training, whole.evaluation, whole.saving)) / 100
    plan = replace(plan, config=replace(config, stop=replace(config.stop, minutes=minutes)))
    with patch.object(launch, "measure_steps", lambda *_: result):
        return launch.config_in_time(Prepared(plan, Devices("cuda", ranks.world_size))).schedule.dilate


@contextmanager
def kills(owner: type, name: str, call: int, *, inside: bool = False) -> Iterator[None]:
    """Kill the ranks at a call of a method; inside: at its second question whether it must stop."""
    calls, questions, method = 0, 0, getattr(owner, name)

    def stops(should_stop: Callable[[], bool]) -> bool:
        nonlocal questions
        questions += 1
        if questions == 2:
            raise Killed
        return should_stop()

    def killed(self: Any, *arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls < call:
            return method(self, *arguments, **named)
        if not inside:
            raise Killed
        should_stop = named["should_stop"]
        return method(self, should_stop=lambda: stops(should_stop), loader=named["loader"])

    with patch.object(owner, name, killed):
        yield


def differences(words: tuple[str, ...], ranks: Ranks, folder: Path) -> dict[str, Any]:
    """Return the fixed lengths of all ranks, the part of replayed steps, and what differs from a whole run."""
    case = Case((*words, *EPOCHS), captured=True, ranks=ranks.world_size)
    result, replayed = measured(case, ranks, folder)
    # note: the launcher reads the measurement of rank 0
    dilate = gather(fitting(case, ranks, result, folder))[0]
    fixed = replace(case, words=(*case.words, f"schedule.dilate={dilate}"))
    plain, timed = replace(fixed, captured=False), replace(fixed, words=(*fixed.words, MINUTES))
    whole = runs.train_case(plain, ranks, folder / "whole", folder, "eager", None)
    for kill in (
        kills(NonFiniteGuard, "step", 1),
        kills(Trainer, "evaluate", 1, inside=True),
        kills(NonFiniteGuard, "step", 2),
        kills(Trainer, "evaluate", 1),
    ):
        (folder / "killed").mkdir(exist_ok=True)
        with suppress(Killed), kill:
            runs.start(timed, ranks, runs.RunFolder(folder / "killed"), folder, "lazy", None)
            raise AssertionError("the run has ended before")
    resumed = runs.train_case(timed, ranks, folder / "killed", folder, "lazy", None)
    epochs = plan_for(runs.config_of(timed, folder), ranks.world_size).epochs
    # note: a resume gives all ranks the statistics of rank 0
    wrong = runs.differences(whole, resumed) if ranks.is_first else []
    return {"epochs": gather(epochs), "replayed": replayed, "captures": resumed.captures, "problems": wrong}
