"""What a run has left: its newest or best checkpoint, and the evaluation of it in one process."""

from __future__ import annotations

from typing import Any

from launcher.config.resolved import read
from launcher.data.unreadable import read_left_out
from launcher.errors import UserError
from launcher.rank.group import Ranks, claim
from launcher.records.folder import RunFolder
from launcher.training import checkpoint
from launcher.training.evaluation import Evaluation
from launcher.training.trainer import build_trainer


def evaluate_run(folder: RunFolder, device: str, *, best: bool = False) -> tuple[int, Evaluation]:
    """Step of the newest checkpoint, or of the best, and its result on the validation set, on `cpu` or `cuda`.

    Raises:
        UserError: the run has no valid checkpoint, or its data are gone.
        MachineError: the GPU cannot be used.
    """
    config = read(folder.config)
    if config.dataset.classes == 1:
        raise UserError(f"{folder.path} was trained on one class, of which every picture is right; there is no top-1")
    state = saved(folder, best=best)
    trainer = build_trainer(config, Ranks(0, 1, 0, 1, claim(device, 0)), read_left_out(folder.left_out, config.dataset))
    try:
        trainer.load_state_dict(state)
        result = trainer.evaluate(should_stop=lambda: False)
    finally:
        trainer.loaders.close()
    assert result is not None
    return state["step"], result


def saved(folder: RunFolder, *, best: bool) -> dict[str, Any]:
    """The newest valid checkpoint, or that of the best top-1.

    Raises:
        UserError: there is none, or no run has left it.
    """
    state = checkpoint.load(folder.best) if best else checkpoint.newest_valid(folder.checkpoints)
    if state is None:
        raise UserError(f"{folder.path} has no valid checkpoint yet")
    if lacking := [name for name in ("step", "weights") if name not in state]:
        raise UserError(
            f"{folder.path}: the checkpoint has no {' and no '.join(lacking)}; no run of this program left it"
        )
    return state
