"""Start one process per GPU with torch elastic, and restart all from the newest checkpoint after a failure."""

import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from torch.distributed import DistError
from torch.distributed.elastic.agent.server import WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.rendezvous import (
    RendezvousConnectionError,
    RendezvousError,
    RendezvousTimeoutError,
)

from launcher.compute.probe import numa_cores, rank_cores
from launcher.config.schema import Launch
from launcher.errors import DONE, FAILED, TERMINATED, MachineError, UserError, one_line
from launcher.launch.devices import Devices
from launcher.launch.hang import HangWatch, describe_hang
from launcher.launch.rendezvous import Rendezvous, open_rendezvous
from launcher.launch.watch import Failure, RankWatch, describe, first_failure, is_gone
from launcher.rank.main import log_file
from launcher.rank.signs import (
    COMMAND,
    CORES,
    DEVICE,
    SECONDS_TO_CONNECT,
    SECONDS_TO_START,
    STORE,
    remove_semaphores,
)
from launcher.records.progress import LogFollower, TerminalView
from launcher.records.run_folder import RunFolder
from launcher.stopping import ALL_STOP_SIGNALS, StopRequest, stop_signals

WORKER = "launcher.training.worker:train_rank"
_SECONDS_BETWEEN_RETRIES = 1.0
_LONGEST_TEMPORARY = 70  # characters of a folder, below which sockets have names of 33 more; macOS allows 103
_SAME_CTRL_C = 0.3  # seconds in which a wrapper may forward a Ctrl-C that the terminal has also sent


