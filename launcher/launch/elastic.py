"""Start one process a GPU by torch elastic, watch them, and restart all from the last checkpoint after a failure."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousClosedError, RendezvousError, RendezvousTimeoutError

from launcher.config.schema import Launch
from launcher.errors import DONE, FAILED, Problem, UserError
from launcher.launch.agent import PeersRejoin, Rendezvous, make_agent
from launcher.launch.devices import Devices
from launcher.launch.failure import describe, describe_hang, describe_lost_folder, first_failure, is_from_outside
from launcher.launch.stopping import StopRequest, stop_requests
from launcher.launch.terminal import LogFollower, TerminalView
from launcher.launch.watch import RankWatch
from launcher.probe import rank_cores
from launcher.rank.heartbeat import remove_semaphores
from launcher.rank.main import DEVICE, log_file
from launcher.records.folder import RunFolder

WORKER = "launcher.training.worker:work"
_SECONDS_BETWEEN_TRIES = 1.0


@dataclass(frozen=True)
class Failure:
    """An attempt that failed: lines for the terminal, and whether another attempt may go better."""

    message: str
    worth_restarting: bool


class Launcher:
    """Run a target, a `module:function` of the run folder, once on so many ranks of this node."""

    def __init__(self, run_folder: Path, devices: Devices, launch: Launch, view: TerminalView, target: str = WORKER):
        self._run_folder, self._devices, self._launch, self._target = run_folder, devices, launch, target
        self._request = StopRequest()
        self._watch: RankWatch | None = None
        self._follower = LogFollower(log_file(run_folder, 0), view, muted=self._has_failure)
        self._rendezvous: Rendezvous | None = None

    def run(self) -> int:
        """Run to the end, through restarts, and return the exit code; no process is left then.

        Called in the main thread, since it takes over the signals.

        Raises:
            UserError: a rank ended with one, or the other nodes did not come.
        """
        os.environ[DEVICE] = self._devices.kind
        # note: ranks share the cores, unless the user has said otherwise
        os.environ.setdefault("OMP_NUM_THREADS", str(rank_cores(self._devices.processes)))
        failure: Failure | None = None
        try:
            with stop_requests(self._request, self, self._follower.say):
                failure = self._attempts()
        except SignalException:
            self._request.at_once = True
        except UserError:
            # note: without its folder a rank fails to write a checkpoint
            if self._run_folder.is_dir():
                raise
        finally:
            self._follower.close()
            if self._rendezvous is not None:
                self._rendezvous.shutdown()
        if not self._run_folder.is_dir():
            failure = Failure(describe_lost_folder(self._run_folder), False)
        if failure is not None:
            print(failure.message, file=sys.stderr)
            return FAILED
        return self._request.exit_code if self._request.asked else DONE

    def send(self, number: signal.Signals) -> None:
        """Pass a stop request on to the ranks; where they wait for other nodes to start, stop now."""
        if self._watch is not None and (self._watch.started or self._launch.nnodes == 1):
            self._watch.send(number)
        elif self._launch.nnodes > 1:
            raise SignalException("asked to stop while waiting for other nodes", number)

    def kill(self) -> None:
        """Kill every rank and what it has started."""
        if self._watch is not None:
            self._watch.kill()

    def _has_failure(self) -> bool:
        return self._watch is not None and self._watch.has_failure()

    def _attempts(self) -> Failure | None:
        """Attempt until one ends well, or fails for good."""
        most = self._launch.max_restarts
        for restart in range(1, most + 2):
            failure = self._attempt_with_all_nodes()
            if failure is None or self._request.asked or not self._run_folder.is_dir():
                break
            if not failure.worth_restarting or restart > most:
                break
            self._follower.forget()
            self._follower.say(f"{failure.message}\nstarting again from the last save ({restart} of {most})")
        return failure

    def _attempt_with_all_nodes(self) -> Failure | None:
        """Make one attempt, repeated whenever other nodes were lost, once they are back.

        Raises:
            UserError: they do not come within `launch.rdzv_timeout`, or have ended the run.
        """
        lost = float("inf")
        while True:
            try:
                return self._attempt()
            except PeersRejoin:
                self._follower.say("another machine has started again; starting from the last save with it")
            except RendezvousClosedError:
                raise UserError("another machine has ended the run; its terminal says why") from None
            except RendezvousError as error:
                if self._watch is not None and self._watch.started:
                    lost = float("inf")
                lost = min(lost, time.monotonic())
                waited_in_vain = time.monotonic() - lost > self._launch.rdzv_timeout
                if waited_in_vain or isinstance(error, RendezvousTimeoutError):
                    message = f"not all {self._launch.nnodes} machines came within {self._launch.rdzv_timeout} s"
                    raise UserError(Problem(message, "launch.rdzv", self._launch.rdzv)) from None
                if time.monotonic() - lost < _SECONDS_BETWEEN_TRIES:
                    self._follower.say(f"no connection to {self._launch.rdzv}; trying until the others are there")
                self._rendezvous = None
                time.sleep(_SECONDS_BETWEEN_TRIES)

    def _attempt(self) -> Failure | None:
        """Start the ranks and wait for their end; None if it was a good one, or one that was asked for."""
        launch, processes = self._launch, self._devices.processes
        with tempfile.TemporaryDirectory(prefix="train-") as scratch:
            folders = Path(scratch), self._run_folder
            self._watch = watch = RankWatch(processes, *folders, launch.hang_timeout, self._follower.say)
            if self._rendezvous is None or launch.nnodes == 1:
                self._rendezvous = Rendezvous(launch)
            words = (self._target, str(self._run_folder), str(os.getpid()), scratch)
            agent = make_agent(processes, self._rendezvous, words, scratch)
            try:
                with watch:
                    if self._request.asked:
                        watch.send(signal.SIGTERM)
                    result = agent.run()
            finally:
                remove_semaphores(Path(scratch))
            if result is None:
                raise RendezvousClosedError
            return self._failure(result.failures, watch) if result.is_failed() else None

    def _failure(self, failures: Mapping[int, ProcessFailure], watch: RankWatch) -> Failure | None:
        """Describe why an attempt failed; None where the ranks were asked to stop."""
        if watch.hung:
            seconds = self._launch.hang_timeout or 0
            return Failure(describe_hang(failures, watch.hung, watch.stalls, seconds, self._run_folder / "logs"), True)
        rank, process = first_failure(failures, watch.failed_first)
        if self._request.explains(process.exitcode):
            return None
        message = describe(rank, process, self._run_folder)
        # note: an error that a rank raises before the first save would come again
        has_saved = RunFolder(self._run_folder).newest_step() is not None
        return Failure(message, is_from_outside(process) or has_saved or self._launch.nnodes > 1)
