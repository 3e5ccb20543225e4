"""Measure checkpoints: the stall of training per checkpoint, and the first batch at 90 % of an epoch.

    python -m benchmarks.checkpoint --model resnet50 --folder runs --json checkpoint.json

The stall is the time in which no step can start, beside a plain `torch.save` of the same state to the same folder. The
first batch in the middle of an epoch is timed beside the first one of an epoch. Results are medians of several rounds.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.step import machine
from launcher.config.compose import compose
from launcher.rank.group import Ranks
from launcher.records.run_folder import RunFolder
from launcher.training.saving import Saver
from launcher.training.trainer import Trainer, build_trainer

_SMALL = ["dataset=shapes", "batch_size=32", "schedule.warmup=0ba"]


def main(words: Sequence[str] | None = None) -> int:
    arguments = _arguments(words)
    device = torch.device(arguments.device)
    ranks = Ranks(0, 1, 0, 1, device)
    config = compose([f"recipe={arguments.recipe}", f"model={arguments.model}", *_SMALL, *arguments.words]).config
    run = build_trainer(config, ranks)
    _step(run, 0)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as scratch:
        (folder := RunFolder(Path(scratch))).checkpoints.mkdir()
        with Saver(folder, config.checkpoint, ranks) as saver:
            plain, stall = _in_turn(
                lambda: torch.save(run.state_dict(), Path(scratch) / "plain.pt"),
                lambda: saver.save(run.state_dict(), best=False, last=False),
                arguments.repeats,
                between=lambda: saver.wait(must_succeed=True),
            )
        megabytes = next(folder.checkpoints.glob("step-*.pt")).stat().st_size / 1e6
    late = int(0.9 * run.plan.steps_per_epoch)
    start, middle = _in_turn(lambda: _step(run, 0), lambda: _step(run, late), arguments.repeats, between=lambda: None)
    run.loaders.close()
    facts = {
        "megabytes": megabytes,
        "plain_save_seconds": plain,
        "stall_seconds": stall,
        "stall_ratio": stall / plain,
        "first_batch_seconds": start,
        "batch_at_90_percent_seconds": middle,
        "resume_ratio": middle / start,
        "machine": machine(device),
    }
    Console().print(_table(facts))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(facts, indent=2) + "\n")
    return 0


def _step(run: Trainer, step: int) -> None:
    """Start an epoch at a step, and train that step."""
    images, labels, indices = next(iter(run.loaders.train.epoch(0, step)))
    run.train_step(images, labels, indices, run.moment(step))


def _in_turn(
    first: Callable[[], Any], second: Callable[[], Any], repeats: int, between: Callable[[], None]
) -> tuple[float, float]:
    """Return the median seconds of two alternating functions; `between` is not timed."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for function, times in zip((first, second), seconds, strict=True):
            start = time.perf_counter()
            function()
            times.append(time.perf_counter() - start)
            between()
    return statistics.median(seconds[0]), statistics.median(seconds[1])


def _table(facts: dict[str, Any]) -> Table:
    table = Table("what", "seconds", "ratio", box=None, header_style="bold")
    table.add_row(f"plain torch.save of {facts['megabytes']:.0f} MB", f"{facts['plain_save_seconds']:.3f}", "1.000")
    table.add_row("stall of training per checkpoint", f"{facts['stall_seconds']:.3f}", f"{facts['stall_ratio']:.3f}")
    table.add_row("first batch of an epoch, and its step", f"{facts['first_batch_seconds']:.3f}", "1.000")
    resumed = f"{facts['batch_at_90_percent_seconds']:.3f}"
    table.add_row("first batch at 90 % of an epoch, and its step", resumed, f"{facts['resume_ratio']:.3f}")
    return table


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="mild")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--folder", help="folder of the checkpoints (default: the system's temporary folder)")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", help="also write the results to this file")
    parser.add_argument("words", nargs="*", metavar="key=value", help="more values of the run")
    return parser.parse_args(words)


if __name__ == "__main__":
    raise SystemExit(main())
