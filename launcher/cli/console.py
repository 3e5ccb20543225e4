"""Where the verbs print."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.markup import escape

from launcher.errors import one_line

_WIDTH_OF_A_PIPE = 200


def console() -> Console:
    """The terminal as wide as it is; a pipe or file so wide that tables do not fold."""
    return Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else _WIDTH_OF_A_PIPE)


def verbatim(text: object) -> str:
    """A text from a file or a name, as it is: no markup of rich's, no control of the terminal."""
    return escape(one_line(str(text)))
