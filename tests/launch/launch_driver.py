"""`python launch_driver.py RUN_FOLDER TARGET`: two ranks, with the exit codes that the command line gives."""

from __future__ import annotations

import sys
from pathlib import Path

from launcher.errors import EXIT_USER_ERROR, UserError
from launcher.launch.elastic import launch


class PlainView:
    def poll(self) -> None: ...

    def print(self, line: str) -> None:
        print(line, flush=True)

    def close(self) -> None: ...


if __name__ == "__main__":
    try:
        sys.exit(launch(Path(sys.argv[1]), 2, PlainView(), target=f"rank_targets:{sys.argv[2]}"))
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(EXIT_USER_ERROR)
