"""Show a run on the terminal: log lines, and progress from metrics.jsonl as a live bar or plain lines."""

import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import accumulate, dropwhile, pairwise
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn

from launcher.config.tasks import TaskConfig
from launcher.files.log_lines import append, of_a_rank
from launcher.records.metrics import Row, is_whole, parse_line

_SECONDS_BETWEEN_POLLS = 0.2  # of rank 0's log
_BAR = 24  # columns
_SECONDS = 30.0  # between lines within an epoch, without a terminal


class NewLines:
    """Read the lines appended to a file from now on; `rest` is an incomplete last line."""

    def __init__(self, path: Path):
        self._path, self.rest = path, b""
        self._position = 0
        with suppress(FileNotFoundError):
            self._position = path.stat().st_size

    def read(self) -> list[bytes]:
        """Return the lines appended since the last call; empty for a file that is missing or cannot be read now."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                new = file.read()
        except OSError:
            return []
        self._position += len(new)
        *lines, self.rest = (self.rest + new).split(b"\n")
        return lines


class TerminalView:
    """Print lines without progress, and append them to a log; `shown` is false if another node shows it."""

    shown = True

    def __init__(self, console: Console, log: Path | None = None):
        self._console, self._log = console, log

    def poll(self) -> None: ...

    def print(self, text: str) -> None:
        """Print a text of the launcher."""
        self.relay(text)
        self.log(text)

    def relay(self, line: str) -> None:
        """Print a line of the log."""
        self._console.print(escape(line), highlight=False, soft_wrap=True)

    def log(self, text: str) -> None:
        """Append what the terminal shows to the log."""
        if self._log is not None:
            append(self._log, text.splitlines())

    def close(self) -> None: ...


class LogFollower:
    """Print new lines of a log file and poll the view in a thread, until it is closed.

    It prints no line of the log while `muted`: what a rank logs after a peer has failed would hide the cause.
    """

    def __init__(self, log: Path, view: TerminalView, muted: Callable[[], bool]):
        self._log, self._view, self._muted = NewLines(log), view, muted
        # note: lines wait for one poll, because the watch detects a failed peer after other ranks log its effects
        self._waiting: list[bytes] = []
        self._messages: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="terminal", daemon=True)
        self._thread.start()

    def print(self, line: str) -> None:
        """Print a line of the launcher; safe in a signal handler."""
        self._messages.put(line)

    def skip(self) -> None:
        """Skip the lines that the log has now; called after the ranks have ended and before muting ends."""
        self._messages.put(None)

    def close(self) -> None:
        """Print the remaining lines and close the view."""
        self._done.set()
        self._thread.join()
        with suppress(BrokenPipeError):
            self._poll()
            self._show([*self._waiting, self._log.rest] if self._log.rest else self._waiting)
        self._view.close()

    def _follow(self) -> None:
        # note: a run continues if the reader of its output ends
        with suppress(BrokenPipeError):
            while not self._done.wait(_SECONDS_BETWEEN_POLLS):
                self._poll()

    def _poll(self) -> None:
        while not self._messages.empty():
            if (line := self._messages.get()) is not None:
                self._view.print(line)
            else:
                self._log.read()
                self._waiting, self._log.rest = [], b""
        lines, self._waiting = self._waiting, self._log.read()
        self._show(lines)
        self._view.poll()

    def _show(self, lines: list[bytes]) -> None:
        if not self._muted():
            for line in lines:
                if (text := of_a_rank(line.decode(errors="replace"))) is not None:
                    self._view.relay(text)


class ProgressView(TerminalView):
    """Show new records on each `poll`; lines appear above the bar."""

    def __init__(
        self,
        metrics: Path,
        task: TaskConfig,
        *,
        total_steps: int,
        epochs: int,
        console: Console,
        log: Path | None = None,
    ):
        super().__init__(console, log)
        self._epochs, self._total_steps, self._task = epochs, total_steps, task
        self._metrics = NewLines(metrics)
        self._evaluation_seconds = 0.0
        self._printed = 0.0
        self._live: Progress | None = None
        if console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(_BAR), TextColumn("{task.fields[facts]}"))
            self._live = Progress(*columns, console=console, transient=True)
            self._bar = self._live.add_task("starting", total=total_steps, facts="")

    def poll(self) -> None:
        """Read new records and show them, unless another node does."""
        if not self.shown:
            return
        if self._live is not None:
            self._live.start()
        for row in filter(is_whole, filter(None, map(parse_line, self._metrics.read()))):
            match row["kind"]:
                case "train":
                    self._show_training(row)
                case "eval":
                    self._evaluation_seconds += row["seconds"]
                    loss = float("nan") if row["loss"] is None else row["loss"]
                    metrics, trained = self._task.text(row["metrics"], 1), duration(row["train_seconds"])
                    self.print(f"epoch {row['epoch']:g}/{self._epochs}  {metrics}  loss {loss:.3f}  trained {trained}")
                    self._printed = row["time"]
                case "test":
                    self._evaluation_seconds += row["seconds"]
                    self.print(f"test images: {self._task.text(row['metrics'])}")
                case "resume":
                    self.print(f"resumed at step {row['step']:,} of {self._total_steps:,}")
                    self._begin(row)
                case "start":
                    self._begin(row)

    def close(self) -> None:
        self.poll()
        if self._live is not None:
            self._live.stop()

    def _begin(self, row: Row) -> None:
        """Show that the ranks run their first step."""
        self._printed = row["time"]
        if self._live is not None:
            step = row["step"]
            self._live.update(self._bar, completed=step, description=f"step {step:,}/{self._total_steps:,}")

    def _show_training(self, row: Row) -> None:
        # note: the clock may have been set back since the ranks' last start
        if self._live is None and 0 <= row["time"] - self._printed < _SECONDS:
            return
        spent = row["train_seconds"] + self._evaluation_seconds
        left = (self._total_steps - row["step"]) * spent / max(1, row["step"])
        waiting = row["data_wait_seconds"] / row["step_seconds"] if row["step_seconds"] else 0.0
        step = f"step {row['step']:,}/{self._total_steps:,}"
        facts = [
            f"epoch {row['epoch']:.1f}/{self._epochs}",
            f"{self._task.speed(row['samples_per_second']):,.0f} {self._task.speeds[0]}",
            f"loss {row['loss'] or float('nan'):.3f}",
            f"data {waiting:.0%}",
            f"{row['view']} {self._task.unit}",
            f"lr {row['lr']:.4f}",
        ]
        end = f"{duration(left)} left"
        if self._live is None:
            self._printed = row["time"]
            self.print("  ".join([step, *facts, end]))
            return
        room = self._console.width - len(step) - _BAR - len(end) - 2
        widths = accumulate(len(fact) + 2 for fact in facts)
        fitting = [fact for fact, width in zip(facts, widths, strict=True) if width <= room]
        self._live.update(self._bar, completed=row["step"], description=step, facts="  ".join([*fitting, end]))


def wall_seconds(rows: list[Row]) -> float:
    """Sum the seconds of all attempts, from start or resume to the last record; repeated steps count twice.

    The rows include void ones.
    """
    starts = ("start", "resume")
    pairs = pairwise(dropwhile(lambda row: row["kind"] not in starts, rows))
    return float(sum(max(0, row["time"] - before["time"]) for before, row in pairs if row["kind"] not in starts))


def duration(seconds: float) -> str:
    """Format seconds as 42 s, 3 min 05 s or 2 h 07 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
