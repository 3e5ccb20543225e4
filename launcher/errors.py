"""Errors of the user, collected so that one command reports all of them."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TextIO

from launcher.credentials import redacted

EXIT_USER_ERROR = 2
_NO_MEMORY = re.compile(r"out of memory|OutOfMemory|allocate memory|MemoryError|map segment")
# Of Python, of fork in Python, and of OpenMP; with too little memory threads fail too.
_NO_PROCESS = re.compile(r"start \w+ thread|(BlockingIO|Runtime)Error.*temporarily unavailable|Thread creation")
MORE_PROCESSES = "use fewer processes and workers, or raise the limits of processes and memory (ulimit -u, ulimit -v)"
_MACHINE = re.compile(
    rf"{_NO_MEMORY.pattern}|{_NO_PROCESS.pattern}|AcceleratorError|Dist\w*Error|(CUDA|HIP|NCCL)\w* error|While copying"
)


@dataclass(frozen=True)
class Problem:
    """One error: the message with its remedy, the dotted key, its value and the origin of the value."""

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
    """One or more distinct errors of the user, printed as a line each with exit code 2 and no traceback."""

    def __init__(self, *problems: Problem | str):
        distinct = {str(p): Problem(p) if isinstance(p, str) else p for p in problems}
        self.problems = list(distinct.values())
        super().__init__("\n".join(map(str, self.problems)))

    @property
    def line(self) -> str:
        """The errors on one line, of many the first five."""
        return first_few(list(map(str, self.problems)))

    def __reduce__(self) -> tuple[type[Self], tuple[Problem, ...]]:
        return type(self), tuple(self.problems)


class Problems(list[Problem]):
    """A list of errors to report together."""

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Collect the errors of a `UserError` and continue after the block."""
        try:
            yield
        except UserError as error:
            self += error.problems

    def settle(self) -> None:
        """Raise a `UserError` if there are any; the same error of several values of a key is one line."""
        if self:
            first = {(one.key, one.message): one for one in reversed(self)}
            raise UserError(*reversed(first.values()))


class MachineError(Exception):
    """A failure outside the program, printed as one line without a traceback; a retry may succeed."""


def is_of_the_machine(error: Exception) -> bool:
    """Return whether memory, a disk or a device failed, and not an operation of the program.

    The text decides, because loading a model's weights turns every error into one RuntimeError.
    """
    return isinstance(error, OSError) or _MACHINE.search(f"{type(error).__name__}: {error}") is not None


def is_out_of_memory(text: str) -> bool:
    """Return whether an error's type and message report a lack of memory."""
    return _NO_MEMORY.search(text) is not None


def is_out_of_processes(text: str) -> bool:
    """Return whether an error's type and message, or a log, report that no further process or thread can start."""
    return _NO_PROCESS.search(text) is not None


def printable(text: str, keep: str = "\n\t") -> str:
    """Escape the characters of foreign text that would act on a terminal, or hide: names may contain any of them.

    They are escape sequences, control characters except those to keep, invalid bytes, and marks of text direction.
    Credentials are hidden.
    """
    text = redacted(text)
    if text.isprintable():
        return text
    escaped = (c.encode("unicode_escape", "surrogatepass").decode() for c in text)
    return "".join(c if c.isprintable() or c in keep else code for c, code in zip(text, escaped, strict=True))


def one_line(text: str) -> str:
    """Escape also newlines and tabs of foreign text."""
    return printable(text, keep="")


class Printable:
    """A text stream that escapes control characters of foreign text, such as file names; see `printable`."""

    def __init__(self, stream: TextIO):
        self.stream = stream

    def write(self, text: str) -> int:
        return self.stream.write(printable(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def first_few(items: Sequence[str], most: int = 5) -> str:
    """Join the first items and add the number of the others."""
    others = f" and {len(items) - most:,} more" if len(items) > most else ""
    return ", ".join(items[:most]) + others


def shown(value: Any) -> str:
    """Format a value for a message: at most 80 characters, without its middle if longer, and visible if empty."""
    if value == "":
        return "''"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Path):
        return str(value)
    text = str(value)
    # note: a path ends with the name that the user looks for
    return text if len(text) <= 80 else f"{text[:37]}...{text[-40:]}"


DONE = 0
FAILED = 1
INTERRUPTED = 130  # Ctrl-C, after a checkpoint: `train resume` continues
TERMINATED = 143  # SIGTERM or SIGUSR1, after a checkpoint: `train resume` continues
CLOSED_PIPE = 141  # the reader of standard output has ended, as `head` does
