"""The real command on several GPUs: a lost rank, a resumed run, and a launcher that itself holds no GPU."""

import json
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch

from launcher.config.compose import compose
from launcher.launch.devices import decide
from launcher.records.metrics import read_metrics
from tests.runs import SHAPES, Cold, ranks_of, same, steps_done, wait_for

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("device")]

SEVERAL = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="no GPU; needs two of them")
WORDS = [
    *("recipe=mild", *(word for word in SHAPES if not word.startswith("launch")), "schedule.warmup=1ba"),
    *("dataloader.workers=1", "deterministic=true", "checkpoint.every=2ba", "checkpoint.keep=100"),
]


def test_the_launcher_holds_no_context() -> None:
    """Look in a new process, after the launcher's own steps before its ranks start."""
    code = (
        "import ctypes, json, launcher.launch.elastic\n"
        "from launcher.config.compose import compose\n"
        "from launcher.launch.devices import decide\n"
        "devices, held = decide(compose([]).config.launch), []\n"
        "for number in range(devices.processes if devices.kind == 'cuda' else 0):\n"
        "    driver, flags, active = ctypes.CDLL('libcuda.so.1'), ctypes.c_uint(), ctypes.c_int()\n"
        "    driver.cuInit(0)\n"
        "    driver.cuDevicePrimaryCtxGetState(number, ctypes.byref(flags), ctypes.byref(active))\n"
        "    held.append(active.value)\n"
        "print(json.dumps(held))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    devices = decide(compose([]).config.launch)
    assert json.loads(done.stdout) == [0] * (devices.processes if devices.kind == "cuda" else 0)


@SEVERAL
def test_captured_all_reduces_compute_what_eager_ones_do(train: Cold) -> None:
    count = torch.cuda.device_count()
    words = [*WORDS, f"launch.nproc={count}", "dataset.train_samples=6400", "batch_size=64", "logger.interval=10ba"]
    losses = []
    for graphs in ("require", "off"):
        output = train(*words, f"cuda_graphs={graphs}", f"run_name={graphs}").stdout
        assert ("replayed in" in output) == (graphs == "require")
        rows = read_metrics(train.folder / "runs" / graphs / "metrics.jsonl")
        losses.append([row["loss"] for row in rows if row["kind"] == "train"])
    assert len(losses[0]) == 10
    # note: sums of several GPUs round differently in another order
    assert losses[0] == pytest.approx(losses[1], rel=1e-2)


@SEVERAL
@pytest.mark.parametrize("graphs", ["off", "require"])
def test_several_gpus_restart_after_a_rank_is_killed_in_an_all_reduce(train: Cold, graphs: str) -> None:
    words = [*WORDS, "launch.nproc=2", "dataset.train_samples=1024", "logger.interval=1ba", f"cuda_graphs={graphs}"]
    process, run = train.start(*words, "run_name=run", stderr=subprocess.STDOUT), train.folder / "runs" / "run"
    wait_for(lambda: process.poll() is not None or steps_done(run) >= 20)
    rank = ranks_of(run)[1]
    rank.send_signal(signal.SIGSTOP)
    time.sleep(2)  # note: the other rank now waits in an all-reduce
    rank.kill()
    output, _ = process.communicate(timeout=140)
    assert process.returncode == 0, output[-3000:]
    assert "restarting from the newest checkpoint" in output


@SEVERAL
def test_several_gpus_resume_to_the_same_bits(train: Cold) -> None:
    words = [*WORDS, f"launch.nproc={torch.cuda.device_count()}", "dataset.train_samples=256"]
    train(*words, "run_name=whole")
    whole, parts = (train.folder / "runs" / name for name in ("whole", "parts"))
    shutil.copytree(whole, parts)
    for path in parts.glob("checkpoints/*.pt"):
        if path.stem != "step-00000002":
            path.unlink()
    train("resume", str(parts))
    assert same(train.decided(parts), train.decided(whole))
