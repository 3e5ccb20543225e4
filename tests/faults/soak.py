"""`python -m tests.faults.soak [TIMES]`: kill and resume a small run at random moments, and compare its weights.

The run is killed with its launcher, so also in the middle of saves, evaluations and starts.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path

import torch

from tests.system.conftest import Train
from tests.system.test_runs import ranks_of, steps_done, wait_for

from .conftest import SHORT


def main(times: int) -> int:
    with tempfile.TemporaryDirectory() as scratch:
        train = Train.at(Path(scratch), Path(scratch) / "cache")
        words = [*SHORT, f"epochs={max(3, times // 4)}", "checkpoint.every=2ba"]
        train(*words, "run_name=whole")
        whole = train.folder / "runs" / "whole"
        killed = train.folder / "runs" / "killed"
        moments, cycles, begun = random.Random(0), 0, time.monotonic()
        command = [*words, "run_name=killed"]
        total = steps_done(whole)
        while cycles < times and steps_done(killed) < total:
            before, process = steps_done(killed), train.start(*command)
            wait_for(lambda before=before, process=process: steps_done(killed) > before or process.poll() is not None)
            time.sleep(moments.uniform(0, 1.5))
            process.kill()
            process.communicate()
            wait_for(lambda: not ranks_of(killed))
            command, cycles = ["resume", str(killed)], cycles + 1
            print(f"cycle {cycles}: killed after step {steps_done(killed)} of {total}", flush=True)
        train("resume", str(killed))
        ours, theirs = train.state(killed)["model"], train.state(whole)["model"]
        assert isinstance(ours, dict)
        assert isinstance(theirs, dict)
        differing = [name for name in theirs if not torch.equal(ours[name], theirs[name])]
        verdict = f"{len(differing)} tensors differ" if differing else "the weights are equal, bit for bit"
        print(f"{cycles} cycles in {time.monotonic() - begun:.0f} s: {verdict}")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100))
