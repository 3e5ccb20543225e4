"""Train the only rank of a run in this process, where a debugger or a notebook sees it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from launcher.config.schema import Launch
from launcher.errors import DONE, Problem, UserError
from launcher.launch.devices import Devices
from launcher.rank.main import log_file
from launcher.rank.signs import DEVICE, STOP
from launcher.records.progress import LogFollower, TerminalView
from launcher.stopping import StopRequest, stop_signals

_ALONE = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}


class InThisProcess:
    """What `launch.elastic.Launcher` is, for one rank: errors of the training are raised with their traceback.

    Nothing detects hangs or restarts after failures. Settings of torch that the run needs stay set.
    """

    def __init__(
        self,
        run_folder: Path,
        devices: Devices,
        launch: Launch,
        view: TerminalView,
        *,
        request: StopRequest | None = None,
    ):
        if devices.processes > 1:
            raise UserError(Problem("one process trains one rank; set launch.nproc=1", "launch.nproc", launch.nproc))
        self._run_folder, self._device = run_folder, devices.kind
        self._view, self._request = view, request or StopRequest()

    def run(self) -> int:
        """Train, until a stop signal ends it after a checkpoint, and return the exit code."""
        from launcher.training.worker import train_rank

        def stop(number: int) -> None:
            self._request.note(number)
            STOP.requested = True

        follower = LogFollower(log_file(self._run_folder, 0), self._view, lambda: False)
        try:
            with stop_signals(stop), environment({**_ALONE, DEVICE: self._device}):
                train_rank(self._run_folder)
        finally:
            follower.close()
            stopped, STOP.requested = STOP.requested, False
        return self._request.exit_code if stopped else DONE


@contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    """Set environment variables, and restore them."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
