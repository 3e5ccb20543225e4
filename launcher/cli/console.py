"""Where the verbs print."""

from __future__ import annotations

import sys

from rich.console import Console

_WIDTH_OF_A_PIPE = 200


def console() -> Console:
    """The terminal as wide as it is; a pipe or file so wide that tables do not fold."""
    return Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else _WIDTH_OF_A_PIPE)
