"""One rank: reads the resolved config of its run folder, trains, and leaves records there."""

from __future__ import annotations

import copy
import time
from pathlib import Path

import numpy as np
import torch

from launcher.config.resolved import read
from launcher.data.unreadable import read_left_out
from launcher.rank.group import check_same_config, join_ranks
from launcher.rank.heartbeat import HEARTBEAT
from launcher.rank.stop import STOP
from launcher.records.folder import RunFolder
from launcher.training.journal import Journal
from launcher.training.loop import train
from launcher.training.nonfinite import Trouble
from launcher.training.run import Run, build_run
from launcher.training.saving import Saver, newest_for_all


def work(run_folder: Path) -> None:
    """The life of a run on one rank."""
    folder = RunFolder(run_folder)
    config = read(folder.config)
    with join_ranks(config) as ranks:
        state = newest_for_all(folder, ranks)
        check_same_config(config, ranks)
        run = build_run(config, ranks, read_left_out(folder.left_out, config.dataset))
        if state is not None:
            run.load_state_dict(state)
        if config.launch.warm_up:
            warm_up(run)
        if STOP.agreed_now():
            run.loaders.close()
            return
        with (
            Journal(run, folder, resumed=state is not None) as journal,
            Saver(folder, config.checkpoint, ranks) as saver,
        ):
            if state is not None:
                journal.load_state_dict(state["journal"])
            elif config.nonfinite.policy == "rollback":
                saver.save({**run.state_dict(), "journal": journal.state_dict()}, best=False, last=True)
            finished = train(run, journal, saver, Trouble(run, folder, journal, saver), STOP)
            journal.end(finished=finished)
        run.loaders.close()


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
