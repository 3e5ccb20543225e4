"""One step of a run again, from the save before it, with a report of where its numbers stop being finite."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from launcher import atomic
from launcher.config.resolved import read
from launcher.data.unreadable import read_left_out
from launcher.rank.group import Ranks, join_ranks
from launcher.rank.heartbeat import HEARTBEAT
from launcher.rank.main import REPLAY_STEP
from launcher.rank.peers import global_norm, gradients_of
from launcher.records.folder import RunFolder
from launcher.training import checkpoint
from launcher.training.run import Run, build_run


def work(run_folder: Path) -> None:
    """One rank's part: train from the newest save up to the step, then take that step under observation."""
    step, folder = int(os.environ[REPLAY_STEP]), RunFolder(run_folder)
    config = read(folder.config)
    with join_ranks(config) as ranks:
        run = build_run(config, ranks, read_left_out(folder.left_out, config.dataset))
        _load_before(run, folder, step)
        while run.next_step < step:
            _take(run, step)
        with non_finite_outputs(run.step.model) as found:
            loss, indices = _take(run, step + 1)
        report = {
            "rank": ranks.rank,
            "loss": loss.item(),
            "finite": run.step.finite,
            "gradient_norm": global_norm(gradients_of(run.step.model)).item(),
            "modules": found,
            "gradients": [n for n, p in run.step.model.named_parameters() if _is_bad(p.grad)],
            "indices": indices,
        }
        reports = _gather(report, ranks)
        if ranks.is_first:
            _tell(reports, step, folder)
        run.loaders.close()


@contextmanager
def non_finite_outputs(model: nn.Module) -> Iterator[list[str]]:
    """Collects the names of the modules, in the order of the forward pass, whose output is not finite."""
    found: list[str] = []

    def look(name: str) -> Any:
        return lambda module, inputs, output: found.append(name) if _is_bad(output) and name not in found else None

    handles = [m.register_forward_hook(look(n)) for n, m in model.named_modules() if not list(m.children())]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _load_before(run: Run, folder: RunFolder, step: int) -> None:
    """Load the newest save of at most that step; without one the run begins anew."""
    saves = [path for path in folder.checkpoints.glob("*-*.pt") if int(path.stem.split("-")[1]) <= step]
    if saves:
        run.load_state_dict(checkpoint.load(max(saves, key=lambda path: path.stem.split("-")[1])))


def _take(run: Run, end: int) -> tuple[Tensor, list[int]]:
    """Steps to the end of an epoch or to `end`, whichever is first; returns the last one's loss and samples."""
    epoch, first_step = divmod(run.next_step, run.plan.steps_per_epoch)
    for images, labels, indices in run.loaders.train.epoch(epoch, first_step):
        loss = run.step(images, labels, indices, run.moment(run.next_step))
        run.next_step += 1
        HEARTBEAT.beat()
        if run.next_step == end:
            break
    return loss, indices.tolist()


def _is_bad(tensor: object) -> bool:
    return isinstance(tensor, Tensor) and not bool(tensor.isfinite().all())


def _gather(report: dict[str, Any], ranks: Ranks) -> list[dict[str, Any]]:
    everyone: list[Any] = [None] * ranks.world_size
    if ranks.world_size == 1:
        return [report]
    dist.all_gather_object(everyone, report)
    return everyone


def _tell(reports: list[dict[str, Any]], step: int, folder: RunFolder) -> None:
    path = folder.path / f"replay-{step}.json"
    atomic.write_text(path, json.dumps({"step": step, "ranks": reports}, indent=1))
    for report in reports:
        state = "finite" if report["finite"] else "NOT finite"
        print(f"rank {report['rank']}: step {step} is {state}, loss {report['loss']:.4g}")
        if report["modules"]:
            print(f"  first output that is not finite: {report['modules'][0]}")
        if report["gradients"]:
            print(f"  gradients that are not finite: {len(report['gradients'])}, first {report['gradients'][0]}")
    print(f"all of it, with the samples: {path}", flush=True)
