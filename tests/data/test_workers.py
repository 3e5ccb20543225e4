"""Loader workers of a rank that is signalled, killed or closed, and worker processes that fail."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from multiprocessing import queues
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch

from launcher.data.sampling import Shard
from launcher.data.worker_processes import WorkerProcesses
from launcher.data.workers import in_workers
from launcher.errors import UserError
from tests.data.squares import squares
from tests.runs import wait_for

RANK = """
import time
from torch.utils.data import DataLoader
from launcher.data import worker_processes as workers
if __name__ == "__main__":
    loader = DataLoader(range(100), num_workers=2, persistent_workers=True, worker_init_fn=workers._start_worker,
                        multiprocessing_context=workers.clean_processes())
    iterator = iter(loader)
    next(iterator), next(iterator)  # one from each worker: both have started
    print(*[worker.pid for worker in iterator._workers], flush=True)
    input()
    print(len(list(iterator)), flush=True)
    time.sleep(600)
"""


def test_workers_ignore_stop_signals_and_end_with_their_rank(tmp_path):
    (tmp_path / "rank.py").write_text(RANK)
    rank = subprocess.Popen(
        [sys.executable, str(tmp_path / "rank.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    workers = [psutil.Process(int(word)) for word in rank.stdout.readline().split()]
    assert len(workers) == 2
    server = workers[0].parent()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
        for worker in workers:
            worker.send_signal(number)
    print(file=rank.stdin, flush=True)
    assert rank.stdout.readline() == "98\n"
    rank.kill()
    rank.communicate()
    end = time.monotonic() + 60
    while time.monotonic() < end and any(process.is_running() for process in (*workers, server)):
        time.sleep(0.05)
    assert not any(process.is_running() for process in (*workers, server))


class Silent:
    """Records whose reads leave a file, and never end."""

    def __init__(self, marks):
        self.marks = marks

    labels, folder, decoder = np.zeros(8, np.int64), SimpleNamespace(classes=["a"], are_copied=False, place=""), None

    def __getitems__(self, keys):
        (self.marks / str(os.getpid())).touch()
        time.sleep(600)


def test_loaders_close_soon_however_many_workers_wait_for_a_server(tmp_path, monkeypatch):
    # note: of which torch's loader gives each worker 5 s to end
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 100)
    reader = WorkerProcesses(Silent(tmp_path), Shard(0, 1, 2, 1, torch.device("cpu")))
    reader._requests.batches = [[None]] * 2
    iter(reader._loader)
    wait_for(lambda: len(list(tmp_path.iterdir())) == 2)
    start = time.monotonic()
    reader.close()
    assert time.monotonic() - start < 90


def test_no_thread_of_a_closed_loader_keeps_semaphores(tmp_path, monkeypatch):
    feed, threads = queues.Queue._feed, {*threading.enumerate()}
    monkeypatch.setattr(queues.Queue, "_feed", lambda *arguments: (feed(*arguments), time.sleep(0.5)))
    reader = WorkerProcesses(Silent(tmp_path), Shard(0, 1, 1, 1, torch.device("cpu")))
    reader._requests.batches = [[None]]
    iter(reader._loader)
    assert {*threading.enumerate()} > threads
    reader.close()
    assert {*threading.enumerate()} <= threads


@pytest.mark.parametrize(
    ("numbers", "message"),
    [(range(30), None), (range(50), "thirty"), (range(40, 200), "dataloader.workers=2: a worker process was killed")],
)
def test_results_come_in_order_until_a_worker_process_fails(numbers, message):
    results = []
    with pytest.raises(UserError, match=message) if message else nullcontext():
        results.extend(in_workers(squares, numbers, at_once=4, workers=2))
    assert message or results == [(number, number**2) for number in numbers]
    assert not multiprocessing.active_children()
