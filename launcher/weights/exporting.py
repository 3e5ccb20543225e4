"""A run's newest or best checkpoint as a model that needs nothing of this project, checked before it is kept."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from launcher import atomic
from launcher.config.resolved import read
from launcher.data.loaders import EvaluationLoader, Loaders, build_loaders
from launcher.data.unreadable import read_left_out
from launcher.errors import UserError
from launcher.models.surgery import Surgery
from launcher.plan.plan import Plan, plan_for
from launcher.records.folder import RunFolder
from launcher.records.metrics import Row, read_metrics
from launcher.training.trainer import of_this_run
from launcher.weights.classifier import model_card, trained_network
from launcher.weights.evaluate_run import saved
from launcher.weights.export import FILES, write_card, write_export
from launcher.weights.export_check import ERRORS, Checked, Recorded, check_export
from launcher.weights.onnx_file import note_card, onnx_card, write_onnx

_BATCH = 64


@dataclass(frozen=True)
class _Source:
    """What an export is made of and held against: the run's evaluated network, its card, pictures and result."""

    plan: Plan
    weights: dict[str, Tensor]
    network: nn.Module
    surgeries: dict[str, Surgery]
    card: dict[str, Any]
    pictures: EvaluationLoader | None
    recorded: Recorded | None

    def check(self, path: Path, report: Callable[[int, int], None]) -> Checked:
        """As `check_export`."""
        return check_export(path, self.network, self.plan, self.pictures, self.recorded, report)


def export_run(folder: RunFolder, output: Path, *, best: bool, report: Callable[[int, int], None]) -> Checked:
    """Write the newest or best checkpoint's averaged weights, or the model's own, and what rebuilds the network.

    Files come into `output` only after they have been loaded in a process without this project, and have given there
    the run's logits, and its top-1 on the validation pictures where these are at hand. `report` is told of the
    pictures done and of all.

    Raises:
        UserError: the run has no valid checkpoint, the folder cannot be written, or the model differs from the run's.
    """
    with _source(folder, best=best) as source, _staged(output) as staged:
        write_export(source.weights, staged, source.card, source.surgeries)
        checked = source.check(staged, report)
        write_card(staged, source.card | {"checked": vars(checked)})
    return checked


def export_onnx(folder: RunFolder, output: Path, *, best: bool, report: Callable[[int, int], None]) -> Checked:
    """The same as one ONNX file, and its card beside: `output` with `.json`; tried by onnxruntime, without torch.

    Raises:
        UserError: as `export_run`; or the network is larger than an ONNX file may be.
    """
    with _source(folder, best=best) as source:
        card = onnx_card(source.card)
        try:
            output.parent.mkdir(parents=True, exist_ok=True)
            with atomic.writing(output) as staged:
                write_onnx(source.network.eval(), staged, card)
                checked = source.check(staged, report)
                card |= {"checked": vars(checked)}
                note_card(staged, card)
            atomic.write_text(output.with_name(f"{output.name}.json"), json.dumps(card, indent=2) + "\n")
        except OSError as error:
            raise UserError(f"cannot export to {output}: {error.strerror or error}") from None
    return checked


@contextmanager
def _source(folder: RunFolder, *, best: bool) -> Iterator[_Source]:
    config = read(folder.config)
    state = saved(folder, best=best)
    plan = plan_for(replace(config, eval_batch_size=_BATCH), 1)
    with of_this_run(state, config):
        network, surgeries = trained_network(plan, state)
    loaders = _loaders(plan, read_left_out(folder.left_out, config.dataset))
    try:
        card = model_card(plan, state, surgeries, loaders.evaluate.classes if loaders else None)
        recorded = _recorded(card, read_metrics(folder.metrics))
        pictures = loaders.evaluate if loaders else None
        yield _Source(plan, state["weights"], network, surgeries, card, pictures, recorded)
    finally:
        if loaders:
            loaders.close()


def _loaders(plan: Plan, left_out: Collection[str]) -> Loaders | None:
    """The run's pictures, as its loader gives them, if they are here."""
    try:
        return build_loaders(
            plan,
            rank=0,
            world_size=1,
            local_world_size=1,
            device=torch.device("cpu"),
            change_order=None,
            change_image=None,
            left_out=left_out,
        )
    except UserError:
        return None


def _recorded(card: dict[str, Any], rows: list[Row]) -> Recorded | None:
    """What the run recorded of these weights, which goes into the card too."""
    found = [row for row in rows if row["kind"] == "eval" and row["step"] == card["step"]]
    started = [row for row in rows if row["kind"] == "start"]
    if not found or not started:
        return None
    row, precision = found[-1], started[-1]["precision"]
    card |= {"top1": row["top1"], "top5": row["top5"], "pictures": row["samples"], "precision": precision}
    # note: a GPU multiplies float32 in convolutions as TensorFloat-32
    tf32 = precision == "float32" and started[-1]["device"] != "cpu"
    return Recorded(row["top1"], row["samples"], ERRORS["tf32" if tf32 else precision])


@contextmanager
def _staged(output: Path) -> Iterator[Path]:
    """A folder whose files come into `output` at the end; of what fails nothing is left, nor folders made for it.

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
