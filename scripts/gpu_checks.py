"""Run the checks that need a GPU, and print one line per result. Needs this checkout and its packages.

python scripts/gpu_checks.py [CHECK...] runs the given checks, by default all that this machine supports. --dry runs
them small on the CPU, which shows only that they still run.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch
from torch.autograd import DeviceType
from torch.utils.benchmark import Timer

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from launcher.algorithms.blurpool_layers import binomial_filter, blur  # noqa: E402
from launcher.config.compose import compose  # noqa: E402
from launcher.launch.devices import decide  # noqa: E402
from launcher.launch.prepare_run import planned_here, prepare_run  # noqa: E402
from launcher.rank.group import Ranks, use_device  # noqa: E402
from launcher.training import checkpoint  # noqa: E402
from launcher.training.trainer import Trainer, build_trainer  # noqa: E402
from tests.transforms import operate  # noqa: E402

SHAPES = ["dataset=shapes", "dataset.val_samples=64", "dataset.native_size=32", "model=resnet18", "schedule.warmup=1ba"]
SMALL = [*SHAPES, "dataset.train_samples=32", "dataloader=synthetic", "launch=cpu", "batch_size=2", "epochs=4"]
LARGE = ["dataset=imagenet", "dataset.path=/", "dataloader=synthetic", "batch_size=256"]


@dataclass(frozen=True)
class Machine:
    """The machine of the checks; `dry` runs them small, on the CPU, without other processes."""

    device: torch.device
    gpus: int
    dry: bool
    benchmark_limit: int

    def build(self, *words: str) -> Trainer:
        """Build a run of this device on images of noise, with ImageNet's size and number unless dry."""
        config = compose([*words, *(SMALL if self.dry else LARGE)]).config
        run = build_trainer(config, Ranks(0, 1, 0, 1, self.device))
        torch.backends.cudnn.benchmark_limit = self.benchmark_limit
        return run

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def step(run: Trainer, number: int) -> None:
    """Train step `number` of a run's schedule."""
    epoch, first = run.plan.epoch_steps.place(number)
    images, labels, indices = next(iter(run.loaders.train.epoch(epoch, first)))
    run.train_step(images, labels, indices, run.moment(number))


def gaps(machine: Machine) -> str:
    run, steps = machine.build("recipe=mild" if machine.dry else "recipe=hot"), 1 if machine.dry else 20
    for number in range(steps):
        step(run, number)
    machine.wait()
    with torch.profiler.profile() as profile:
        for number in range(steps, 2 * steps):
            step(run, number)
        machine.wait()
    kind = DeviceType.CUDA if machine.device.type == "cuda" else DeviceType.CPU
    spans = sorted((e.time_range.start, e.time_range.end) for e in profile.events() or [] if e.device_type == kind)
    idle, (first, end) = [], spans[0]
    for start, stop in spans:
        idle.append(max(0.0, start - end))
        end = max(end, stop)
    longest = sorted(idle)[-steps:]
    return (
        f"idle {sum(idle) / (end - first):.1%} of {(end - first) / steps / 1000:.1f} ms a step; "
        f"longest gaps {longest[0]:.0f} to {longest[-1]:.0f} us"
    )


