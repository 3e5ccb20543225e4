"""A step of every image size before the clock starts, undone afterwards: cuDNN tries its kernels there."""

from __future__ import annotations

import copy
import time

import numpy as np
import torch

from launcher.launch.heartbeat import HEARTBEAT
from launcher.training.run import Run


def warm_up(run: Run) -> None:
    """Take the last step of each size that is still to come, on black pictures, and put everything back."""
    start, last = time.perf_counter(), {}
    for number in range(run.next_step, run.plan.total_steps):
        last[run.plan.image_size(number)] = number
    state = copy.deepcopy(run.state_dict())
    for number in last.values():
        side = run.plan.loaded_size(number)
        images = torch.zeros(run.plan.rank_batch, 3, side, side, dtype=torch.uint8, device=run.ranks.device)
        labels = torch.zeros(len(images), dtype=torch.long, device=run.ranks.device)
        run.step(images, labels, np.arange(len(images)), run.moment(number))
        HEARTBEAT.beat()
    run.load_state_dict(state)
    if run.ranks.is_first:
        seconds = time.perf_counter() - start
        print(f"warmed up {len(last)} image sizes in {seconds:.1f} s, which no clock counts", flush=True)
