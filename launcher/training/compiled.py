"""Compile model and loss, and the preparation of batches, by Inductor.

Runs that cannot be compiled train uncompiled, and print the reason.
"""

import hashlib
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from launcher import paths
from launcher.compute.probe import processor_features
from launcher.config.fields import is_on
from launcher.counts import count_of
from launcher.errors import Problem, UserError, is_of_the_machine
from launcher.plan.step_kinds import step_kinds
from launcher.rank.group import gather, wait_for_ranks
from launcher.rank.signs import HEARTBEAT
from launcher.training.evaluation import outside_steps
from launcher.training.rehearsal import learning_parameters, rehearse, unchanged_statistics
from launcher.training.trainer import Trainer

BACKEND = "inductor"
# Graphs for each view: with frozen statistics, micro-batches, or a selection of samples.
_KINDS = 8
# Up to so many views have their own graphs: those of some networks cannot be dynamic.
_OWN_GRAPHS = 8


def compile_run(trainer: Trainer) -> None:
    """Compile training and evaluation for all steps if `compile` requires it, before any clock starts.

    Every start compiles in the same order, from the run's first view on, so that a resumed run has the same code.
    Few views have their own graphs, more share one; too many graphs are an error, never a silent fallback to
    uncompiled code. The first rank of each node compiles before the others, which read its cache. If one rank cannot
    compile, all ranks train uncompiled, and rank 0 prints the reason.

    Raises UserError if a rank cannot compile, with compile=require.
    """
    if not is_on(trainer.config.compile):
        return
    start, before = time.perf_counter(), graphs()
    _set_up(len(_views(trainer)))
    with unchanged_statistics(trainer):
        reason = _compile_in_turn(trainer)
    reasons = [reason for reason in gather(reason) if reason]
    if reasons and trainer.config.compile == "require":
        raise UserError(Problem(f"compilation failed ({reasons[0]}); set compile=on", "compile", "require"))
    if reasons:
        for module in (trainer.train_step.preparation, *_networks(trainer)):
            module._compiled_call_impl = None
    if trainer.ranks.is_first:
        seconds = time.perf_counter() - start
        print(_message(reasons, seconds, graphs() - before), flush=True)


def _compile_in_turn(trainer: Trainer) -> str | None:
    """Compile on the first rank of each node, then on the others; return why this rank cannot."""
    # note: they may wait for all ranks
    together = any(one.runs_others for one in trainer.train_step.engine.active.values())
    is_first, reason = trainer.ranks.local_rank == 0, None
    if not (is_first or together):
        wait_for_ranks(HEARTBEAT.beat)
    try:
        _compile(trainer)
    except Exception as error:
        if is_of_the_machine(error):
            raise
        # note: the first line of dynamo's own error only has the backend
        cause = getattr(error, "inner_exception", error)
        reason = str(cause).strip().partition("\n")[0] or type(cause).__name__
    if is_first and not together:
        wait_for_ranks(HEARTBEAT.beat)
    return reason


def _networks(trainer: Trainer) -> list[nn.Module]:
    teacher = trainer.train_step.engine.teacher
    return [trainer.train_step.objective, trainer.evaluation_model, *([teacher.network] if teacher else [])]


def graphs() -> int:
    """Return the number of graphs that this process has compiled."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def _message(reasons: list[str], seconds: float, count: int) -> str:
    if reasons:
        return f"compile=on: compilation failed ({reasons[0]}); training uncompiled"
    inductor = torch._dynamo.utils.counters["inductor"]
    cached = inductor["fxgraph_cache_hit"] and not inductor["fxgraph_cache_miss"]
    how = f"{seconds:.0f} s{' from the cache' if cached else ''}"
    return f"compiled {count_of(count, 'graph')} in {how} (outside training time)"


def _set_up(sizes: int) -> None:
    # note: machines with a shared home folder may differ, and code for one may crash another
    processor = hashlib.sha256(" ".join(processor_features()).encode()).hexdigest()[:8]
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(paths.cache() / "compiled" / processor))
    config = torch._dynamo.config
    config.recompile_limit = _KINDS * sizes
    config.accumulated_recompile_limit = 4 * config.recompile_limit
    config.fail_on_recompile_limit_hit = True
    if hasattr(torch.compiler.config, "compile_on_one_rank"):
        # note: otherwise code has the number of its GPU, and other ranks cannot use it
        torch.compiler.config.compile_on_one_rank = True


def _compile(trainer: Trainer) -> None:
    """Compile in place as `nn.Module.compile` does, so that names and states stay the same.

    Other batches than the rehearsed ones are prepared and evaluated uncompiled, such as the smaller last batch of an
    evaluation or rare random transforms, so that no step compiles.
    """
    for network in _networks(trainer):
        network._compiled_call_impl = _compiled(network, dynamic=False)
    preparation = trainer.train_step.preparation
    # note: the graph of the second view serves all others
    preparation._compiled_call_impl = _compiled(preparation)
    _refuse_changes(trainer)
    open_views = partial(_open_view, trainer.config.task.axes)
    rehearse(trainer, mark=open_views if len(_views(trainer)) > _OWN_GRAPHS else None)
    _evaluate(trainer)
    rehearsed = torch.compiler.set_stance("eager_on_recompile")
    for module in (preparation, trainer.evaluation_model):
        module._compiled_call_impl = rehearsed(module._compiled_call_impl)


def _open_view(axes: int, tensor: Tensor) -> None:
    """Let the dimensions that a view counts be of any size."""
    if tensor.ndim > axes:
        torch._dynamo.mark_dynamic(tensor, [*range(tensor.ndim - axes, tensor.ndim)])


def _views(trainer: Trainer) -> set[int]:
    return {kind.view for kind in step_kinds(trainer.plan)}


def _compiled(module: nn.Module, *, dynamic: bool | None = None) -> Callable[..., Any]:
    return torch.compile(module._call_impl, backend=BACKEND, dynamic=dynamic, fullgraph=True)


def _refuse_changes(trainer: Trainer) -> None:
    """Check that the learning parameters do not change within a kind of step: many graphs would be needed.

    Raises RuntimeError if they do.
    """
    step = trainer.train_step
    for steps in step_kinds(trainer.plan).values():
        learning = set()
        for moment in map(trainer.moment, (steps[-1], steps[0])):
            step.engine.before_step(step.model, moment)
            learning.add(learning_parameters(step.model))
        if len(learning) > 1:
            raise RuntimeError(f"{step.engine.changing_parameters[0]} changes which parameters learn at many steps")


@torch.inference_mode()
def _evaluate(trainer: Trainer) -> None:
    plan, model = trainer.plan, trainer.evaluation_model
    task = trainer.train_step.task
    inputs, _ = task.blank(plan.rank_eval_batch, plan.evaluation_size, trainer.ranks.device)
    with trainer.train_step.precision.autocast():
        model.eval()(task.prepare(outside_steps(inputs)).inputs)
