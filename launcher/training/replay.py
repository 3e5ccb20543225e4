"""Repeat one step of a run from the checkpoint before it, and report where its values become non-finite."""

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from launcher import atomic
from launcher.config.resolved import read
from launcher.data.unreadable import read_skipped
from launcher.rank.group import gather, join_ranks
from launcher.rank.signs import REPLAY_STEP
from launcher.records.run_folder import RunFolder, checkpoint_files
from launcher.training import checkpoint
from launcher.training.compiled import compile_run
from launcher.training.meters import StepOutcome
from launcher.training.networks import read_teacher
from launcher.training.trainer import Trainer, build_trainer


def work(run_folder: Path) -> None:
    """Run one rank: train from the last checkpoint up to the step, then observe that step."""
    step, folder = int(os.environ[REPLAY_STEP]), RunFolder(run_folder)
    config = read(folder.config)
    with join_ranks(config) as ranks:
        teacher = read_teacher(folder, config, ranks.device)
        # note: without a checkpoint the run starts from the beginning
        before = [path for done, path in checkpoint_files(folder.checkpoints, "step", "replay") if done <= step]
        state = checkpoint.load(before[-1]) if before else {}
        skipped = read_skipped(folder.skipped, config.dataset)
        trainer = build_trainer(
            config, ranks, skipped, teacher=teacher, classes=state.get("classes"), index=folder.index
        )
        if state:
            trainer.load_state_dict(state)
        compile_run(trainer)
        while trainer.next_step < step:
            _take_steps(trainer, step)
        model = trainer.train_step.model
        layers = {module: name for name, module in model.named_modules() if not list(module.children())}
        modules: list[str] = []

        def observe(module: nn.Module, inputs: object, output: object) -> None:
            if module in layers and _is_bad(output) and layers[module] not in modules:
                modules.append(layers[module])

        # note: compiled code does not call the hooks of modules
        with torch.compiler.set_stance("force_eager"), register_module_forward_hook(observe):
            outcome = _take_steps(trainer, step + 1)
        result = outcome.report()
        report = {
            "rank": ranks.rank,
            "loss": result.loss,
            "finite": result.finite,
            "gradient_norm": result.gradient_norm,
            "modules": modules,
            "gradients": [name for name, parameter in model.named_parameters() if _is_bad(parameter.grad)],
            "indices": outcome.indices.tolist(),
        }
        reports = gather(report)
        if ranks.is_first:
            _report(reports, step, folder)
        trainer.loaders.close()


def _take_steps(trainer: Trainer, end: int) -> StepOutcome:
    """Take steps to the end of the epoch or to `end`, whichever is first; return the last outcome."""
    for images, targets, indices in trainer.rest_of_epoch():
        outcome = trainer.train_step(images, targets, indices, trainer.moment(trainer.next_step))
        outcome.report()
        trainer.next_step += 1
        if trainer.next_step == end:
            break
    return outcome


def _is_bad(tensor: object) -> bool:
    return isinstance(tensor, Tensor) and not bool(tensor.isfinite().all())


def _report(reports: list[dict[str, Any]], step: int, folder: RunFolder) -> None:
    path = folder.replayed(step)
    atomic.write_text(path, json.dumps({"step": step, "ranks": reports}, indent=1))
    for report in reports:
        state = "finite" if report["finite"] else "not finite"
        print(f"rank {report['rank']}: step {step} is {state}, loss {report['loss']:.4g}")
        if report["modules"]:
            print(f"  first non-finite output: {report['modules'][0]}")
        if report["gradients"]:
            print(f"  non-finite gradients: {len(report['gradients'])}, first {report['gradients'][0]}")
    print(f"full report, with the samples: {path}", flush=True)
