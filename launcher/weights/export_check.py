"""Check that the files of an export compute the same as the run; an ONNX program in a process without this project."""

import math
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor, nn

from launcher.compute import randomness
from launcher.counts import count_of
from launcher.data.batch import Loaded
from launcher.data.loading import EvaluationLoader
from launcher.errors import UserError
from launcher.plan.plan import Plan
from launcher.tasks import Task
from launcher.training.evaluation import Totals, outside_steps
from launcher.weights.card import ONNX
from launcher.weights.onnx_program import ExportGraph
from launcher.weights.trained_model import exported_model

# Error of an output relative to the largest one of a batch: onnxruntime sums in another order than torch.
_ROUNDING = 1e-4
# Fraction of images whose class may differ from the run's, which may have evaluated in lower precision.
_MOST_DIFFERENT = 0.01
_NOISE = 8
# Outputs of all samples together, for which the check takes minutes.
_MOST_OUTPUTS = 2**30
# Batch sizes that another runtime may treat differently, such as one image without its batch dimension.
_COUNTS = (1, 2)

Compute = Callable[[Tensor], Tensor]

_PROGRAM = """
import pickle, sys
for name in ("launcher", "torch", "torchvision"):
    sys.modules[name] = None
import onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
while True:
    try:
        inputs = pickle.load(sys.stdin.buffer)
    except EOFError:
        break
    pickle.dump(session.run(None, {session.get_inputs()[0].name: inputs})[0], sys.stdout.buffer)
    sys.stdout.buffer.flush()
"""


@dataclass(frozen=True)
class ExportCheck:
    """What an export was checked on, such as validation images, their number, and its primary metric; None on noise."""

    on: str
    images: int
    value: float | None


@contextmanager
def _exported_model(path: Path, task: Task) -> Iterator[Compute]:
    """Yield a function from inputs as loaded to the outputs of the exported files."""
    if not (path / ONNX).exists():
        yield ExportGraph(exported_model(path, "cpu").network, task)
        return
    command = [sys.executable, "-c", _PROGRAM, str(path / ONNX)]
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, bufsize=-1)
        try:
            yield partial(_computed, process, errors)
        finally:
            process.kill()
            process.communicate()


def _computed(process: Any, errors: IO[bytes], inputs: Tensor) -> Tensor:
    """Return the outputs of an ONNX program; raises UserError if its process fails."""
    try:
        pickle.dump(inputs.numpy(), process.stdin)
        process.stdin.flush()
        return torch.from_numpy(pickle.load(process.stdout))
    except (EOFError, BrokenPipeError):
        process.wait()
        errors.seek(0)
        lines = errors.read().decode(errors="replace").strip().splitlines() or ["nothing"]
        message = f"the exported model fails without this project: {lines[-1]}; no file was written"
        raise UserError(f"{message}; report this as a bug") from None


@torch.inference_mode()
def check_export(
    path: Path,
    network: nn.Module,
    plan: Plan,
    task: Task,
    loader: EvaluationLoader | None,
    recorded: tuple[float, int] | None,
    report: Callable[[int, int], None],
) -> ExportCheck:
    """Compare the outputs of an export or ONNX file with those of the run's network, and its metric with the recorded.

    network: the one that the run evaluates, float32 on the CPU. Without a loader, noise replaces the images.
    recorded: the run's primary metric, and its number of samples. Samples with many outputs, such as sequences of
    tokens, are not all computed, and then the metric is not compared.

    Raises UserError if outputs differ by more than rounding, or the metric by more than a hundredth.
    """
    images, totals, primary = 0, Totals(task, torch.device("cpu")), plan.config.task.primary
    sample = plan.config.task.sample
    with _exported_model(path, task) as compute:
        for pixels, labels, _ in loader if loader else [_noise(plan, task)]:
            if not images:
                _compare(compute, network, task, pixels)
            outputs = compute(pixels)
            if loader is not None:
                totals.add(task.raw(outputs), task.targets(labels))
            images += len(pixels)
            report(images, plan.config.dataset.val_samples or images)
            if images * math.prod(outputs.shape[1:]) > _MOST_OUTPUTS:
                break
    if loader is None:
        return ExportCheck("noise", images, None)
    result = totals.over_ranks()
    assert result is not None
    value = result.metrics[primary.name]
    before, samples = recorded or (value, images)
    most = max(_MOST_DIFFERENT, 1.01 / images) * (1 if primary.is_share else abs(before))
    if samples == images and abs(value - before) > most:
        of_all = f"{primary.title} {primary.text(value)} on the {count_of(images, f'validation {sample}')}"
        raise UserError(
            f"the exported model has {of_all}, but "
            f"the run recorded {primary.text(before)}; no file was written; if the {sample}s have changed, "
            "restore them or move them away to compare only logits, which are equal"
        )
    return ExportCheck(f"validation {sample}s", images, value)


def _compare(compute: Compute, network: nn.Module, task: Task, inputs: Tensor) -> None:
    """Compare the logits of a batch and of its first inputs."""
    expected = task.forward(network, task.prepare(outside_steps(inputs)).inputs)
    for outputs in (compute(inputs), *(compute(inputs[:count]) for count in _COUNTS)):
        if not agrees(task.raw(outputs), expected, _ROUNDING):
            raise UserError(
                "the exported model's logits differ from the run's; no file was written; report this as a bug"
            )


def agrees(outputs: Tensor, expected: Tensor, rounding: float) -> bool:
    """Return whether the outputs of the first images [B, ...] are those expected of all, up to rounding.

    rounding: of the largest output of all images, since a single one may be close to 0.
    """
    most = rounding * expected.abs().max()
    return bool((outputs - expected[: len(outputs)]).abs().max() <= most)


def _noise(plan: Plan, task: Task) -> Loaded:
    """Return random pixels, or tokens."""
    inputs, labels = task.blank(_NOISE, plan.loaded_evaluation_size, torch.device("cpu"))
    most = 256 if task.axes == 2 else task.outputs(plan.config.dataset)
    random = randomness.generator(plan.config.seed, "export").integers(0, most, inputs.shape)
    return torch.from_numpy(random).to(inputs.dtype), labels, np.arange(_NOISE)