def rotation(machine: Machine) -> str:
    torch.set_float32_matmul_precision("high")
    degrees = torch.linspace(-30, 30, 4 if machine.dry else 256)
    size = [len(degrees), 3, 224, 224]
    pixels = torch.randint(0, 256, size, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    here = operate("rotate", pixels, degrees).float()
    there = operate("rotate", pixels.to(machine.device), degrees.to(machine.device)).cpu().float()
    return f"{(here != there).float().mean():.2%} of values differ, by up to {(here - there).abs().max():.0f} levels"


def deterministic(machine: Machine) -> str:
    ends, steps = [], 2 if machine.dry else 20
    for _ in range(2):
        run = machine.build("recipe=mild", "deterministic=true")
        for number in range(steps):
            step(run, number)
        ends.append([tensor.cpu() for tensor in run.train_step.model.state_dict().values()])
    torch.use_deterministic_algorithms(False)
    differ = sum(not torch.equal(one, other) for one, other in zip(*ends, strict=True))
    assert not differ, f"{differ} of {len(ends[0])} tensors differ after {steps} steps"
    return f"all {len(ends[0])} tensors equal after {steps} steps, twice"


def depthwise(machine: Machine) -> str:
    shape = (2, 64, 14, 14) if machine.dry else (256, 128, 56, 56)
    times = []
    for dtype in (torch.float32, torch.bfloat16):
        for layout in (torch.contiguous_format, torch.channels_last):
            images = torch.rand(shape, device=machine.device, dtype=dtype).contiguous(memory_format=layout)
            kernel = binomial_filter().to(machine.device)
            timer = Timer("blur(images, kernel, 2)", globals={"blur": blur, "images": images, "kernel": kernel})
            seconds = timer.blocked_autorange(min_run_time=0.01 if machine.dry else 1.0).median
            times.append(f"{dtype} {layout} {1000 * seconds:.2f} ms".replace("torch.", ""))
    return ", ".join(times)


def sizes(machine: Machine) -> str:
    run = machine.build("recipe=mild")
    first_steps: dict[int, int] = {}
    for number in range(run.plan.total_steps):
        first_steps.setdefault(run.plan.view(number), number)
    extra = []
    for number in list(first_steps.values())[: 2 if machine.dry else None]:
        seconds = []
        for _ in range(2):
            machine.wait()
            start = time.perf_counter()
            step(run, number)
            machine.wait()
            seconds.append(time.perf_counter() - start)
        extra.append(seconds[0] - seconds[1])
    result = f"{len(first_steps)} sizes, {sum(extra):.1f} s more for the first step of each"
    if machine.device.type != "cuda":
        return result
    reserved, used = torch.cuda.memory_reserved() / 1e9, torch.cuda.max_memory_allocated() / 1e9
    return f"{result}; {reserved:.1f} GB reserved for {used:.1f} GB (benchmark_limit {machine.benchmark_limit})"


def resumed(machine: Machine) -> str:
    words = [
        *("recipe=mild", *SHAPES, f"launch.nproc={machine.gpus}", f"batch_size={32 * machine.gpus}"),
        *(
            f"dataset.train_samples={256 * machine.gpus}",
            "epochs=1",
            "checkpoint.every=2ba",
            "checkpoint.keep=100",
            "deterministic=true",
            "dataloader.workers=1",
        ),
    ]
    if machine.dry:
        return _composed(words)
    with tempfile.TemporaryDirectory() as folder:
        whole, parts = Path(folder, "runs", "whole"), Path(folder, "runs", "parts")
        _train_to_the_end(folder, *words, "run_name=whole")
        shutil.copytree(whole, parts)
        for path in parts.glob("checkpoints/*.pt"):
            if path.stem != "step-00000002":
                path.unlink()
        _train_to_the_end(folder, "resume", str(parts))
        names = sorted(path.name for path in whole.glob("checkpoints/step-*.pt"))
        models = [checkpoint.load(run / "checkpoints" / names[-1])["model"] for run in (whole, parts)]
    differ = sum(not torch.equal(models[0][name], models[1][name]) for name in models[0])
    assert not differ, f"{differ} of {len(models[0])} tensors differ at {names[-1]}"
    return f"all {len(models[0])} tensors equal at {names[-1]} on {machine.gpus} GPUs"


def killed(machine: Machine) -> str:
    words = ["recipe=mild", *SHAPES, "dataset.train_samples=1024", "launch.nproc=2", "batch_size=64"]
    words += ["logger.interval=1ba", "dataloader.workers=1"]
    if machine.dry:
        return _composed(words)
    with tempfile.TemporaryDirectory() as folder:
        process, metrics = _train(folder, *words, "run_name=run"), Path(folder, "runs", "run", "metrics.jsonl")
        while process.poll() is None and not (metrics.exists() and '"step": 20' in metrics.read_text()):
            time.sleep(0.1)
        ranks = [p for p in psutil.Process(process.pid).children() if p.environ().get("RANK") == "1"]
        ranks[0].send_signal(signal.SIGSTOP)
        time.sleep(2)  # note: the other rank now waits in an all-reduce
        ranks[0].kill()
        start = time.monotonic()
        for line in process.stdout or ():
            if "restarting" in line:
                break
        seconds = time.monotonic() - start
        process.communicate()
    assert process.returncode == 0, f"the run ended with exit code {process.returncode}"
    return f"all ranks restarted {seconds:.1f} s after the kill"


def mig(machine: Machine) -> str:
    devices = decide(compose([]).config.launch)
    count = torch.cuda.device_count()
    return f"NVML counts {count}, a run uses {devices}{''.join('; ' + note for note in devices.notes)}"


def context(machine: Machine) -> str:
    """Check in a new process, after the launcher's own steps before its ranks start."""
    code = (
        "import ctypes, json; from launcher.config.compose import compose; from launcher.launch.devices import decide\n"
        "import launcher.launch.elastic\n"
        "devices = decide(compose([]).config.launch)\n"
        "count = devices.processes if devices.kind == 'cuda' else 0\n"
        "held = []\n"
        "for number in range(count):\n"
        "    driver, flags, active = ctypes.CDLL('libcuda.so.1'), ctypes.c_uint(), ctypes.c_int()\n"
        "    driver.cuInit(0)\n"
        "    driver.cuDevicePrimaryCtxGetState(number, ctypes.byref(flags), ctypes.byref(active))\n"
        "    held += [number] * active.value\n"
        "print(json.dumps({'count': count, 'held': held}))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    result = json.loads(done.stdout.splitlines()[-1])
    assert not result["held"], f"the launcher holds a context on GPUs {result['held']}"
    return f"the launcher holds none on {result['count']} GPUs"


@dataclass(frozen=True)
class Check:
    """A check: its question, the number of GPUs that it needs, and the function that returns the result."""

    question: str
    gpus: int
    run: Callable[[Machine], str]


CHECKS = {
    "gaps": Check("how long does the GPU idle after each wait of a step", 1, gaps),
    "rotation": Check("how far are rotated pixels from the CPU's under matmul_precision=high", 1, rotation),
    "deterministic": Check("are 20 deterministic steps the same bits twice", 1, deterministic),
    "blur": Check("what does the depthwise blur cost in bf16, channels last", 1, depthwise),
    "sizes": Check("what do mild's image sizes cost in tuning and reserved memory", 1, sizes),
    "mig": Check("do NVML and CUDA count the same GPUs; with MIG, does a run use one instance", 1, mig),
    "context": Check("does the launcher hold a context on a GPU", 1, context),
    "killed": Check("how soon does a run restart after a rank was killed in an all-reduce", 2, killed),
    "resumed": Check("does a run on all GPUs, resumed from step 2, end with the same bits (NCCL)", 2, resumed),
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the checks that need a GPU.")
    parser.add_argument("checks", nargs="*", metavar="CHECK", help=f"some of {', '.join(CHECKS)} (default: all)")
    parser.add_argument(
        "--dry", action="store_true", help="run the checks small on the CPU, to show that they still run"
    )
    parser.add_argument(
        "--benchmark-limit", type=int, default=10, metavar="N", help="kernels that cuDNN tries per convolution"
    )
    arguments = parser.parse_args()
    if unknown := set(arguments.checks) - CHECKS.keys():
        parser.error(f"no such check: {', '.join(sorted(unknown))}; use {', '.join(CHECKS)}")
    gpus = 0 if arguments.dry else torch.cuda.device_count()
    machine = Machine(use_device("cuda" if gpus else "cpu", 0), gpus or 2, arguments.dry, arguments.benchmark_limit)
    failed = 0
    for name in arguments.checks or CHECKS:
        check = CHECKS[name]
        try:
            result = check.run(machine) if arguments.dry or gpus >= check.gpus else f"needs {check.gpus} GPUs"
        except Exception as error:
            failed, result = failed + 1, f"FAILED: {type(error).__name__}: {error}"
        print(f"{name:14} {check.question}?\n{'':14} {result}", flush=True)
    return 1 if failed else 0


def _train(folder: str, *words: str) -> subprocess.Popen[str]:
    """Start the real command from this checkout."""
    command = [sys.executable, "-m", "launcher", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def _train_to_the_end(folder: str, *words: str) -> None:
    process = _train(folder, *words)
    output, _ = process.communicate()
    assert process.returncode == 0, output[-500:]


def _composed(words: list[str]) -> str:
    composed = compose(words)
    prepare_run(composed, devices=planned_here(composed), must_exist=False)
    return "would run: train " + " ".join(words)


if __name__ == "__main__":
    sys.exit(main())
