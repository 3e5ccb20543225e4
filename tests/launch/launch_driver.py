"""`python -m launch_driver RUN_FOLDER TARGET [KEY=VALUE ...]`: two ranks, with the exit codes of the command line."""

import os
import sys
from functools import partial
from pathlib import Path

from launcher.config.compose import compose
from launcher.console import console
from launcher.errors import EXIT_USER_ERROR, UserError
from launcher.launch import elastic
from launcher.launch.devices import Devices
from launcher.launch.elastic import Launcher
from launcher.records.progress import TerminalView

if __name__ == "__main__":
    try:
        run_folder, target, *overrides = sys.argv[1:]
        settings = compose(["launch=cpu", "launch.max_restarts=0", *overrides]).config.launch
        two = Devices("cuda" if settings.device == "cuda" else "cpu", 2, addresses=["0000:01:00.0", "0000:c1:00.0"])
        elastic.SECONDS_TO_CONNECT = float(os.environ.get("SECONDS_TO_CONNECT", elastic.SECONDS_TO_CONNECT))
        if system := os.environ.get("SYSTEM"):
            elastic.numa_cores = partial(elastic.numa_cores, system=Path(system))
        sys.exit(
            Launcher(Path(run_folder), two, settings, TerminalView(console()), target=f"rank_targets:{target}").run()
        )
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(EXIT_USER_ERROR)
