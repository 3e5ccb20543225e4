"""`train export`: write a checkpoint as weights or as an ONNX program, after checking the files."""

import math
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from launcher.config import code
from launcher.config.resolved import read
from launcher.config.schema import RunConfig
from launcher.data.loading import EvaluationLoader, build_loaders
from launcher.data.unreadable import read_skipped
from launcher.errors import Problem, UserError
from launcher.files.disk import reason
from launcher.models.build import build_model
from launcher.plan.plan import Plan, plan_for
from launcher.rank.group import single_rank
from launcher.records.metrics import Row, read_metrics
from launcher.records.run_folder import RunFolder
from launcher.tasks import Task, build_task
from launcher.training.checkpoint import matching_run
from launcher.training.evaluation import outside_steps
from launcher.training.networks import run_network
from launcher.weights.card import ONNX, network_changes
from launcher.weights.export_check import ExportCheck, agrees, check_export
from launcher.weights.export_files import as_gpt2, write_card, write_weights
from launcher.weights.onnx_program import SERVE, card_lines, write_onnx
from launcher.weights.trained_model import load_checkpoint, model_card

_BATCH = 64
# Of a batch.
_MOST_OUTPUTS = 2**26


def export_run(
    folder: RunFolder,
    output: Path,
    *,
    best: bool,
    report: Callable[[int, int], None],
    onnx: bool = False,
) -> ExportCheck:
    """Write the evaluated weights of the newest or best checkpoint, or an ONNX program of the whole evaluation.

    The files move to `output` only after they have computed the run's logits and, if the validation images are present,
    its first metric; an ONNX program in a process without this project. Calls `report` with the images checked and
    their total.

    Raises UserError if the run has no valid checkpoint, the folder cannot be written, the model differs from the run's,
    or it has no ONNX file.
    """
    config = read(folder.config)
    if config.task.scores(config.loss) is None:
        raise UserError(
            Problem("has no predictions without this project; export a run of another task", "task", config.task.name)
        )
    state = load_checkpoint(folder, best=best)
    plan = plan_for(replace(config, eval_batch_size=_batch_size(config)), 1)
    with matching_run(state, config):
        network = run_network(plan, state["weights"]).eval()
    with _validation_images(plan, folder, state.get("classes")) as images, _staged(output) as staged:
        card = model_card(plan, state, images.reader.classes if images else None)
        task = build_task(config, facts=card["task"])
        recorded = _add_recorded(card, read_metrics(folder.metrics), config.task.primary.name)
        if onnx:
            of_text, of_pixels = task.axes == 1, task.labelled == "pixels"
            lines = card_lines(card, of_text=of_text, of_pixels=of_pixels)
            card |= {"load": lines, "serve": SERVE, "note": None}
            write_onnx(network, task, staged / ONNX)
        else:
            _check_declared(config, network, task)
            weights, files = as_gpt2(config, state["weights"], card)
            write_weights(weights, staged, card)
            for name, text in files.items():
                (staged / name).write_text(text, encoding="utf-8")
            code.copy(staged)
        check = check_export(staged, network, plan, task, images, recorded, report)
        write_card(staged, card | {"checked": vars(check)})
    return check


@torch.inference_mode()
def _check_declared(config: RunConfig, network: nn.Module, task: Task) -> None:
    """Raise UserError if algorithms change what the network computes, and none of them declares so."""
    if network_changes(config) or not config.algorithms.acting("change_model"):
        return
    plain = build_model(config.model, config.task.outputs(config.dataset), config.loss, 0, config.dataset.channels)
    inputs = task.prepare(outside_steps(task.blank(2, task.evaluation_size(config), torch.device("cpu"))[0])).inputs
    is_equal = plain.state_dict().keys() == network.state_dict().keys()
    if is_equal:
        plain.load_state_dict(network.state_dict())
        is_equal = agrees(plain.eval()(inputs), network(inputs), 1e-4)
    if not is_equal:
        names = ", ".join(config.algorithms.acting("change_model"))
        message = "changes what the network computes; return its values from `network_values` of their class"
        raise UserError(Problem(message, "algorithms", names))


def _batch_size(config: RunConfig) -> int:
    """Return that of the check, whose outputs fit into memory."""
    outputs = math.prod(build_task(config).output_shape(1, config.task.evaluation_size(config)))
    return max(1, min(_BATCH, _MOST_OUTPUTS // outputs))


@contextmanager
def _validation_images(plan: Plan, folder: RunFolder, classes: list[str] | None) -> Iterator[EvaluationLoader | None]:
    """Yield the run's validation images; None if they are missing."""
    try:
        skipped = read_skipped(folder.skipped, plan.config.dataset)
        loaders = build_loaders(plan, single_rank(torch.device("cpu")), skipped=skipped, classes=classes)
    except UserError:
        yield None
        return
    with closing(loaders):
        yield loaders.evaluate


def _add_recorded(card: dict[str, Any], rows: list[Row], primary: str) -> tuple[float, int] | None:
    """Add the run's recorded metrics of these weights to the card; return the primary one and the number of images."""
    evaluations = [row for row in rows if row["kind"] == "eval" and row["step"] == card["step"]]
    starts = [row for row in rows if row["kind"] == "start"]
    if not evaluations or not starts or (value := evaluations[-1]["metrics"].get(primary)) is None:
        return None
    row = evaluations[-1]
    card |= {**row["metrics"], "images": row["samples"], "precision": starts[-1]["precision"]}
    return value, row["samples"]


@contextmanager
def _staged(output: Path) -> Iterator[Path]:
    """Yield a folder whose files move to `output` at the end; a failure leaves no file and no new folder.

    Raises UserError if `output` cannot be written.
    """
    created = [path for path in (output, *output.parents) if not path.exists()]
    staged = output / ".export"
    try:
        output.mkdir(parents=True, exist_ok=True)
        # note: an export that was killed, or whose disk failed, leaves its folder
        shutil.rmtree(staged, ignore_errors=True)
        staged.mkdir()
        yield staged
        for path in staged.iterdir():
            if path.is_file():
                path.replace(output / path.name)
        shutil.rmtree(staged, ignore_errors=True)
    except BaseException as error:
        shutil.rmtree(staged, ignore_errors=True)
        for path in created:
            with suppress(OSError):
                path.rmdir()
        if isinstance(error, OSError):
            message = f"cannot be written: {reason(error, 'choose another folder')}"
            raise UserError(Problem(message, "--output", output)) from None
        raise
