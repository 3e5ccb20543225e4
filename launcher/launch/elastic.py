"""One process a GPU under torch elastic; a rank's failure ends all at once, and all start again from the last save."""

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
from launcher.launch.devices import Devices, bind
from launcher.launch.failure import (
    describe,
    describe_hang,
    describe_loss,
    describe_zygote,
    first_failure,
    is_from_outside,
)
from launcher.launch.stopping import StopRequest, stop_requests
from launcher.launch.terminal import LogFollower, TerminalView
from launcher.launch.watch import RankWatch
from launcher.launch.zygote import Zygote, ZygoteLost, zygote
from launcher.probe import BOUND, usable_cores
from launcher.rank.heartbeat import remove_semaphores
from launcher.rank.main import DEVICE, log_file
from launcher.records.folder import RunFolder
from launcher.records.kept import KeptFolder, rescued

WORKER = "launcher.training.begin:work"
# note: torch 2.15 still reads the name that older ones know
_ALLOCATOR = {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"}
_SECONDS_BETWEEN_TRIES = 1.0


@dataclass(frozen=True)
class Failure:
    """An attempt that failed: lines for the terminal, and whether another attempt may go better."""

    message: str
    worth_restarting: bool


class Launcher:
    """Runs a target, a `module:function` of the run folder, on so many ranks of this machine, once."""

    def __init__(
        self,
        run_folder: Path,
        devices: Devices,
        launch: Launch,
        view: TerminalView,
        target: str = WORKER,
        *,
        elsewhere: str | None = None,
    ):
        self._run_folder, self._devices, self._launch, self._target = run_folder, devices, launch, target
        self._request = StopRequest()
        self._watch: RankWatch | None = None
        self._zygote: Zygote | None = None
        self._follower = LogFollower(log_file(run_folder, 0), view, muted=self._has_failure)
        self._rendezvous: Rendezvous | None = None
        self._kept = KeptFolder(run_folder, on_lost=self._lost)
        self._elsewhere = elsewhere

    def run(self) -> int:
        """Run to the end, through restarts; returns the exit code. No process is left then.

        Called in the main thread, since it takes over the signals.

        Raises:
            UserError: a rank ended with one, or the other machines did not come.
        """
        _set_threads(self._devices.processes)
        self._set_environment()
        failure: Failure | None = None
        try:
            with stop_requests(self._request, self, self._follower.say), self._kept:
                failure = self._attempts()
        except SignalException:
            self._request.at_once = True
        except ZygoteLost as lost:
            if not self._request.asked:
                failure = Failure(describe_zygote(lost.pid, lost.exit_code), False)
        except UserError:
            # note: what a rank could not write has this cause
            if self._kept.lost is None:
                raise
        finally:
            self._follower.close()
            if self._rendezvous is not None:
                self._rendezvous.shutdown()
        if self._kept.lost is not None:
            saved = rescued(self._run_folder, self._elsewhere)
            failure = Failure(describe_loss(self._run_folder, self._kept.lost, saved), False)
        if failure is not None:
            print(failure.message, file=sys.stderr)
            return FAILED
        return self._request.exit_code if self._request.asked else DONE

    def _set_environment(self) -> None:
        """What the ranks inherit: their device, their cores, and how GPU memory is handed out."""
        os.environ[DEVICE], os.environ[BOUND] = self._devices.kind, ""
        if self._devices.kind == "cpu":
            return
        if self._launch.bind == "auto":
            addresses = [gpu["address"] for gpu in self._devices.gpus[: self._devices.processes]]
            found = bind(addresses, os.sched_getaffinity(0))
            os.environ[BOUND] = ";".join(",".join(map(str, cores)) for cores in found.cores)
            self._follower.say(found.said)
        if self._launch.expandable_segments and not _ALLOCATOR & os.environ.keys():
            os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"

    def send(self, number: signal.Signals) -> None:
        """Pass a stop request on to the ranks; where they wait for other machines to start, stop now."""
        if self._watch is not None and (self._watch.started or self._launch.nnodes == 1):
            self._watch.send(number)
        elif self._launch.nnodes > 1:
            raise SignalException("asked to stop while waiting for other machines", number)

    def kill(self) -> None:
        """Kill every rank and what it has started."""
        if self._watch is not None:
            self._watch.kill()
        if self._zygote is not None:
            # note: one that still imports would not answer for seconds
            self._zygote.kill()

    def _lost(self) -> None:
        """The run folder is gone: end the ranks, having them save elsewhere if that was asked for."""
        if self._elsewhere is None:
            self.kill()
        else:
            self.send(signal.SIGTERM)

    def _has_failure(self) -> bool:
        return self._watch is not None and self._watch.has_failure()

    def _attempts(self) -> Failure | None:
        """Attempts until one ends well, or fails for good."""
        most = self._launch.max_restarts
        for restart in range(1, most + 2):
            failure = self._attempt_with_all_machines()
            if failure is None or self._request.asked or self._kept.lost:
                break
            if not failure.worth_restarting or restart > most:
                break
            self._follower.forget()
            self._follower.say(f"{failure.message}\nstarting again from the last save ({restart} of {most})")
        return failure

    def _attempt_with_all_machines(self) -> Failure | None:
        """One attempt, begun anew whenever other machines were lost and until they are back.

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
        with tempfile.TemporaryDirectory(prefix="train-") as scratch:
            # note: no GPU has run forked ranks yet
            self._zygote = zygote() if self._devices.kind == "cpu" else None
            self._watch = watch = RankWatch(
                self._devices.processes,
                Path(scratch),
                self._launch.hang_timeout,
                self._follower.say,
                parent=self._zygote.pid if self._zygote else None,
            )
            if self._rendezvous is None or self._launch.nnodes == 1:
                self._rendezvous = Rendezvous(self._launch)
            words = (self._target, str(self._run_folder), str(os.getpid()), scratch)
            agent = make_agent(self._devices.processes, self._rendezvous, words, scratch, self._zygote)
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
        if watch.hung:
            seconds = self._launch.hang_timeout or 0
            return Failure(describe_hang(failures, watch.hung, watch.stalls, seconds, self._run_folder / "logs"), True)
        rank, process = first_failure(failures, watch.failed_first)
        if self._request.explains(process.exitcode):
            return None
        if self._zygote is not None and self._zygote.ended is not None:
            return Failure(describe_zygote(self._zygote.pid, self._zygote.ended), True)
        message = describe(rank, process, self._run_folder)
        # note: an error that a rank raises before the first save would come again
        has_saved = RunFolder(self._run_folder).newest_step() is not None
        return Failure(message, is_from_outside(process) or has_saved or self._launch.nnodes > 1)


def _set_threads(processes: int) -> None:
    """Share the cores among the ranks, unless the user has said otherwise."""
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, usable_cores() // processes)))
