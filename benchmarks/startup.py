"""Measure the processor time of commands that start no training, and the time to the first optimizer step.

    python -m benchmarks.startup --repeats 9 --json startup.json

Each command runs in its own process, in alternation; results are medians of user and system time. The peer is a process
in which Hydra only composes conf/ once.
"""

import argparse
import json
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from launcher import paths

_HYDRA = (
    "from hydra import compose, initialize_config_dir\n"
    f"with initialize_config_dir(config_dir={str(paths.CONF)!r}, version_base='1.3'): compose('train')"
)
PEER = "Hydra composes conf/"
_TRAIN = [sys.executable, "-m", "launcher"]
COMMANDS = {
    PEER: [sys.executable, "-c", _HYDRA],
    **{words: [*_TRAIN, *words.split()] for words in ("plan recipe=hot", "show recipe=hot", "ls", "diff mild hot")},
    "an error": [*_TRAIN, "dataset=imagenet", "dataset.path=/nowhere"],
}
_WORDS = ("recipe=mild", "dataset=shapes", "model=resnet18", "launch=cpu", "run_name=x", "logger.interval=1ba")
_RUN = [*_TRAIN, *_WORDS]


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9, metavar="N")
    parser.add_argument("--first-step", action="store_true", help="also start a run; needs two idle cores")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args(words)
    facts: dict[str, float] = {}
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    # note: the first round reads files from the disk, and is not counted
    for turn in range(arguments.repeats + 1):
        for name, command in COMMANDS.items():
            times[name] += [_processor_seconds(command)] * (turn > 0)
    for name, seconds in times.items():
        facts[name] = statistics.median(seconds)
        print(f"{name:24} {facts[name]:.3f} s, ratio {facts[name] / facts[PEER]:.2f}")
    if arguments.first_step:
        wall, processor = _first_step_seconds()
        facts |= {"first step": wall, "first step, processor": processor}
        print(f"{'first step after':24} {wall:.1f} s of wall time, {processor:.1f} s of processor time")
    if arguments.json:
        arguments.json.write_text(json.dumps(facts, indent=2))
    return 0


def _processor_seconds(command: list[str]) -> float:
    """Return the user and system time of a process and the children it waited for."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _first_step_seconds() -> tuple[float, float]:
    """Return the wall time to a run's first recorded optimizer step, and the processor time of all its processes."""
    with tempfile.TemporaryDirectory() as folder:
        metrics, start = Path(folder) / "runs" / "x" / "metrics.jsonl", time.perf_counter()
        process = subprocess.Popen(_RUN, cwd=folder, stdout=subprocess.DEVNULL)
        while process.poll() is None and not (metrics.exists() and '"train"' in metrics.read_text()):
            time.sleep(0.02)
        seconds = time.perf_counter() - start
        first = psutil.Process(process.pid)
        times = [one.cpu_times() for one in (first, *first.children(recursive=True))]
        process.send_signal(signal.SIGINT)
        process.wait()
    return seconds, sum(one.user + one.system for one in times)


if __name__ == "__main__":
    sys.exit(main())
