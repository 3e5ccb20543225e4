"""The console, tables and progress bars of a command."""

import io
import json
import math
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stdout
from typing import Any, TextIO, cast

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from launcher.errors import Printable, one_line, printable

_WIDTH_OF_A_PIPE = 2000


def console(file: TextIO | None = None) -> Console:
    """Return a console: the terminal at its own width; a pipe or file so wide that tables do not wrap.

    file: standard output if None. NO_COLOR disables escape sequences, and thus progress bars.
    """
    file = file or sys.stdout
    # note: rich's own escape sequences must stay
    file = file.stream if isinstance(file, Printable) else file
    if file.isatty():
        colours = False if os.environ.get("NO_COLOR") else None
        return _Console(file=file, highlight=False, force_terminal=colours)
    return _Console(file=cast(TextIO, _Trimmed(file)), highlight=False, soft_wrap=True, width=_WIDTH_OF_A_PIPE)


class _Console(Console):
    """Escape control characters of foreign text in every line and cell."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # note: rich would exit with code 1


def print_json(value: object, indent: int | None = 2) -> None:
    """Print one JSON document on standard output; numbers that are not finite are null, paths and other types texts."""
    print(json.dumps(_plain(value), indent=indent, allow_nan=False, default=str))


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def only_json(is_json: bool) -> Iterator[None]:
    """Print all other output on standard error meanwhile, if standard output is for one JSON document."""
    with redirect_stdout(sys.stderr) if is_json else nullcontext():
        yield


def for_programs() -> int | None:
    """Return the standard output of a program that starts now: standard error in `only_json`, else None."""
    return 2 if sys.stdout is sys.stderr else None


def verbatim(text: object) -> str:
    """Escape rich's markup and control characters in a text."""
    return escape(one_line(str(text)))


_NUMBER = re.compile(r"[-+][0-9]+(\.[0-9]+)?")


def csv_cell(text: str) -> str:
    """Escape spreadsheet formulas and invalid bytes in a cell of a CSV file; other names stay as they are."""
    cell = text.encode("utf-8", "backslashreplace").decode()
    is_formula = cell.startswith(("=", "+", "-", "@")) and not _NUMBER.fullmatch(cell)
    return f"'{cell}" if is_formula else cell


def table(*columns: str, numbers: Collection[str] = (), rows: Iterable[Iterable[str]] = ()) -> Table:
    """Build a table without rules; `numbers` are the right-aligned columns. Texts are rich's markup."""
    result = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        result.add_column(column, justify="right" if column in numbers else "left")
    for row in rows:
        result.add_row(*row)
    return result


def facts(rows: Iterable[tuple[str, ...]]) -> Table:
    """Build a table of rows with a bold first cell."""
    result = Table(box=None, pad_edge=False, show_header=False)
    for name, *values in rows:
        result.add_row(f"[bold]{name}[/]", *map(verbatim, values))
    return result


def plain(table: Table) -> str:
    """Return a table as text."""
    text = io.StringIO()
    console(text).print(table)
    return text.getvalue()


@contextmanager
def progress_bars(out: Console) -> Iterator[tuple[Console, Callable[[str, int, int], None]]]:
    """Yield a console to print to meanwhile, and a function to report (task, done, total), which draws a bar per task.

    The bars disappear at the end; only a terminal shows them.
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
    """Write to a file without the trailing spaces of a table's last column."""

    def __init__(self, file: TextIO):
        self._file = file

    def write(self, text: str) -> int:
        return self._file.write(re.sub(r" +(?=\n)", "", text))

    def flush(self) -> None:
        self._file.flush()
