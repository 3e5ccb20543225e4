"""Does an exported model compute what the run did? Asked of it in a process where this project is not."""

from __future__ import annotations

import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from launcher import randomness
from launcher.data.batch import Loaded, normalize
from launcher.data.loaders import EvaluationLoader
from launcher.errors import UserError
from launcher.plan.plan import Plan

# Error of a logit as a part of the image's largest one. Measured on ResNet-18, 50 and 152: up to 10 roundings of
# float32, whose sums round too, and up to 1.5 of the shorter formats, which are summed in float32.
ERRORS = {"float32": 64 * 2**-24, "tf32": 4 * 2**-11, "float16": 4 * 2**-11, "bfloat16": 4 * 2**-8}
_NOISE = 8

# Of a logit that onnxruntime computes, which sums in another order than torch.
_ONNX_ERROR = 1e-4
# Batches that another runtime may treat apart, as where one image loses its dimension.
_COUNTS = (1, 3)

_FOLDER = """
sys.path.insert(0, sys.argv[1])
import torch, model
network = model.load()
normalize = lambda pixels: model.normalize(torch.from_numpy(pixels))
transform, predict = model.transform, model.predict
"""
_ONNX = """
sys.modules["torch"] = sys.modules["torchvision"] = None
import json, onnxruntime
said = onnxruntime.InferenceSession(sys.argv[1]).get_modelmeta().custom_metadata_map
use = {"__name__": "use"}
exec("\\n".join(json.loads(said["use"])), use)
network, card = use["load"](sys.argv[1])
normalize, transform = (lambda value, change=use[name]: change(value, card) for name in ("normalize", "transform"))
predict = use["predict"]
"""
_PROGRAM = """
import pickle, sys
sys.modules["launcher"] = None
import numpy as np
from PIL import Image
{load}
while True:
    try:
        pixels, files = pickle.load(sys.stdin.buffer)
    except EOFError:
        break
    read = [np.asarray(transform(Image.open(file))) for file in files]
    answer = np.asarray(predict(network, normalize(pixels))), np.stack(read) if read else np.empty(0)
    pickle.dump(answer, sys.stdout.buffer)
    sys.stdout.buffer.flush()
"""


@dataclass(frozen=True)
class Recorded:
    """An evaluation of the run: its top-1 in [0, 1], its images, and the error of its logits by their format."""

    top1: float
    samples: int
    error: float


@dataclass(frozen=True)
class Checked:
    """What the export was tried on, and its top-1 in [0, 1] there; none of images of noise."""

    on: Literal["validation images", "noise"]
    pictures: int
    top1: float | None


