"""A run's newest or best checkpoint as a model that needs nothing of this project, checked before it is kept."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from launcher.algorithms.base import Context
from launcher.algorithms.engine import Engine
from launcher.config.resolved import digest, read
from launcher.config.schema import BCE
from launcher.data.loaders import Loaders, build_loaders
from launcher.data.unreadable import read_left_out
from launcher.errors import UserError
from launcher.models.build import build_model, model_surgeries
from launcher.models.export import FILES, write_card, write_export
from launcher.models.surgery import Surgery
from launcher.plan.plan import Plan, plan_for
from launcher.records.folder import RunFolder
from launcher.records.metrics import Row, read_metrics
from launcher.training.export_check import ERRORS, Checked, Recorded, check_export
from launcher.training.finished import saved
from launcher.training.trainer import of_this_run

_BATCH = 64


def export_run(folder: RunFolder, output: Path, *, best: bool, report: Callable[[int, int], None]) -> Checked:
    """Write the newest or best checkpoint's averaged weights, or the model's own, and what rebuilds the network.

    Files come into `output` only after they have been loaded in a process without this project, and have given there
    the run's logits, and its top-1 on the validation pictures where these are at hand. `report` is told of the
    pictures done and of all.

    Raises:
        UserError: the run has no valid checkpoint, the folder cannot be written, or the model differs from the run's.
    """
    config = read(folder.config)
    state = saved(folder, best=best)
    plan = plan_for(replace(config, eval_batch_size=_BATCH), 1)
    with of_this_run(state, config):
        network, surgeries = _network(plan, state)
    loaders = _loaders(plan, read_left_out(folder.left_out, config.dataset))
    try:
        card = _card(plan, state, loaders, surgeries) | {"config": digest(config)}
        recorded = _recorded(card, read_metrics(folder.metrics))
        with _staged(output) as staged:
            write_export(state["weights"], staged, card, surgeries)
            pictures = loaders.evaluate if loaders else None
            checked = check_export(staged, network, plan, pictures, recorded, report)
            write_card(staged, card | {"checked": vars(checked)})
    finally:
        if loaders:
            loaders.close()
    return checked


def _network(plan: Plan, state: dict[str, Any]) -> tuple[nn.Module, dict[str, Surgery]]:
    """The network that the run evaluates, on the CPU, and what makes it from torchvision's."""
    config = plan.config
    assert config.dataset.classes is not None
    engine = Engine(Context(plan, config.dataset.classes))
    network = build_model(config.model, config.dataset.classes, config.loss, config.seed)
    engine.change_model(network)
    network.load_state_dict(state["weights"])
    return network, model_surgeries(config.model) | engine.surgeries()


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


def _card(plan: Plan, state: dict[str, Any], loaders: Loaders | None, surgeries: dict[str, Surgery]) -> dict[str, Any]:
    config, dataset = plan.config, plan.config.dataset
    names = state.get("classes") or (loaders.evaluate.classes if loaders else None)
    return {
        "architecture": config.model.architecture,
        "load": "from model import load; network = load()"
        if surgeries
        else f"network = torchvision.models.{config.model.architecture}(num_classes={dataset.classes}); "
        "network.load_state_dict(safetensors.torch.load_file('model.safetensors'))",
        "surgery": {name: surgery.values for name, surgery in surgeries.items()},
        "classes": names or [str(number) for number in range(dataset.classes or 0)],
        "input": {
            "resize": plan.image_side(config.image.eval_resize),
            "size": plan.image_side(config.image.eval_size),
            "interpolation": config.image.eval_interpolation,
            "exif_orientation": dataset.exif_orientation,
            "mean": list(dataset.mean),
            "std": list(dataset.std),
        },
        "flip_average": config.image.eval_flip_average,
        "scores": "sigmoid" if isinstance(config.loss, BCE) else "softmax",
        "recipe": config.recipe,
        "dataset": dataset.name,
        "loader": config.dataloader.name,
        "step": state["step"],
        "averaged": config.algorithms.acting("evaluation_weights"),
        "top1": None,
        "top5": None,
        "pictures": None,
        "precision": None,
    }


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
