"""`python -m launch_driver RUN_FOLDER TARGET [KEY=VALUE ...]`: two ranks, with the exit codes of the command line."""

import sys
from pathlib import Path

from launcher.config.compose import compose
from launcher.console import console
from launcher.errors import EXIT_USER_ERROR, UserError
from launcher.launch.devices import Devices
from launcher.launch.elastic import Launcher
from launcher.records.progress import TerminalView

if __name__ == "__main__":
    try:
        run_folder, target, *overrides = sys.argv[1:]
        settings = compose(["launch=cpu", "launch.max_restarts=0", *overrides]).config.launch
        two = Devices("cuda" if settings.device == "cuda" else "cpu", 2)
        sys.exit(
            Launcher(Path(run_folder), two, settings, TerminalView(console()), target=f"rank_targets:{target}").run()
        )
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(EXIT_USER_ERROR)
