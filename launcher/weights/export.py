"""`train export`: a checkpoint as a model that needs nothing of this project, checked before it is kept."""

from __future__ import annotations

import io
import json
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from launcher import atomic
from launcher.config.resolved import read
from launcher.data.loaders import EvaluationLoader, build_loaders
from launcher.data.unreadable import read_skipped
from launcher.errors import Problem, UserError
from launcher.models.build import Surgery
from launcher.plan.plan import Plan, plan_for
from launcher.rank.group import alone
from launcher.records.folder import RunFolder
from launcher.records.metrics import Row, read_metrics
from launcher.training.trainer import of_this_run
from launcher.weights.classifier import model_card, saved, trained_network
from launcher.weights.export_check import Checked, check_export
from launcher.weights.export_files import FILES, write_card, write_export

_BATCH = 64
_ONNX_PROGRAM = Path(__file__).with_name("standalone_onnx.py")
# note: protobuf's own bound on one message
_MOST_ONNX_BYTES = 2**31 - 1


@dataclass(frozen=True)
class _Source:
    """What an export is made of and compared with: the run's evaluated network, its card, images and result."""

    plan: Plan
    weights: dict[str, Tensor]
    network: nn.Module
    surgeries: dict[str, Surgery]
    card: dict[str, Any]
    images: EvaluationLoader | None
    recorded: tuple[float, int] | None

    def check(self, path: Path, report: Callable[[int, int], None]) -> Checked:
        """Check what was written, as `check_export`."""
        return check_export(path, self.network, self.plan, self.images, self.recorded, report)


def export_run(folder: RunFolder, output: Path, *, best: bool, report: Callable[[int, int], None]) -> Checked:
    """Write the evaluated weights of the newest or best checkpoint, and what rebuilds the network.

    The files reach `output` only after a process without this project has loaded them and computed the run's logits
    and, where the validation images are present, its top-1. Calls `report` with the images done and their total.

    Raises:
        UserError: the run has no valid checkpoint, the folder cannot be written, or the model differs from the run's.
    """
    with _source(folder, best=best) as source, _staged(output) as staged:
        write_export(source.weights, staged, source.card, source.surgeries)
        checked = source.check(staged, report)
        write_card(staged, source.card | {"checked": vars(checked)})
    return checked


def export_onnx(folder: RunFolder, output: Path, *, best: bool, report: Callable[[int, int], None]) -> Checked:
    """Write one ONNX file, and its card as `output` with `.json`; onnxruntime checks it, without torch.

    Raises:
        UserError: as `export_run`; or the network is larger than an ONNX file may be.
    """
    with _source(folder, best=best) as source:
        card = _onnx_card(source.card)
        try:
            output.parent.mkdir(parents=True, exist_ok=True)
            with atomic.writing(output) as staged:
                write_onnx(source.network.eval(), staged, card)
                checked = source.check(staged, report)
                card |= {"checked": vars(checked)}
                _set_metadata(staged, card)
            atomic.write_text(output.with_name(f"{output.name}.json"), json.dumps(card, indent=2) + "\n")
        except OSError as error:
            raise UserError(f"cannot export to {output}: {error.strerror or error}") from None
    return checked


@contextmanager
def _source(folder: RunFolder, *, best: bool) -> Iterator[_Source]:
    config = read(folder.config)
    if config.task.scores(config.loss) is None:
        raise UserError(
            Problem("its outputs are no scores of classes, which is what an export gives", "task", config.task.name)
        )
    state = saved(folder, best=best)
    plan = plan_for(replace(config, eval_batch_size=_BATCH), 1)
    with of_this_run(state, config):
        network, surgeries = trained_network(plan, state)
    skipped = read_skipped(folder.skipped, config.dataset)
    try:
        loaders = build_loaders(plan, alone(torch.device("cpu")), skipped=skipped)
    except UserError:
        loaders = None
    images = loaders.evaluate if loaders else None
    try:
        card = model_card(plan, state, surgeries, images.reader.classes if images else None)
        recorded = _add_recorded(card, read_metrics(folder.metrics))
        yield _Source(plan, state["weights"], network, surgeries, card, images, recorded)
    finally:
        if loaders:
            loaders.close()


