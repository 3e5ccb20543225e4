"""Check in a process that cannot import this project that an exported model computes the same as the run."""

import math
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor, nn

from launcher import randomness
from launcher.config.code import loaded
from launcher.counts import count_of
from launcher.data.batch import Loaded
from launcher.data.loading import EvaluationLoader
from launcher.data.pixel_types import ARRAYS, PixelType
from launcher.errors import UserError
from launcher.plan.plan import Plan
from launcher.tasks import Task
from launcher.training.evaluation import Totals, outside_steps
from launcher.weights.card import ONNX

# Error of an output relative to the largest one of a batch; a ResNet-18 reaches 12 * 2^-24.
_ROUNDING = 64 * 2**-24
# The same for onnxruntime, which sums in another order than torch.
_ONNX_ROUNDING = 1e-4
# Fraction of images whose class may differ from the run's, which may have evaluated in lower precision.
_MOST_DIFFERENT = 0.01
# Levels of 255 by which a pixel may differ.
_ROUNDING_OF_RESIZE = 8
_NOISE = 8
# Outputs of all samples together, for which the check takes minutes.
_MOST_OUTPUTS = 2**30
# Batch sizes that another runtime may treat differently, such as one image without its batch dimension.
_COUNTS = (1, 3)

Compute = Callable[..., tuple[Tensor, Tensor]]

_PROGRAM = """
import pickle, sys
for name in sys.argv[2:]:
    sys.modules[name] = None
sys.path.insert(0, sys.argv[1])
import numpy as np
import model
network = model.load()
while True:
    try:
        inputs, files = pickle.load(sys.stdin.buffer)
    except EOFError:
        break
    logits = np.asarray(model.predict(network, getattr(model, "normalize", np.asarray)(inputs)))
    images = np.stack([model.transform(model.read(file)) for file in files]) if files else np.empty(0)
    pickle.dump((logits, images), sys.stdout.buffer)
    sys.stdout.buffer.flush()
"""


@dataclass(frozen=True)
class ExportCheck:
    """What an export was checked on, such as validation images, their number, and its primary metric; None on noise."""

    on: str
    images: int
    value: float | None


@contextmanager
def _exported_model(path: Path, blocked: Sequence[str]) -> Iterator[Compute]:
    """Yield a function that computes with the exported model, in a separate process."""
    command = [sys.executable, "-c", _PROGRAM, str(path), *blocked]
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, bufsize=-1)
        try:
            yield partial(_computed, process, errors)
        finally:
            process.kill()
            process.communicate()


def _computed(process: Any, errors: IO[bytes], pixels: Tensor, files: Sequence[Path] = ()) -> tuple[Tensor, Tensor]:
    """Return the logits of loaded inputs, and the network's inputs made from the files.

    Raises UserError if the process fails.
    """
    try:
        pickle.dump((pixels.numpy(), [str(file) for file in files]), process.stdin)
        process.stdin.flush()
        logits, inputs = map(torch.from_numpy, pickle.load(process.stdout))
    except (EOFError, BrokenPipeError):
        process.wait()
        errors.seek(0)
        lines = errors.read().decode(errors="replace").strip().splitlines() or ["nothing"]
        remedy = "report this as a bug"
        if loaded():
            remedy = "remove all imports of this project from the file of your network, and from its package"
        message = f"the exported model fails without this project: {lines[-1]}; no file was written; {remedy}"
        raise UserError(message) from None
    return logits, inputs


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

    Both average over mirror images if the run does; an export's `predict` is what is compared.
    network: the one that the run evaluates, float32 on the CPU. Without a loader, noise replaces the images.
    recorded: the run's primary metric, and its number of samples. Samples with many outputs, such as sequences of
    tokens, are not all computed, and then the metric is not compared.

    Raises UserError if outputs differ by more than rounding, or the metric by more than a hundredth.
    """
    images, totals, primary = 0, Totals(task, torch.device("cpu")), plan.config.task.primary
    sample = plan.config.task.sample
    onnx = (path / ONNX).exists()
    of_text = task.values.axes == 1
    blocked = ("launcher", *(("PIL", "torchvision") if of_text else ()), *(("torch", "torchvision") if onnx else ()))
    with _exported_model(path, blocked) as compute:
        for pixels, labels, indices in loader if loader else [_noise(plan, task)]:
            if not images:
                files = own_files(loader, indices, PixelType.of(plan.config.dataset))
                _compare(compute, network.eval(), plan, task, pixels, files, exact=not onnx)
            outputs, _ = compute(pixels)
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


def own_files(loader: EvaluationLoader | None, indices: np.ndarray, pixel_type: PixelType) -> list[Path]:
    """Return the files of the first samples that Pillow and NumPy alone read, none of those in archives."""
    pieces = [loader.reader.piece(int(index)) for index in indices] if loader else []
    files = [Path(piece.file) for piece in pieces if piece is not None and piece.size is None]
    return files if pixel_type.is_rgb or all(file.suffix in ARRAYS for file in files) else []


def _compare(
    compute: Compute,
    network: nn.Module,
    plan: Plan,
    task: Task,
    pixels: Tensor,
    files: list[Path],
    *,
    exact: bool,
) -> None:
    """Compare the logits of a batch and of its first images, and the inputs from its files; `exact` up to rounding."""
    images = task.prepare(outside_steps(pixels)).inputs
    expected = task.forward(network, images)
    whole, inputs = compute(pixels, files)
    for outputs in (whole, *(compute(pixels[:count])[0] for count in _COUNTS)):
        if not agrees(task.raw(outputs), expected, _ROUNDING if exact else _ONNX_ROUNDING):
            raise UserError(
                "the exported model's logits differ from the run's; no file was written; report this as a bug"
            )
    # note: Pillow rounds its resize otherwise than torch, which prepares the run's images
    of_float = float(images.abs().max()) / 255
    rounding = 1 / 255 / min(plan.config.dataset.normalization[1]) if plan.config.dataset.dtype == "uint8" else of_float
    most = _ROUNDING_OF_RESIZE * rounding
    if files and (inputs - images[: len(files)]).abs().max() > most:
        raise UserError("the exported model prepares images differently; no file was written; report this as a bug")


def agrees(outputs: Tensor, expected: Tensor, rounding: float) -> bool:
    """Return whether the outputs of the first images [B, ...] are those expected of all, up to rounding.

    rounding: of the largest output of all images, since a single one may be close to 0.
    """
    most = rounding * expected.abs().max()
    return bool((outputs - expected[: len(outputs)]).abs().max() <= most)


def _noise(plan: Plan, task: Task) -> Loaded:
    """Return random pixels, or tokens."""
    inputs, labels = task.blank(_NOISE, plan.loaded_evaluation_view, torch.device("cpu"))
    most = 256 if task.values.axes == 2 else task.values.outputs(plan.config.dataset)
    random = randomness.generator(plan.config.seed, "export").integers(0, most, inputs.shape)
    return torch.from_numpy(random).to(inputs.dtype), labels, np.arange(_NOISE)
