"""Output on a terminal, with NO_COLOR, and in a pipe."""

import io
from pathlib import Path
from types import MappingProxyType

import pytest
from rich.table import Table

from launcher.console import console, print_json


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def table() -> Table:
    result = Table("name", "what it is", box=None)
    result.add_row("mild", "[bold]short[/] runs")
    result.add_row("hot", "long")
    return result


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.delenv("NO_COLOR", raising=False)


def test_a_pipe_gets_lines_without_trailing_spaces() -> None:
    pipe = io.StringIO()
    console(pipe).print(table())
    console(pipe).print("a  b", "c", sep="  ", end="  ")
    assert pipe.getvalue() == " name  what it is\n mild  short runs\n hot   long\na  b  c  "


def test_every_mapping_and_number_becomes_json(capsys: pytest.CaptureFixture[str]) -> None:
    print_json(MappingProxyType({1: [float("nan"), (float("inf"), 2.0)], "path": Path("a")}), indent=None)
    assert capsys.readouterr().out == '{"1": [null, [null, 2.0]], "path": "a"}\n'


def test_a_terminal_gets_bold_text_and_no_color_disables_it(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    console(terminal).print(table())
    assert "\x1b[1m" in terminal.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    plain = Terminal()
    console(plain).print(table(), style="red")
    assert "\x1b" not in plain.getvalue()


def test_a_narrow_terminal_breaks_notes_at_words() -> None:
    terminal = Terminal()
    note = "note: the average of the weights lags behind a short run; shorten its half-life, or set algorithms.ema=off"
    console(terminal).print(note, markup=False)
    lines = terminal.getvalue().splitlines()
    assert max(map(len, lines)) <= 60
    assert " ".join(line.strip() for line in lines) == note
