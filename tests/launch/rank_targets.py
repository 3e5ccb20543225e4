"""Targets of the ranks in the launch tests: functions of a run folder."""

import json
import multiprocessing
import os
import signal
import time
from pathlib import Path

from launcher.compute.probe import rank_cores
from launcher.config.compose import compose
from launcher.data.workers import clean_processes
from launcher.errors import Problem, UserError
from launcher.rank.signs import STOP

RANK = os.environ.get("RANK", "")


def _mark(run: Path, name: str, text: str = "") -> None:
    (run / f"{name}-{RANK}").write_text(text)


def _wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.02)


def _block() -> None:
    """Ignore signals, like a rank that is blocked in a collective."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1})
    time.sleep(600)


def _stubborn_child() -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    time.sleep(600)


def _start_child(run: Path) -> None:
    child = multiprocessing.get_context("fork").Process(target=_stubborn_child)
    child.start()
    _mark(run, "child", str(child.pid))


def succeed(run: Path) -> None:
    """Rank 1 ends a second after rank 0 has succeeded."""
    time.sleep(int(RANK))
    print(f"rank {RANK} of {os.environ['WORLD_SIZE']} was here", flush=True)
    _mark(run, "threads", os.environ["OMP_NUM_THREADS"])
    _mark(run, "frames", os.environ.get("TORCH_CPP_LOG_LEVEL", "shown"))


def _write_cores(path: Path) -> None:
    path.write_text(json.dumps(sorted(os.sched_getaffinity(0))))


def use_cores(run: Path) -> None:
    """Write the cores of this rank and of a loader worker, its share of them and its threads."""
    _write_cores(run / f"cores-{RANK}")
    worker = clean_processes().Process(target=_write_cores, args=(run / f"worker-{RANK}",))
    worker.start()
    worker.join()
    _mark(run, "share", str(rank_cores(2)))
    _mark(run, "threads", os.environ["OMP_NUM_THREADS"])


def second_raises(run: Path) -> None:
    _start_child(run)
    if RANK == "0":
        _block()
    _wait_for(run / "child-0")
    raise ValueError("broken on purpose")


def second_raises_before_a_barrier(run: Path) -> None:
    from launcher.rank.group import gather, join_ranks

    with join_ranks(compose([]).config):
        if RANK == "1":
            raise ValueError("broken on purpose")
        gather(RANK)


def second_never_connects(run: Path) -> None:
    import torch.distributed as dist

    from launcher.rank.group import join_ranks

    if RANK == "1":
        dist.init_process_group = lambda *_, **__: time.sleep(600)
    with join_ranks(compose([]).config):
        _mark(run, "trained")


def second_is_killed(run: Path) -> None:
    _start_child(run)
    print(f"a line of rank {RANK}", flush=True)
    if RANK == "0":
        _block()
    _wait_for(run / "child-0")
    os.kill(os.getpid(), signal.SIGKILL)


def second_is_misused(run: Path) -> None:
    if RANK == "0":
        _block()
    raise UserError(Problem("set another", "dataset.path", "there"), "and check the step")


def save_on_request(run: Path) -> None:
    _start_child(run)
    _mark(run, "ready", str(os.getpid()))
    while not STOP.requested:
        time.sleep(0.02)
    time.sleep(0.5)
    _mark(run, "saved")
    os.kill(int((run / f"child-{RANK}").read_text()), signal.SIGKILL)


def be_stopped(run: Path) -> bool:
    """End as after a stop signal to a rank of another node."""
    return RANK != "1"


def save_slowly(run: Path) -> None:
    """Save after the launcher has found that the other node is lost."""
    _mark(run, "ready")
    while not STOP.requested:
        time.sleep(0.02)
    time.sleep(3)
    _mark(run, "saved")


def fail_on_request(run: Path) -> None:
    _mark(run, "ready")
    while not STOP.requested:
        time.sleep(0.02)
    if RANK == "1":
        raise OSError("no space to save")


def never_end(run: Path) -> None:
    _start_child(run)
    _mark(run, "ready")
    _block()


def fail_once(run: Path) -> None:
    """The first process of rank 1 raises; the test may have written a checkpoint."""
    print(f"rank {RANK} starts", flush=True)
    if RANK == "1":
        if not (run / "failed-once").exists():
            (run / "failed-once").touch()
            raise ValueError("broken once")
        _mark(run, "continued")


def gpu_lost_before_a_restart(run: Path) -> None:
    """A rank of the first attempt is killed; in the next attempt there are no GPUs."""
    from launcher.rank.group import join_ranks

    if not (run / "killed-once").exists():
        if RANK == "1":
            (run / "killed-once").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        _block()
    with join_ranks(compose([]).config):
        _mark(run, "trained")
