"""The MLflow logger against a real server on this machine: its records, a resumed run, and a server that stops."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from launcher.config.compose import compose
from launcher.config.layers import leaves
from launcher.config.resolved import as_mapping
from launcher.records.metrics import ResumeRecord
from launcher.records.run_folder import create
from tests.made_runs import end, evaluation, log
from tests.runs import Train

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(find_spec("mlflow") is None, reason="mlflow is not installed"),
    pytest.mark.skipif(find_spec("flask") is None, reason="mlflow's server is not installed"),
]
_START_SECONDS = 120


@dataclass
class Server:
    """`mlflow server` with a database in a folder, on a free port."""

    process: subprocess.Popen[bytes]
    uri: str

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)

    def client(self) -> Any:
        # note: its import takes a second and 50 MB in each process that collects tests
        import mlflow

        return mlflow.MlflowClient(self.uri)

    def runs(self, experiment: str) -> list[Any]:
        client = self.client()
        stored = client.get_experiment_by_name(experiment)
        return list(client.search_runs([stored.experiment_id])) if stored else []

    def points(self, run: Any, name: str) -> list[tuple[int, float]]:
        history = self.client().get_metric_history(run.info.run_id, name)
        return sorted((point.step, point.value) for point in history)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("mlflow")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder / 'runs.db'}", "--default-artifact-root", str(folder)]
    quiet = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env={**os.environ, **quiet}, stdout=log, stderr=log)
    server = Server(process, f"http://127.0.0.1:{port}")
    try:
        _wait(server, folder / "log")
        yield server
    finally:
        server.stop()


def _wait(server: Server, log: Path) -> None:
    end = time.monotonic() + _START_SECONDS
    while True:
        try:
            with urllib.request.urlopen(f"{server.uri}/health", timeout=5):
                return
        except OSError:
            assert server.process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.1)


def test_the_server_gets_all_values_and_a_resume_continues_the_run(server: Server, tmp_path: Path) -> None:
    words = ["logger=mlflow", f"logger.uri={server.uri}", "logger.experiment=mine", "recipe=hot", "seed=7"]
    folder = create(tmp_path, "run", unique=False)
    parts = ([evaluation(10, 0.25), evaluation(20, 0.5), end(20, finished=False)],
             [ResumeRecord(10, 1e9, 1), evaluation(20, 0.75), evaluation(30, 0.625), end(30)])  # fmt: skip
    for records, more, status in zip(parts, ([], ["eval_every=2ep"]), ("KILLED", "FINISHED"), strict=True):
        log(folder, compose([*words, *more]).config, *records)
        (run,) = server.runs("mine")
        assert run.info.status == status
    values = dict(leaves(as_mapping(compose(words).config)))
    assert run.data.params.keys() == values.keys()
    assert (run.data.params["algorithms.sam.interval"], run.data.params["recipe"]) == ("5", "hot")
    assert (run.data.params["eval_every"], run.data.params["target"]) == ("1ep", "null")
    assert {name: run.data.tags[name] for name in ("recipe", "seed")} == {"recipe": "hot", "seed": "7"}
    assert run.info.run_name == "run"
    assert server.points(run, "eval/top1") == [(10, 0.25), (20, 0.5), (20, 0.75), (30, 0.625)]
    assert (run.data.metrics["end/top1"], run.data.metrics["end/best_top1"]) == (0.625, 0.75)


def test_a_run_of_two_ranks_is_one_run_on_the_server(server: Server, tmp_path: Path) -> None:
    small = ["recipe=mild", "epochs=1", "schedule.warmup=0ba", "batch_size=16", "eval_batch_size=16", "launch=cpu"]
    small += ["model=resnet18", "dataset=shapes", "dataset.train_samples=48", "dataset.val_samples=20"]
    small += ["dataset.native_size=32", "dataloader=synthetic", "launch.nproc=2", "run_name=small"]
    words = [*small, "logger=mlflow", f"logger.uri={server.uri}", "logger.interval=1ba", "logger.experiment=ranks"]
    assert "warning" not in Train(tmp_path)(*words).stdout
    from launcher.records.metrics import read_metrics

    rows = read_metrics(tmp_path / "runs/small/metrics.jsonl")
    (run,) = server.runs("ranks")
    assert run.info.status == "FINISHED"
    losses = [(row["step"], row["loss"]) for row in rows if row["kind"] == "train"]
    accuracies = [(row["step"], row["metrics"]["top1"]) for row in rows if row["kind"] == "eval"]
    assert (server.points(run, "train/loss"), server.points(run, "eval/top1")) == (losses, accuracies)
