"""Errors of the user, collected so that one command reports all of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EXIT_USER_ERROR = 2
_MACHINE = re.compile(
    r"out of memory|OutOfMemory|allocate memory|AcceleratorError|Dist\w*Error|(CUDA|HIP|NCCL)\w* error|While copying"
)


@dataclass(frozen=True)
class Problem:
    """One mistake: the dotted key, the value given, where it came from, and what to do about it."""

    message: str
    key: str | None = None
    value: Any = None
    origin: str | None = None

    def __str__(self) -> str:
        if self.key is None:
            return one_line(self.message)
        source = f" ({self.origin})" if self.origin else ""
        return one_line(f"{shown(self.key)}={shown(self.value)}{source}: {self.message}")


class UserError(Exception):
    """One or more mistakes of the user, each once; printed as one line each, exit code 2, never a traceback."""

    def __init__(self, *problems: Problem | str):
        said = {str(p): Problem(p) if isinstance(p, str) else p for p in problems}
        self.problems = list(said.values())
        super().__init__("\n".join(map(str, self.problems)))

    def __reduce__(self) -> tuple[type[UserError], tuple[Problem, ...]]:
        return type(self), tuple(self.problems)


class Problems(list[Problem]):
    """Mistakes met on the way, to be told together."""

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Take over the mistakes of a `UserError`, and go on behind this block."""
        try:
            yield
        except UserError as error:
            self += error.problems

    def settle(self) -> None:
        """Raise a `UserError` if there was any."""
        if self:
            raise UserError(*self)


class MachineError(Exception):
    """What happened to the program from outside, in one line without a traceback; another attempt may go better."""


def is_of_the_machine(error: Exception) -> bool:
    """Whether memory, a disk or a device failed, and not what torch was given to do.

    Told by the text: loading a model's weights makes one RuntimeError of whatever it meets.
    """
    return isinstance(error, OSError) or _MACHINE.search(f"{type(error).__name__}: {error}") is not None


def one_line(text: str) -> str:
    """The text with what is no printable character written as an escape: a name may hold a newline, or half a byte."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def first_few(items: Sequence[str], most: int = 5) -> str:
    """The first of some items, and the number of the others."""
    return ", ".join(items[:most]) + f" and {len(items) - most:,} more" * (len(items) > most)


def shown(value: Any) -> str:
    """A value within a message: not too long, and seen even where it is empty."""
    if value == "":
        return "''"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Path):
        return str(value)
    text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."


DONE = 0
FAILED = 1
INTERRUPTED = 130  # Ctrl-C: saved, `train resume` goes on
TERMINATED = 143  # SIGTERM or SIGUSR1: saved, `train resume` goes on
