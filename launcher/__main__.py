"""The command `train`, also as `python -m launcher`: a Ctrl-C while it is imported ends it without a traceback."""

from __future__ import annotations

import signal
import sys

# note: under nohup the signal is ignored, and stays so
_IS_USUAL = signal.getsignal(signal.SIGINT) is signal.default_int_handler
if _IS_USUAL:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from launcher.cli.main import main  # noqa: E402

if _IS_USUAL:
    signal.signal(signal.SIGINT, signal.default_int_handler)

if __name__ == "__main__":
    sys.exit(main())
