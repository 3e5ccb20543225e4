"""`python -m tests.faults.soak [TIMES]`: kill and resume a small run a hundred times, and compare its weights.

The run is killed with its launcher, so also in the middle of saves, evaluations and starts.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path

import torch

from tests.runs import SHORT, Cold

from .killing import kill_over_and_over


def main(times: int) -> int:
    with tempfile.TemporaryDirectory() as scratch:
        train = Cold(Path(scratch))
        words = [*SHORT, f"epochs={times // 2 + 10}", "checkpoint.every=2ba", "eval_every=10ep"]
        train(*words, "run_name=whole")
        begun = time.monotonic()
        run, kills = kill_over_and_over(train, words, times, random.Random(0))
        train("resume", str(run))
        ours, theirs = train.state(run)["model"], train.state(train.folder / "runs" / "whole")["model"]
        assert isinstance(ours, dict)
        assert isinstance(theirs, dict)
        differing = [name for name in theirs if not torch.equal(ours[name], theirs[name])]
        seconds = time.monotonic() - begun
    verdict = f"{len(differing)} tensors differ" if differing else "the weights are equal, bit for bit"
    last = kills.steps[-1]
    print(
        f"{len(kills.steps)} kills in {seconds:.0f} s, {kills.in_a_save} in a save, the last at step {last}: {verdict}"
    )
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100))