class _Artefact:
    """The exported model in a process of its own; a context."""

    def __init__(self, path: Path):
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        program = _PROGRAM.format(load=_FOLDER if path.is_dir() else _ONNX)
        command = [sys.executable, "-c", program, str(path)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, bufsize=-1
        )

    def __enter__(self) -> _Artefact:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def ask(self, pixels: Tensor, files: Sequence[Path] = ()) -> tuple[Tensor, Tensor]:
        """Logits of uint8 pixels, and what the files become as the network's input.

        Raises:
            UserError: it fails.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            pickle.dump((pixels.numpy(), [str(file) for file in files]), self._process.stdin)
            self._process.stdin.flush()
            logits, read = map(torch.from_numpy, pickle.load(self._process.stdout))
        except (EOFError, BrokenPipeError):
            self._process.wait()
            self._errors.seek(0)
            said = self._errors.read().decode(errors="replace").strip().splitlines() or ["nothing"]
            raise UserError(
                f"the exported model fails where this project is not: {said[-1]}; nothing is kept"
            ) from None
        return logits, read


@torch.inference_mode()
def check_export(
    path: Path,
    network: nn.Module,
    plan: Plan,
    loader: EvaluationLoader | None,
    recorded: Recorded | None,
    report: Callable[[int, int], None],
) -> Checked:
    """Compare an export, a folder or an ONNX file, with the run's network, and on all images with its records.

    network: as the run evaluates, float32 on the CPU. Without a loader, noise takes the place of the images.

    Raises:
        UserError: they differ by more than rounding.
    """
    hits = torch.zeros(3, dtype=torch.int64)
    images = 0
    with _Artefact(path) as artefact:
        for pixels, labels, indices in loader if loader else _noise(plan):
            if not images:
                _compare(artefact, network.eval(), plan, pixels, _files(loader, indices), exact=path.is_dir())
            logits, _ = artefact.ask(pixels)
            hits += _hits(logits, labels, 2 * recorded.error if recorded else 0)
            images += len(labels)
            report(images, plan.config.dataset.val_samples or images)
    if loader is None:
        return Checked("noise", images, None)
    exact, surely, possibly = hits.tolist()
    if recorded and recorded.samples == images and not surely <= round(recorded.top1 * images) <= possibly:
        raise UserError(
            f"the exported model has a top-1 of {exact / images:.2%} on the {images:,} validation images, where "
            f"the run recorded {recorded.top1:.2%}: have they been changed since? Nothing is kept; without images in "
            f"their place only logits are compared, and those agree"
        )
    return Checked("validation images", images, exact / images)


def _files(loader: EvaluationLoader | None, indices: np.ndarray) -> list[Path]:
    found = [loader.file(int(index)) for index in indices] if loader else []
    return [file for file in found if file is not None]


def _compare(
    artefact: _Artefact, network: nn.Module, plan: Plan, pixels: Tensor, files: list[Path], *, exact: bool
) -> None:
    """Logits of a batch and of its first images, and what is made of its files; `exact` but for torch's rounding."""
    dataset = plan.config.dataset
    images = normalize(pixels, dataset.mean, dataset.std, torch.float32)
    ours = network(images)
    if plan.config.image.eval_flip_average:
        ours = (ours + network(images.flip(3))) / 2
    theirs, read = artefact.ask(pixels, files)
    parts = [theirs, *(artefact.ask(pixels[:count])[0] for count in _COUNTS)]
    for found in parts:
        expected = ours[: len(found)]
        # note: of logits that are all small, as of a network that has hardly trained, no less must agree
        most = _ONNX_ERROR * expected.abs().max().clamp(max=1)
        if not (_close(found, expected) if exact else (found - expected).abs().max() <= most):
            raise UserError("the exported model's logits are not those of the run's own network; nothing is kept")
    if files and not _close(read, images[: len(files)], least=1.0):
        raise UserError("the exported model prepares images in another way than the run did; nothing is kept")


def _close(found: Tensor, expected: Tensor, least: float = 0.0) -> bool:
    """Equal but for the rounding of each image's largest number, which counts as `least` at least."""
    largest = expected.abs().flatten(1).amax(1).clamp(min=least)
    return bool(((found - expected).abs().flatten(1).amax(1) <= ERRORS["float32"] * largest).all())


def _hits(logits: Tensor, labels: Tensor, error: float) -> Tensor:
    """Images whose largest logit is the label's: as it is, with certainty, and possibly; int64 [3].

    error: of the difference of two logits, as a part of the image's largest.
    """
    classes = torch.arange(logits.shape[1])
    others = logits.masked_fill(classes == labels[:, None], -torch.inf).amax(1)
    ahead = logits.gather(1, labels[:, None])[:, 0] - others
    slack = error * logits.abs().amax(1)
    return torch.stack([(ahead > 0).sum(), (ahead > slack).sum(), (ahead >= -slack).sum()])


def _noise(plan: Plan) -> list[Loaded]:
    side = plan.image_side(plan.config.image.eval_size)
    random = randomness.generator(plan.config.seed, "export")
    pixels = random.integers(0, 256, (_NOISE, 3, side, side), dtype=np.uint8)
    return [(torch.from_numpy(pixels), torch.zeros(_NOISE, dtype=torch.int64), np.arange(_NOISE))]
