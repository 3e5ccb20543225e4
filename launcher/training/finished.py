"""What a run has left: evaluate or export its newest checkpoint, in one process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from launcher.config.resolved import digest, read
from launcher.config.schema import RunConfig
from launcher.data.unreadable import read_left_out
from launcher.errors import UserError
from launcher.launch.devices import decide
from launcher.models.export import export
from launcher.plan.order import acting
from launcher.plan.plan import Plan
from launcher.records.folder import RunFolder
from launcher.records.metrics import read_metrics
from launcher.training import checkpoint
from launcher.training.evaluation import Evaluation
from launcher.training.ranks import Ranks, claim
from launcher.training.run import build_run
from launcher.training.saving import BEST, newest

# Model surgery after which the weights still compute the same in torchvision's plain model.
_HARMLESS = ("channels_last", "ghost_batchnorm", "ema", "swa")


def evaluate_run(folder: RunFolder, *, best: bool = False) -> tuple[int, Evaluation]:
    """Step of the newest checkpoint, or of the best, and its result on the validation set.

    Raises:
        UserError: the run has no valid checkpoint, or its data are gone.
        MachineError: there is a GPU, and it cannot be used.
    """
    config = read(folder.config)
    if config.dataset.classes == 1:
        raise UserError(f"{folder.path} was trained on one class, of which every picture is right; there is no top-1")
    state = _saved(folder, best)
    device = claim(decide(replace(config.launch, nproc=1)).kind, 0)
    run = build_run(config, Ranks(0, 1, 0, 1, device), read_left_out(folder.left_out, config.dataset))
    try:
        run.load_state_dict(state)
        result = run.evaluate(should_stop=lambda: False)
    finally:
        run.loaders.close()
    assert result is not None
    return state["step"], result


def export_run(folder: RunFolder, output: Path, *, best: bool = False) -> Path:
    """Write the newest or best checkpoint's averaged weights, or the model's own, and a model card; returns their path.

    Raises:
        UserError: the run has no valid checkpoint.
    """
    config = read(folder.config)
    state = _saved(folder, best)
    return export(state["weights"], output, _card(config, state, folder))


def _saved(folder: RunFolder, best: bool) -> dict[str, Any]:
    state = checkpoint.load(folder.checkpoints / BEST) if best else newest(folder)
    if state is None:
        raise UserError(f"{folder.path} has no valid checkpoint yet")
    if lacking := [name for name in ("step", "weights") if name not in state]:
        raise UserError(
            f"{folder.path}: the checkpoint has no {' and no '.join(lacking)}; no run of this program left it"
        )
    return state


def _card(config: RunConfig, state: dict[str, Any], folder: RunFolder) -> dict[str, Any]:
    evaluations = [
        row for row in read_metrics(folder.metrics) if row["kind"] == "eval" and row["step"] == state["step"]
    ]
    changed = [name for name in acting("change_model", config.algorithms) if name not in _HARMLESS]
    if config.model.activation != "relu":
        changed.append(f"activation {config.model.activation}")
    last = evaluations[-1] if evaluations else {}
    plan = Plan(config, 1, config.dataset.train_samples or 0)
    return {
        "architecture": config.model.architecture,
        "classes": config.dataset.classes,
        "surgery": changed,
        "recipe": config.recipe,
        "dataset": config.dataset.name,
        "step": state["step"],
        "config": digest(config),
        "averaged": acting("evaluation_weights", config.algorithms),
        "top1": last.get("top1"),
        "top5": last.get("top5"),
        "input": {
            "size": plan.image_side(config.image.eval_size),
            "resize": plan.image_side(config.image.eval_resize),
            "interpolation": config.image.eval_interpolation,
            "mean": list(config.dataset.mean),
            "std": list(config.dataset.std),
        },
    }
