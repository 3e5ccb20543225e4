"""The command `train`, also as `python -m launcher`: a stop signal ends it in its first line too."""

from __future__ import annotations

import sys

from launcher.launch.stopping import end_now, on_stop

on_stop(end_now)

from launcher.cli.main import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
