"""Loader workers of a rank that is signalled and then killed."""

import signal
import subprocess
import sys
import time

import psutil

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
