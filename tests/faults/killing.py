"""Kill and resume one run over and over: at random moments, and in the middle of saves."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen

from tests.forked import Command
from tests.runs import Train, processes_of, ranks_of, steps_done, wait_for


@dataclass
class Kills:
    """The finished steps at each kill, and how many kills of the launcher have cut a save short."""

    steps: list[int] = field(default_factory=list)
    in_a_save: int = 0


def kill_over_and_over(train: Train, words: Sequence[str], times: int, moments: random.Random) -> tuple[Path, Kills]:
    """Start a run and kill it so many times, fewer if it ends before; it is left killed.

    Every third kill waits for a save; the others fall some steps on, or into a start. SIGKILL goes to the launcher,
    which none of its processes may outlive and after which the run is resumed, or to a rank, which the launcher makes
    good itself; of the saves, to each in turn.
    """
    run = train.folder / "runs" / "killed"
    command, kills = [*words, "run_name=killed", f"launch.max_restarts={times}"], Kills()
    process: Command | Popen[str] | None = None
    last_kill = 0.0
    for number in range(times):
        process = process or train.start(*command)
        more = steps_done(run) + moments.randrange(3)
        if number % 3 == 0:
            _wait(process, lambda last_kill=last_kill: _is_saving(run, last_kill))
        elif moments.random() < 0.75:
            _wait(process, lambda more=more: steps_done(run) > more)
            time.sleep(moments.uniform(0, 0.1))
        else:
            time.sleep(moments.uniform(0.5, 5))
        ranks, to_a_rank = list(ranks_of(run).values()), number % 6 == 3 or (number % 3 and moments.random() < 0.6)
        if ranks and to_a_rank:
            moments.choice(ranks).kill()
        elif _end(process, run) == 0:
            break
        else:
            command, process = ["resume", str(run)], None
            kills.in_a_save += _is_saving(run, last_kill)
        kills.steps.append(steps_done(run))
        last_kill = time.time()
    if process is not None:
        _end(process, run)
    return run, kills


def _end(process: Command | Popen[str], run: Path) -> int | None:
    """Kill all of it; returns its exit code if it had ended by itself."""
    process.kill()
    process.communicate()
    wait_for(lambda: not processes_of(run))
    return process.returncode


def _is_saving(run: Path, last_kill: float) -> bool:
    """Whether the temporary file of a save is there, none that the kill before has left."""
    for path in (run / "checkpoints").glob(".step-*.tmp"):
        with suppress(FileNotFoundError):
            # note: a peer of a killed rank may write for a moment more, and no start takes less than a second
            if path.stat().st_mtime > last_kill + 1:
                return True
    return False


def _wait(process: Command | Popen[str], condition: Callable[[], bool]) -> None:
    """Until the condition holds, or the process has ended by itself."""
    end = time.monotonic() + 240
    while not condition() and process.poll() is None:
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
