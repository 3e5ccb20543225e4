"""Where the command prints."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import TextIO, cast

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from launcher.errors import one_line

_WIDTH_OF_A_PIPE = 200


def console(file: TextIO | None = None) -> Console:
    """The terminal as wide as it is; a pipe or file so wide that tables do not fold, its lines ending with a word.

    file: standard output where none is given. Under NO_COLOR no escape sequence is written, so no live bar either.
    """
    file = file or sys.stdout
    if file.isatty():
        plain = False if os.environ.get("NO_COLOR") else None
        return Console(file=file, highlight=False, force_terminal=plain)
    return Console(file=cast(TextIO, _Trimmed(file)), highlight=False, soft_wrap=True, width=_WIDTH_OF_A_PIPE)


def verbatim(text: object) -> str:
    """A text from a file or a name, as it is: no markup of rich's, no control of the terminal."""
    return escape(one_line(str(text)))


def csv_cell(text: str) -> str:
    """A text as a cell of a CSV file: no control of the terminal, and no formula of a spreadsheet."""
    cell = one_line(text)
    return f"'{cell}" if cell.startswith(("=", "+", "-", "@")) else cell


def table(*columns: str, numbers: Collection[str] = (), rows: Iterable[Iterable[str]] = ()) -> Table:
    """A table without lines; `numbers` are the columns that are aligned at the right. Texts are rich's markup."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, justify="right" if column in numbers else "left")
    for row in rows:
        made.add_row(*row)
    return made


def facts(rows: Iterable[tuple[str, ...]]) -> Table:
    """A table of lines that begin with what they are about."""
    made = Table(box=None, pad_edge=False, show_header=False)
    for name, *values in rows:
        made.add_row(f"[bold]{name}[/]", *map(verbatim, values))
    return made


@contextmanager
def progress_bars(out: Console) -> Iterator[tuple[Console, Callable[[str, int, int], None]]]:
    """A bar for each thing that is told (what is done, how much of it, out of how much); none are left at the end.

    Where the console is no terminal there are none.

    What is printed meanwhile goes to the console given with it.
    """
    percentage = TextColumn("{task.percentage:3.0f}%")
    columns = (TextColumn("{task.description}"), BarColumn(), percentage, TimeRemainingColumn())
    with Progress(*columns, console=out, transient=True, disable=not out.is_terminal) as progress:
        bars: dict[str, TaskID] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in bars:
                bars[what] = progress.add_task(what, total=total)
            progress.update(bars[what], completed=done)

        yield progress.console, report


class _Trimmed(io.TextIOBase):
    """Writes to a file what is given without the spaces that fill up a table's last column."""

    def __init__(self, file: TextIO):
        self._file = file

    def write(self, text: str) -> int:
        return self._file.write(re.sub(r" +(?=\n)", "", text))

    def flush(self) -> None:
        self._file.flush()
