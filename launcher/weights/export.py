"""`train export`: write a checkpoint as a model that runs without this project, after checking it."""

import io
import math
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, redirect_stdout, suppress
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
from launcher.disk import reason
from launcher.errors import Problem, UserError
from launcher.plan.plan import Plan, plan_for
from launcher.rank.group import single_rank
from launcher.records.metrics import Row, read_metrics
from launcher.records.run_folder import RunFolder
from launcher.tasks import Task, build_task
from launcher.training.checkpoint import matching_run
from launcher.training.evaluation import outside_steps
from launcher.weights.card import ONNX
from launcher.weights.export_check import ExportCheck, check_export
from launcher.weights.export_files import LOAD, MODEL, module_source, write_card, write_export
from launcher.weights.hugging_face import as_gpt2
from launcher.weights.trained_model import load_checkpoint, model_card, trained_network

_BATCH = 64
# Of a batch.
_MOST_OUTPUTS = 2**26
# note: the limit of protobuf for one message
_MOST_ONNX_BYTES = 2**31 - 1


def export_run(
    folder: RunFolder,
    output: Path,
    *,
    best: bool,
    report: Callable[[int, int], None],
    onnx: bool = False,
) -> ExportCheck:
    """Write the evaluated weights of the newest or best checkpoint, or an ONNX file, with a module that loads them.

    The files move to `output` only after a process without this project has loaded them and computed the run's logits
    and, if the validation images are present, its first metric. Calls `report` with the images checked and their total.

    Raises UserError if the run has no valid checkpoint, the folder cannot be written, the model differs from the run's,
    or it exceeds the size of an ONNX file.
    """
    config = read(folder.config)
    if config.task.scores(config.loss) is None:
        raise UserError(
            Problem("has no predictions without this project; export a run of another task", "task", config.task.name)
        )
    state = load_checkpoint(folder, best=best)
    plan = plan_for(replace(config, eval_batch_size=_batch_size(config)), 1)
    with matching_run(state, config):
        network, surgeries = trained_network(plan, state)
    with _validation_images(plan, folder, state.get("classes")) as images, _staged(output) as staged:
        card = model_card(plan, state, surgeries, images.reader.classes if images else None)
        task = build_task(config, facts=card["task"])
        recorded = _add_recorded(card, read_metrics(folder.metrics), config.task.primary.name)
        if onnx:
            card["load"] = LOAD
            write_onnx(network.eval(), staged, card, task)
        else:
            weights, files = as_gpt2(config.model, state["weights"], card)
            write_export(weights, staged, card, surgeries, config.model.source(), config.task.program)
            for name, text in files.items():
                (staged / name).write_text(text, encoding="utf-8")
        code.copy(staged)
        check = check_export(staged, network, plan, task, images, recorded, report)
        write_card(staged, card | {"checked": vars(check)})
    return check


def _batch_size(config: RunConfig) -> int:
    """Return that of the check, whose outputs fit into memory."""
    outputs = math.prod(build_task(config).output_shape(1, config.task.evaluation_view(config)))
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


def write_onnx(network: nn.Module, folder: Path, card: Mapping[str, Any], task: Task) -> None:
    """Write the files of a network in evaluation mode, float32 on the CPU, for any number of images or length of texts.

    The graph has no metadata but the card's `note`: those of torch's exporter contain paths of this machine.

    Raises UserError if the weights exceed the size of an ONNX file.
    """
    size = sum(tensor.nbytes for tensor in network.state_dict().values())
    if size > _MOST_ONNX_BYTES:
        raise UserError(f"ONNX files hold 2.1 GB, but the weights have {size / 1e9:.1f} GB; export without --onnx")
    from onnxscript.ir.passes.common import ClearMetadataAndDocStringPass

    of_text = task.values.axes == 1
    # note: torch would fix a batch size of one
    loaded, _ = task.blank(2, task.values.evaluation_view(task.config), torch.device("cpu"))
    inputs = task.prepare(outside_steps(loaded)).inputs
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            network,
            (inputs,),
            dynamo=True,
            input_names=["tokens" if of_text else "images"],
            output_names=["logits"],
            dynamic_shapes=({0: torch.export.Dim("batch"), **({1: torch.export.Dim.AUTO} if of_text else {})},),
            verbose=False,
        )
    assert program is not None
    ClearMetadataAndDocStringPass()(program.model)
    if card["note"]:
        program.model.metadata_props["note"] = card["note"]
    (folder / ONNX).write_bytes(program.model_proto.SerializeToString())
    (folder / MODEL).write_text(module_source(f"{task.values.program}_onnx.py"), encoding="utf-8")
    write_card(folder, card)
