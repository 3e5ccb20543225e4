"""`python -m launcher` is `train`."""

from __future__ import annotations

import sys

from launcher.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
