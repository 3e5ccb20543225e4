"""One rank: reads the resolved config of its run folder, trains, and leaves records there."""

from __future__ import annotations

from pathlib import Path

from launcher.config.resolved import read
from launcher.data.unreadable import read_left_out
from launcher.launch.signals import STOP
from launcher.records.folder import RunFolder
from launcher.training.journal import Journal
from launcher.training.loop import train
from launcher.training.ranks import check_same_config, join_ranks
from launcher.training.run import build_run
from launcher.training.saving import Saver, newest_for_all
from launcher.training.trouble import Trouble
from launcher.training.warm_up import warm_up


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
