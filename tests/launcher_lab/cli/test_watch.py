"""`train watch`: its server, read by an HTTP client and a browser."""

import http.client
import json
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.records.metrics import SLOW_RANK, EvalRecord, WarningRecord
from tests.commands import refused
from tests.made_runs import MakeRun, append, training
from tests.pages import browser
from tests.runs import Cold

EVIL = "<img src=x onerror=alert(1)>"


class Server:
    """`train watch` in a process, and a client."""

    def __init__(self, cold: Cold, *folders: Path):
        self.process = cold.start("watch", *map(str, folders), "--json")
        assert self.process.stdout is not None
        lines = iter(self.process.stdout.readline, "}\n")
        self.document = json.loads("".join(lines) + "}")
        self.port = int(self.document["address"].rstrip("/").rpartition(":")[2])

    def get(self, path: str, **headers: str) -> http.client.HTTPResponse:
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        client.request("GET", path, headers=headers)
        return client.getresponse()

    def runs(self) -> Any:
        return json.loads(self.get("/runs.json").read())


@pytest.fixture
def folders(make_run: MakeRun) -> list[Path]:
    first, second = make_run("first", [0.5, 0.6]), make_run(EVIL, [0.4], [60.0], finished=None)
    # note: a mounted folder may have nothing else
    for path in second.iterdir():
        if path.is_file() and path.name != "metrics.jsonl":
            path.unlink()
    append(second / "metrics.jsonl", training(12, 2.5))
    return [first, second]


@pytest.fixture
def server(cold: Cold, folders: list[Path]) -> Iterator[Server]:
    server = Server(cold, *folders)
    yield server
    if server.process.poll() is None:
        server.process.send_signal(signal.SIGINT)
        server.process.communicate(timeout=60)


def test_the_page_has_the_lines_of_all_runs_and_follows_their_files(server: Server, folders: list[Path]) -> None:
    assert set(server.document) == {"address", "runs"}
    first, second = server.runs()
    assert (first["name"], second["name"]) == ("first", EVIL)
    assert first["state"] == "finished, 2 of 2 epochs on 1 rank, cpu"
    assert second["state"].startswith("running, ")
    lines = {line["title"]: line["points"] for line in second["lines"]}
    assert lines["training loss"] == [[1.2, 2.5]]
    assert lines["samples/s"] == [[1.2, 100.0]]
    assert lines["waiting for data, share"] == [[1.2, pytest.approx(0.1)]]
    assert "GPU memory, GiB" not in lines
    append(folders[1] / "metrics.jsonl", EvalRecord(20, 1e9, 2, {"top1": 0.75}, 1.0, 100, 5.0, 9.0))
    lines = {line["title"]: line["points"] for line in server.runs()[1]["lines"]}
    assert lines["top1"] == [[1, 0.4], [2, 0.75]]
    (folders[1] / "metrics.jsonl").unlink()
    assert server.runs()[1]["state"] == "no records yet"


@pytest.mark.slow
def test_values_of_ranks_are_lines_of_their_own_and_the_highest_is_named(cold: Cold, make_run: MakeRun) -> None:
    run = make_run("several", [0.5], [60.0], finished=None)
    step = replace(training(12), step_seconds=0.5)
    for load in (0.1, 0.2):
        ranks = {"rank_wait_seconds": [0.0, load], "rank_own_seconds": None, "rank_gpu_memory_bytes": [2**30, 2**31]}
        ranks["rank_gpu_use"] = [-1.0, 88.0]
        append(run / "metrics.jsonl", replace(step, **ranks))
    append(run / "metrics.jsonl", step)
    append(run / "metrics.jsonl", WarningRecord(12, 1e9, SLOW_RANK, 1, "b", "rank 1 on b slows all ranks by 40%"))
    append(run / "metrics.jsonl", WarningRecord(12, 1e9, "slow data", 0, "a", "training waits for its data"))
    server = Server(cold, run)
    warnings = ["slow rank: rank 1 on b slows all ranks by 40% (step 12)"]
    warnings.append("slow data: training waits for its data (step 12)")
    assert server.runs()[0]["warnings"] == warnings
    lines = {(line["title"], line.get("rank")): line["points"] for line in server.runs()[0]["lines"]}
    assert lines["waiting for data by rank, share", 1] == [[1.2, 0.2], [1.2, 0.4]]
    assert lines["GPU memory by rank, GiB", 0] == [[1.2, 1.0]] * 2
    assert lines["GPU use by rank, %", 1] == [[1.2, 88.0]] * 2
    assert ("GPU use by rank, %", 0) not in lines, "it is unknown"
    assert not [title for title, _ in lines if "own work" in title]
    chromium = browser()
    chromium.open(server.document["address"])
    titles = chromium.run("""(async () => {
        for (let turn = 0; turn < 100 && !document.querySelector("polyline"); turn++) {
            await new Promise((done) => setTimeout(done, 100));
        }
        return [...document.querySelectorAll("h2, .warning")].map((node) => node.textContent);
    })()""")
    assert [title for title in titles if title in warnings] == warnings
    assert "waiting for data by rank, share; highest: rank 1 with 0.4" in titles
    server.process.send_signal(signal.SIGINT)
    server.process.communicate(timeout=60)


def test_other_names_and_files_are_refused(server: Server) -> None:
    page = server.get("/")
    assert page.status == 200
    assert "script-src 'self'" in str(page.headers["Content-Security-Policy"])
    assert server.get("/", Host="evil.example").status == 403
    assert server.get("/../server.py").status == 404
    assert server.get("/config.yaml").status == 404


@pytest.mark.slow
def test_the_browser_draws_runs_and_shows_names_as_text(server: Server) -> None:
    chromium = browser()
    chromium.open(server.document["address"])
    drawn = """(async () => {
        for (let turn = 0; turn < 100 && !document.querySelector("polyline"); turn++) {
            await new Promise((done) => setTimeout(done, 100));
        }
        return {names: [...document.querySelectorAll("#runs b")].map((node) => node.textContent),
            lines: document.querySelectorAll("section:first-child polyline").length,
            images: document.querySelectorAll("img").length};
    })()"""
    assert chromium.run(drawn) == {"names": ["first", EVIL], "lines": 2, "images": 0}


def test_ctrl_c_ends_it_with_one_line(server: Server) -> None:
    server.process.send_signal(signal.SIGINT)
    _, errors = server.process.communicate(timeout=60)
    assert server.process.returncode == 130
    assert len(errors.splitlines()) == 1


def test_wrong_folders_and_ports_are_refused(tmp_path: Path) -> None:
    assert "is no folder; pass run folders" in refused("watch", str(tmp_path / "missing"))
    assert "--port=70000: must be from 0 to 65,535" in refused("watch", str(tmp_path), "--port", "70000")
