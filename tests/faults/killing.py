"""Kill and resume one run over and over: at random moments, and in the middle of saves."""

from __future__ import annotations

import multiprocessing
import os
import random
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.runs import ALONE, Train, processes_of, ranks_of, steps_done, wait_for


@dataclass
class Kills:
    """The finished steps at each kill, and how many kills of the launcher have cut a save short."""

    steps: list[int] = field(default_factory=list)
    in_a_save: int = 0


class Forks:
    """The two ranks of a run without a launcher, forks of a process that has imported what takes seconds."""

    def __init__(self, run: Path) -> None:
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["launcher.training.worker", "launcher.data.worker_processes"])
        self._ranks = [context.Process(target=_rank, args=(rank, port, run), daemon=True) for rank in (0, 1)]
        for rank in self._ranks:
            rank.start()

    def poll(self) -> int | None:
        return next((rank.exitcode for rank in self._ranks if rank.exitcode is not None), None)

    def kill(self, moments: random.Random) -> None:
        """One, and then the other, which may have noticed."""
        moments.shuffle(self._ranks)
        for rank in self._ranks:
            rank.kill()
            time.sleep(moments.uniform(0, 0.3))
        for rank in self._ranks:
            rank.join()


def _rank(rank: int, port: int, run: Path) -> None:
    from launcher.training.worker import work

    os.chdir(run.parents[1])
    two = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ.update({**ALONE, **two, "MASTER_PORT": str(port)})
    os.dup2(os.open(run / "logs" / f"fork-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
    os.dup2(1, 2)
    work(run)
    os._exit(0)


def kill_over_and_over(
    train: Train,
    words: Sequence[str],
    times: int,
    moments: random.Random,
    forked: Callable[[int], bool] = lambda number: False,
) -> tuple[Path, Kills]:
    """Start a run and kill it so many times, fewer if it ends before; it is left killed.

    Every third kill waits for a save; the others fall some steps on, or into a start. SIGKILL goes to the launcher,
    which none of its processes may outlive and after which the run is resumed, or to a rank, which the launcher makes
    good itself; where the kill of that number is for forks, to both ranks.
    """
    run = train.folder / "runs" / "killed"
    command, kills = [*words, "run_name=killed", f"launch.max_restarts={times}"], Kills()
    process: subprocess.Popen[str] | Forks | None = None
    last_kill = 0.0
    for number in range(times):
        process = process or (Forks(run) if forked(number) else train.start(*command))
        more = steps_done(run) + moments.randrange(3)
        if number % 3 == 0:
            _wait(process, lambda last_kill=last_kill: _is_saving(run, last_kill))
        elif moments.random() < 0.75:
            _wait(process, lambda more=more: steps_done(run) > more)
            time.sleep(moments.uniform(0, 0.1))
        else:
            time.sleep(moments.uniform(0.5, 5))
        ranks = [] if isinstance(process, Forks) else list(ranks_of(run).values())
        if ranks and moments.random() < 0.6 and not forked(number + 1):
            moments.choice(ranks).kill()
        elif _end(process, run, moments) == 0:
            break
        else:
            command, process = ["resume", str(run)], None
            kills.in_a_save += _is_saving(run, last_kill)
        kills.steps.append(steps_done(run))
        last_kill = time.time()
    if process is not None:
        _end(process, run, moments)
    return run, kills


def _end(process: subprocess.Popen[str] | Forks, run: Path, moments: random.Random) -> int | None:
    """Kill all of it; returns its exit code if it had ended by itself."""
    if isinstance(process, Forks):
        code = process.poll()
        process.kill(moments)
        return code
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


def _wait(process: subprocess.Popen[str] | Forks, condition: Callable[[], bool]) -> None:
    """Until the condition holds, or the process has ended by itself."""
    end = time.monotonic() + 240
    while not condition() and process.poll() is None:
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.002)
