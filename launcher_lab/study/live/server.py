"""A page of running runs: a server on the loopback address, which reads metrics.jsonl and nothing else of a run."""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from launcher.counts import count_of
from launcher.errors import MachineError, UserError
from launcher.records.metrics import Row, read_metrics
from launcher.records.summary import slow_ranks_and_data
from launcher.regular import read_regular

_HERE = Path(__file__).parent
_FILES = {"/": ("page.html", "text/html"), "/page.js": ("page.js", "text/javascript")}
LOOPBACK = "127.0.0.1"
_POLICY = "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'unsafe-inline'"
_MOST_POINTS, _FEWEST_POINTS = 1000, 50  # of a line
_METRICS = "metrics.jsonl"


def server(folders: Sequence[Path], port: int) -> ThreadingHTTPServer:
    """Return a server of the page of run folders, bound to 127.0.0.1; port 0 is any free one.

    Raises OSError if the port is taken.
    """
    runs = _Runs(folders)
    bound = ThreadingHTTPServer((LOOPBACK, port), partial(_Handler, runs))
    bound.daemon_threads = True
    return bound


class _Runs:
    """The lines of each run, read again when its file has changed."""

    def __init__(self, folders: Sequence[Path]):
        self._folders, self._read = folders, dict[Path, tuple[tuple[int, int], dict[str, Any]]]()

    def values(self) -> list[dict[str, Any]]:
        return [self._values(folder) for folder in self._folders]

    def _values(self, folder: Path) -> dict[str, Any]:
        file, name = folder / _METRICS, folder.absolute().name
        try:
            facts = file.stat()
            seen = facts.st_size, facts.st_mtime_ns
            if folder not in self._read or self._read[folder][0] != seen:
                self._read[folder] = seen, lines_of(read_metrics(file))
        except FileNotFoundError:
            return {"name": name, "state": "no records yet", "warnings": [], "lines": []}
        except (UserError, MachineError, OSError) as error:
            return {"name": name, "state": str(error), "warnings": [], "lines": []}
        return {"name": name, **self._read[folder][1]}


def lines_of(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the state of a run, its slow ranks and data, and its lines.

    A line has a `title`, points of (epoch, value), and if it is of one rank its `rank`.
    The metrics are those of the evaluations, as recorded; seconds are shares of the step time; memory is in GiB.
    """
    training, evaluations = ([row for row in rows if row["kind"] == kind] for kind in ("train", "eval"))
    names = dict.fromkeys(name for row in evaluations for name in row["metrics"])
    lines = [_line(name, [(row["epoch"], row["metrics"].get(name)) for row in _thinned(evaluations)]) for name in names]
    columns: dict[str, Callable[[Row], float | None]] = {
        "training loss": lambda row: row["loss"],
        "learning rate": lambda row: row["lr"],
        "samples/s": lambda row: row["samples_per_second"],
        "waiting for data, share": lambda row: _share(row["data_wait_seconds"], row),
        "GPU memory, GiB": lambda row: _gib(row["gpu_memory_bytes"]),
        "GPU use, %": lambda row: row.get("gpu_use"),
    }
    lines += [_line(title, [(row["epoch"], of(row)) for row in _thinned(training)]) for title, of in columns.items()]
    warnings = [f"{name}: {text}" for name, text in slow_ranks_and_data(rows)]
    shown = [line for line in [*lines, *_by_rank(training)] if line["points"]]
    return {"state": _state(rows), "warnings": warnings, "lines": shown}


def _line(title: str, points: Sequence[tuple[float, float | None]], **more: int) -> dict[str, Any]:
    return {"title": title, "points": [point for point in points if point[1] is not None], **more}


def _by_rank(training: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Yield the lines of each rank of a run with several, in fewer points the more ranks there are."""
    columns: dict[str, tuple[str, Callable[[float, Row], float | None]]] = {
        "waiting for data by rank, share": ("rank_wait_seconds", _share),
        "own work by rank, share": ("rank_own_seconds", _share),
        "GPU memory by rank, GiB": ("rank_gpu_memory_bytes", lambda value, row: _gib(value)),
        "GPU use by rank, %": ("rank_gpu_use", lambda value, row: value if value >= 0 else None),
    }
    for title, (field, of) in columns.items():
        known = [row for row in training if _are_numbers(row.get(field))]
        ranks = min((len(row[field]) for row in known), default=0)
        rows = _thinned(known, max(_FEWEST_POINTS, _MOST_POINTS // max(1, ranks)))
        for rank in range(ranks):
            yield _line(title, [(row["epoch"], of(row[field][rank], row)) for row in rows], rank=rank)


def _are_numbers(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) in (int, float) for value in values)


def _share(seconds: float, row: Row) -> float | None:
    return seconds / row["step_seconds"] if row["step_seconds"] > 0 else None


def _gib(number: float | None) -> float | None:
    return None if number is None else number / 2**30


def _thinned(rows: Sequence[Row], most: int = _MOST_POINTS) -> Sequence[Row]:
    """Return at most `most` rows at equal distances, the last one too."""
    stride = 1 + len(rows) // most
    return [row for number, row in enumerate(rows) if (len(rows) - 1 - number) % stride == 0]


def _state(rows: Sequence[Row]) -> str:
    start = next((row for row in rows if row["kind"] == "start"), None)
    if start is None:
        return "no records yet"
    end = next((row for row in rows if row["kind"] == "end"), None)
    done = max((row["epoch"] for row in rows if "epoch" in row), default=0)
    state = "running" if end is None else "finished" if end["finished"] else "stopped"
    length, ranks = count_of(start["epochs"], "epoch"), count_of(start["world_size"], "rank")
    return f"{state}, {done:.4g} of {length} on {ranks}, {start['device']}"


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, runs: _Runs, *arguments: Any):
        self._runs = runs
        super().__init__(*arguments)

    def do_GET(self) -> None:
        # note: a page of another site could reach this server by a name that resolves to the loopback address
        if self.headers.get("Host") not in {f"{name}:{self.server.server_port}" for name in (LOOPBACK, "localhost")}:  # type: ignore[attr-defined]
            self.send_error(403)
        elif self.path == "/runs.json":
            self._send("application/json", json.dumps(self._runs.values(), allow_nan=False).encode())
        elif self.path in _FILES:
            name, kind = _FILES[self.path]
            self._send(f"{kind}; charset=utf-8", read_regular(_HERE / name))
        else:
            self.send_error(404)

    def _send(self, kind: str, content: bytes) -> None:
        self.send_response(200)
        headers = {"Content-Type": kind, "Content-Length": str(len(content)), "Cache-Control": "no-store"}
        for name, value in {**headers, "Content-Security-Policy": _POLICY, "X-Content-Type-Options": "nosniff"}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Print nothing of a request."""