class Launcher:
    """Run a target, a `module:function` that takes the run folder, in each rank of this node.

    `request` records a stop signal; if it has recorded one already, no rank starts.
    """

    def __init__(
        self,
        run_folder: Path,
        devices: Devices,
        launch: Launch,
        view: TerminalView,
        target: str = WORKER,
        *,
        request: StopRequest | None = None,
    ):
        self._run_folder, self._devices, self._launch, self._target = run_folder, devices, launch, target
        self._request, self._killed = request or StopRequest(), False
        self._watch: RankWatch | None = None
        self._view, view.shown = view, launch.nnodes == 1
        self._follower = LogFollower(log_file(run_folder, 0), view, self._muted)
        self._rendezvous: Rendezvous | None = None

    def run(self) -> int:
        """Run to the end, including restarts, and return the exit code; no process remains.

        It must be called in the main thread, because it handles signals.

        Raises UserError if a rank raised one, and MachineError if the other nodes did not connect or ended the run.
        """
        os.environ[DEVICE], os.environ[COMMAND] = self._devices.kind, json.dumps(sys.argv)
        self._share_cores()
        if os.environ.get("TORCH_CPP_LOG_LEVEL") == "FATAL":
            del os.environ["TORCH_CPP_LOG_LEVEL"]
        failure: Failure | None = None
        try:
            with stop_signals(self._stop):
                failure = None if self._request.requested else self._attempts()
        except SignalException:
            self._killed = True
        except UserError:
            if not is_gone(self._run_folder):
                raise
        finally:
            self._follower.close()
            if self._rendezvous is not None:
                self._rendezvous.shutdown()
        if is_gone(self._run_folder):
            lost = f"error: the run folder {self._run_folder} was deleted or moved, so all ranks were stopped"
            print(one_line(f"{lost}; if you moved it, type train resume NEW_PATH"), file=sys.stderr)
            return FAILED
        if failure is not None:
            print(failure.message, file=sys.stderr)
            return FAILED
        return self._request.exit_code if self._request.requested or self._killed else DONE

    def _share_cores(self) -> None:
        """Choose the cores of each rank by `launch.numa`, and its threads unless the user has set their number."""
        threads, os.environ[CORES] = rank_cores(self._devices.processes), ""
        if self._launch.numa == "on":
            cores = numa_cores(self._devices.addresses)
            if isinstance(cores, str):
                self._follower.print(f"launch.numa=on: processes use all cores ({cores})")
            else:
                threads = min(max(1, len(own) // cores.count(own)) for own in cores)
                os.environ[CORES] = json.dumps(cores)
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))

    def _stop(self, number: int) -> None:
        """Forward the first stop request to the ranks, or stop waiting for other nodes; kill at a second Ctrl-C."""
        request, watch = self._request, self._watch
        if not request.requested:
            request.note(number)
            if self._launch.nnodes == 1 or (watch is not None and watch.has_running):
                saves = " with a checkpoint" if self._target == WORKER else ""
                self._follower.print(f"stopping after this step{saves}; press Ctrl-C again to stop at once")
                if watch is not None:
                    watch.send(signal.SIGTERM)
            else:
                self._follower.print("stopping without the other nodes")
                raise SignalException("stopped while waiting for other nodes", signal.Signals(number))
        elif watch is not None and number == signal.SIGINT and time.monotonic() - request.time > _SAME_CTRL_C:
            self._killed = True
            watch.kill()

    def _muted(self) -> bool:
        """Return whether a rank has failed, which shows the cause, or another node prints the log of rank 0."""
        return not self._view.shown or (self._watch is not None and bool(self._watch.failed_first))

    def _attempts(self) -> Failure | None:
        """Make attempts until one succeeds or no restart is left."""
        # note: several nodes are restarted together, by what has started their commands
        most = self._launch.max_restarts if self._launch.nnodes == 1 else 0
        for restart in range(1, most + 2):
            failure = self._attempt_with_all_nodes()
            if failure is None or self._request.requested or failure.repeats or is_gone(self._run_folder):
                break
            # note: an error that a rank raises before the first checkpoint would repeat, and so would a hang
            has_saved = RunFolder(self._run_folder).newest_step() is not None
            if restart > most or not (has_saved or (failure.from_outside and not failure.hangs)):
                break
            again = "from the newest checkpoint" if has_saved else "from the start"
            self._follower.skip()
            self._follower.print(f"{failure.message}\nrestarting {again} ({restart} of {most})")
        return failure

    def _attempt_with_all_nodes(self) -> Failure | None:
        """Make one attempt, after the node that serves the rendezvous has started.

        Raises MachineError if not all nodes connect within `launch.rdzv_timeout`.
        """
        end, launch = time.monotonic() + self._launch.rdzv_timeout, self._launch
        while True:
            try:
                return self._attempt()
            except RendezvousError as error:
                if self._request.requested:
                    return None
                if time.monotonic() > end or isinstance(error, RendezvousTimeoutError):
                    missing = f"not all {launch.nnodes} nodes connected within {launch.rdzv_timeout} s"
                    remedy = "start the same command on each, or set launch.rdzv_timeout higher"
                    raise MachineError(f"launch.rdzv={launch.rdzv}: {missing}; {remedy}") from None
                if self._rendezvous is not None:
                    raise MachineError("another node has ended, or the connection to it is lost") from None
            self._follower.print(f"no connection to {launch.rdzv}; retrying until the other nodes start")
            time.sleep(_SECONDS_BETWEEN_RETRIES)

    def _attempt(self) -> Failure | None:
        """Start the ranks and wait for their end; return None if they succeeded or were stopped."""
        launch = self._launch
        with _scratch() as folder:
            scratch = Path(folder)
            os.environ[STORE] = str(scratch / "store") if launch.nnodes == 1 else ""
            self._rendezvous = self._rendezvous or open_rendezvous(launch)
            agent = self._agent(self._rendezvous, folder)
            numbers: dict[int, int] = {}

            def ids() -> list[int]:
                group = agent.get_worker_group()
                # note: None until all nodes have connected
                if group.group_rank is not None:
                    self._view.shown = group.group_rank == 0
                numbers.update({worker.id: worker.global_rank for worker in group.workers if worker.id is not None})
                return [*numbers]

            # note: the ranks of other nodes may start later
            to_connect = SECONDS_TO_CONNECT if launch.nnodes == 1 else SECONDS_TO_START
            hangs = HangWatch(scratch, launch.hang_timeout, seconds_to_connect=to_connect)
            self._watch = watch = RankWatch(ids, scratch, self._run_folder, hangs)
            try:
                with watch:
                    if self._request.requested:
                        watch.send(signal.SIGTERM)
                    result = agent.run()
            except DistError as error:
                raise RendezvousConnectionError(str(error)) from None
            finally:
                remove_semaphores(scratch)
            if result is None:
                raise RendezvousConnectionError("another node ended the run")
            if self._killed or not result.is_failed():
                if watch.was_stopped and not self._request.requested:
                    self._follower.print("stopped, since a rank or another node has received a stop signal")
                    self._request.note(signal.SIGTERM)
                return None
            if watch.hang is not None:
                message = f"error: {describe_hang(watch.hang, numbers, self._run_folder)}"
                return Failure(message, from_outside=True, hangs=not watch.hang.passes)
            failure = describe(*first_failure(result.failures, watch.failed_first), self._run_folder)
            if self._request.requested and failure.exit_code == TERMINATED:
                self._follower.print("no images arrived, so the ranks have ended without another checkpoint")
                return None
            # note: a stop signal kills a rank that has not installed its handler yet
            return None if self._request.requested and -(failure.exit_code or 0) in ALL_STOP_SIGNALS else failure

    def _agent(self, rendezvous: Rendezvous, scratch: str) -> LocalElasticAgent:
        """Build elastic's agent, which runs launcher.rank.main in each process and never restarts one."""
        # note: this class forwards stop requests; the agent itself handles SIGQUIT only
        os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGQUIT"
        hang_timeout = json.dumps(self._launch.hang_timeout)
        words = (self._target, str(self._run_folder), str(os.getpid()), scratch, hang_timeout)
        spec = WorkerSpec(
            role="rank",
            local_world_size=self._devices.processes,
            entrypoint=sys.executable,
            args=("-u", "-m", "launcher.rank.main", *words),
            rdzv_handler=rendezvous,
            max_restarts=0,
            # note: the watch polls more often, so it finds the first failed rank before elastic ends the others
            monitor_interval=0.5,
        )
        # note: ranks append to log files of the run folder; the scratch folder has only elastic's error files
        return LocalElasticAgent(spec, DefaultLogsSpecs(log_dir=scratch))


def _scratch() -> tempfile.TemporaryDirectory[str]:
    """Create the folder of sockets and small files of an attempt: below TMPDIR, or /tmp if its path is too long.

    Raises UserError if TMPDIR is too long, and /tmp cannot be written.
    """
    usual = tempfile.gettempdir()
    if len(os.fsencode(usual)) <= _LONGEST_TEMPORARY:
        return tempfile.TemporaryDirectory(prefix="train-")
    try:
        return tempfile.TemporaryDirectory(prefix="train-", dir="/tmp")
    except OSError as error:
        limit = f"TMPDIR={usual} has more than {_LONGEST_TEMPORARY} characters, too many for sockets, and /tmp"
        raise UserError(f"{limit} cannot be used ({error.strerror}); set TMPDIR to a shorter path") from None
