"""One process a GPU through torch elastic, in this process; one rank's failure ends all at once."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from pathlib import Path

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from launcher.launch.exit_codes import DONE
from launcher.launch.failure import first_failure, report
from launcher.launch.rank import log_file
from launcher.launch.stopping import StopRequest, stop_requests
from launcher.launch.terminal import LogFollower, TerminalView
from launcher.launch.watch import RankWatch

WORKER = "launcher.training.worker:work"


def launch(run_folder: Path, processes: int, view: TerminalView, target: str = WORKER) -> int:
    """Run the target, a `module:function` of the run folder, on so many ranks of this machine; returns the exit code.

    Called in the main thread, since it takes over the signals. No process is left when it returns.

    Raises:
        UserError: a rank ended with one.
    """
    _set_threads(processes)
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    request = StopRequest()
    failure: ChildFailedError | None = None
    with tempfile.TemporaryDirectory(prefix="train-") as scratch:
        watch = RankWatch(processes, Path(scratch))
        follower = LogFollower(log_file(run_folder, 0), view, muted=watch.has_failure)
        try:
            with stop_requests(request, watch, follower.say), watch:
                arguments = ("-u", "-m", "launcher.launch.rank", target, str(run_folder), str(os.getpid()), scratch)
                elastic_launch(_config(processes, scratch), sys.executable)(*arguments)
        except ChildFailedError as error:
            failure = error
        except SignalException:
            request.at_once = True
        finally:
            follower.close()
    if failure is None:
        return request.exit_code if request.asked else DONE
    rank, process = first_failure(failure.failures, watch.failed_first)
    if request.explains(process.exitcode):
        return request.exit_code
    return report(rank, process, run_folder)


def _config(processes: int, scratch: str) -> LaunchConfig:
    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id="train",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=0,
        # note: the watch looks more often, so it sees who ended first before elastic ends the others
        monitor_interval=0.5,
        # note: ranks redirect themselves to files that go on over resumes; only elastic's error files lie here
        logs_specs=DefaultLogsSpecs(log_dir=scratch),
        # note: stop requests are ours to pass on; only SIGQUIT makes the agent itself drop everything
        signals_to_handle="SIGQUIT",
        # note: by then the ranks have ended or the watch has killed them
        shutdown_timeout=5,
    )


def _set_threads(processes: int) -> None:
    """Share the cores among the ranks, unless the user has said otherwise."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // processes)))
