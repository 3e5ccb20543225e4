"""Run `train`, also as `python -m launcher`; from the first line on, a stop signal ends it."""

import sys

if sys.platform == "win32":
    print("error: train needs Linux or macOS; on Windows use it in WSL 2", file=sys.stderr)
    sys.exit(2)

from launcher.stopping import end_now, on_stop

on_stop(end_now)

from launcher.cli.main import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