def _add_recorded(card: dict[str, Any], rows: list[Row]) -> tuple[float, int] | None:
    """Add to the card what the run recorded of these weights; returns its top-1, and of how many images."""
    evaluations = [row for row in rows if row["kind"] == "eval" and row["step"] == card["step"]]
    starts = [row for row in rows if row["kind"] == "start"]
    if not evaluations or not starts or "top1" not in evaluations[-1]["metrics"]:
        return None
    row = evaluations[-1]
    card |= {**row["metrics"], "pictures": row["samples"], "precision": starts[-1]["precision"]}
    return row["metrics"]["top1"], row["samples"]


@contextmanager
def _staged(output: Path) -> Iterator[Path]:
    """Yield a folder whose files move to `output` at the end; a failure leaves no file and no new folder.

    Raises:
        UserError: `output` cannot be written.
    """
    made = [path for path in (output, *output.parents) if not path.exists()]
    try:
        output.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".export-", dir=output) as staged:
            yield Path(staged)
            for name in FILES:
                (Path(staged) / name).replace(output / name)
    except BaseException as error:
        for path in made:
            with suppress(OSError):
                path.rmdir()
        if isinstance(error, OSError):
            raise UserError(f"cannot export to {output}: {error.strerror or error}") from None
        raise


class _Evaluated(nn.Module):
    """The network as the run evaluates it: with flip averaging, the mean over an image and its mirror image."""

    def __init__(self, network: nn.Module, flip_average: bool):
        super().__init__()
        self.network, self.flip_average = network, flip_average

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.network(images)
        return (logits + self.network(images.flip(3))) / 2 if self.flip_average else logits


def _onnx_card(card: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's card with an ONNX file's input and output, and the lines of a program that uses it."""
    size, classes = card["input"]["size"], len(card["classes"])
    mirrored = ", the mean over the image and its mirror image" * card["flip_average"]
    return {
        **{name: value for name, value in card.items() if name != "load"},
        "images": f"float32 [batch, 3, {size}, {size}]: RGB, resized, cropped and normalised as `input` says",
        "logits": f"float32 [batch, {classes}]{mirrored}; `scores` of them are the probabilities of `classes`",
        "use": _ONNX_PROGRAM.read_text(encoding="utf-8").splitlines(),
    }


def write_onnx(network: nn.Module, path: Path, card: Mapping[str, Any]) -> None:
    """Write a network in evaluation mode, float32 on the CPU, for batches of any size.

    Raises:
        UserError: it is larger than an ONNX file may be.
    """
    size = sum(tensor.nbytes for tensor in network.state_dict().values())
    if size > _MOST_ONNX_BYTES:
        raise UserError(f"the network has {size / 1e9:.1f} GB of weights, and one ONNX file holds 2.1 GB at most")
    # note: the exporter takes a batch of one for a fixed size
    images = torch.zeros(2, 3, card["input"]["size"], card["input"]["size"])
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            _Evaluated(network, card["flip_average"]).eval(),
            (images,),
            dynamo=True,
            input_names=["images"],
            output_names=["logits"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            verbose=False,
        )
    assert program is not None
    path.write_bytes(program.model_proto.SerializeToString())
    _set_metadata(path, card)


def _set_metadata(path: Path, card: Mapping[str, Any]) -> None:
    """Write or replace an ONNX file's metadata: each of the card's values as JSON."""
    import onnx

    model = onnx.load(path)
    onnx.helper.set_model_props(model, {name: json.dumps(value) for name, value in card.items()})
    path.write_bytes(model.SerializeToString())
