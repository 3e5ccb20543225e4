"""Clocks of a run, and its progress on a terminal or without one."""

import io
import re
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from launcher.config.compose import compose
from launcher.records.metrics import StartRecord
from launcher.records.progress import ProgressView, duration
from launcher.records.run_folder import RunFolder
from launcher.training.meters import Stopwatch
from tests.made_runs import evaluation, training, written

CONFIG = compose(["launch=cpu"]).config
START = StartRecord(0, 1e9, 1, 100, 10, "cpu", "float32", "top1", "higher")


def view_on(
    screen: io.StringIO, folder: RunFolder, total_steps: int = 100, epochs: int = 10, **how: Any
) -> ProgressView:
    """Return the progress of a run on a screen without colours."""
    console = Console(file=screen, color_system=None, **how)
    return ProgressView(folder.metrics, CONFIG.task, total_steps=total_steps, epochs=epochs, console=console)


def test_clocks_are_separate_and_continue_after_a_resume() -> None:
    now = [0.0]
    clock = Stopwatch(None, now=lambda: now[0])
    clock.switch("training")
    now[0] = 10
    with clock.counting("evaluation") as spent:
        now[0] = 13
        with clock.counting("saving"):
            now[0] = 14
        assert spent() == 3
    now[0] = 20
    assert clock.state_dict() == {"training": 16, "evaluation": 3, "saving": 1}
    resumed = Stopwatch(None, now=lambda: now[0])
    resumed.load_state_dict(clock.state_dict())
    now[0] = 25
    resumed.switch("training")
    now[0] = 27
    assert resumed.seconds("training") == 18


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_shows_results_and_log_lines(folder: RunFolder, terminal: bool) -> None:
    view = view_on(screen := io.StringIO(), folder, force_terminal=terminal, width=120)
    written(folder, training(10), evaluation(10, 0.25), training(20, float("nan")))
    view.poll()
    view.print("a line [of the log]")
    view.close()
    shown = screen.getvalue()
    assert "epoch 1/10  top-1 25.0%" in shown
    assert "a line [of the log]" in shown


@pytest.mark.parametrize(
    ("width", "gone"),
    [
        (60, ["epoch", "im/s", "loss", "data", "px", "lr"]),
        (80, ["im/s", "loss", "data", "px", "lr"]),
        (120, ["lr"]),
        (140, []),
    ],
)
def test_a_narrow_terminal_keeps_bar_step_and_time_left(folder: RunFolder, width: int, gone: list[str]) -> None:
    written(folder, training(12_340))
    view = view_on(screen := io.StringIO(), folder, 168_750, 270, force_terminal=True, width=width)
    written(folder, training(12_350))
    view.poll()
    view.close()
    line = max(re.sub(r"\x1b\[[0-9?]*[a-zA-Z]|\r", "\n", screen.getvalue()).splitlines(), key=len)
    assert len(line) <= width
    assert f"step 12,350/168,750 ━╸{22 * ' '} " in line
    assert line.rstrip().endswith(" left")
    for fact in ("epoch", "im/s", "loss", "data", "px", "lr"):
        assert (fact in line) == (fact not in gone), line


def test_the_bar_shows_starting_until_the_first_step(folder: RunFolder) -> None:
    view = view_on(screen := io.StringIO(), folder, force_terminal=True, width=80)
    written(folder, START)
    view.poll()
    view.close()
    first, last = screen.getvalue().index("starting"), screen.getvalue().rindex("step 0/100")
    assert first < last
    assert "starting" not in screen.getvalue()[last:]


def test_without_a_terminal_a_line_within_an_epoch_comes_every_half_minute(folder: RunFolder) -> None:
    view = view_on(screen := io.StringIO(), folder, force_terminal=False, width=200)
    seconds = {1: 5, 2: 29, 3: 31, 4: 45, 5: 62}
    rows = [replace(training(step), time=1e9 + time) for step, time in seconds.items()]
    written(folder, START, *rows)
    view.poll()
    lines = screen.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines] == ["step 3/100", "step 5/100"]
    assert all(line.endswith(" left") for line in lines)
    written(folder, replace(evaluation(6, 0.5), time=1e9 + 80), replace(training(7), time=1e9 + 100))
    view.poll()
    assert len(screen.getvalue().splitlines()) == 3


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (59.4, "59 s"), (185, "3 min 05 s"), (7620, "2 h 07 min")])
def test_durations_are_written_in_readable_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text
