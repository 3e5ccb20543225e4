"""A page of running runs: a server on the loopback address, which reads metrics.jsonl and nothing else of a run."""

import json
from collections.abc import Sequence
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from launcher.counts import count_of
from launcher.errors import MachineError, UserError
from launcher.records.metrics import Row, read_metrics
from launcher.regular import read_regular

_HERE = Path(__file__).parent
_FILES = {"/": ("page.html", "text/html"), "/page.js": ("page.js", "text/javascript")}
LOOPBACK = "127.0.0.1"
_POLICY = "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'unsafe-inline'"
_MOST_POINTS = 1000  # of a line
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
            return {"name": name, "state": "no records yet", "lines": []}
        except (UserError, MachineError, OSError) as error:
            return {"name": name, "state": str(error), "lines": []}
        return {"name": name, **self._read[folder][1]}


def lines_of(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the state of a run and its lines: `title` and points of (epoch, value).

    The metrics are those of the evaluations, as recorded; waits for data are shares of the step time; memory is in GiB.
    """
    training = _thinned([row for row in rows if row["kind"] == "train"])
    evaluations = _thinned([row for row in rows if row["kind"] == "eval"])
    names = dict.fromkeys(name for row in evaluations for name in row["metrics"])
    lines = [(name, [(row["epoch"], row["metrics"].get(name)) for row in evaluations]) for name in names]
    columns = {
        "training loss": [row["loss"] for row in training],
        "learning rate": [row["lr"] for row in training],
        "samples/s": [row["images_per_second"] for row in training],
        "waiting for data, share": [
            row["data_wait_seconds"] / row["step_seconds"] if row["step_seconds"] > 0 else None for row in training
        ],
        "GPU memory, GiB": [row["gpu_memory_bytes"] and row["gpu_memory_bytes"] / 2**30 for row in training],
    }
    epochs = [row["epoch"] for row in training]
    lines += [(title, list(zip(epochs, values, strict=True))) for title, values in columns.items()]
    drawn = ((title, [point for point in points if point[1] is not None]) for title, points in lines)
    return {"state": _state(rows), "lines": [{"title": title, "points": points} for title, points in drawn if points]}


def _thinned(rows: Sequence[Row]) -> Sequence[Row]:
    """Return at most `_MOST_POINTS` rows at equal distances, the last one too."""
    stride = 1 + len(rows) // _MOST_POINTS
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
