"""Synthetic measurements."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from launcher.measure.estimate import EvaluationTimes, Measurement, StepTimes
from launcher.plan.plan import Plan
from launcher.plan.step_kinds import StepKind, step_kinds, step_samples

NOTHING: dict[str, Any] = {
    **{"device": "GPU", "world_size": 1, "workers": 8, "cores": 8, "start_seconds": 0.0, "transfer_seconds": [0.0]},
    **{"first_batch_seconds": 0.0, "epoch_start_seconds": [0.0], "new_size_seconds": [0.0]},
    **{"evaluation": EvaluationTimes(0.0, [0.0], [0.0], 1), "save_seconds": [0.0], "last_save_seconds": 0.0},
}


def measured(
    run: Plan, cost: Callable[[StepKind], float], load: float, *, shared: float = 0.0, rounds: int = 1, **more: Any
) -> Measurement:
    """Return a measurement with a cost for each kind of step and a loading time; all else takes no time but `more`."""
    steps = []
    for kind in (sample.kind for sample in step_samples(step_kinds(run))):
        step = cost(kind)
        both = max(step, load) + shared * min(step, load)
        steps.append(StepTimes(kind.view, list(kind.acting), [step] * rounds, [load] * rounds, [both] * rounds))
    return Measurement(**{**NOTHING, "steps": steps, **more})


def pretend_a_gpu() -> None:
    """Give the CPU the memory of a GPU that holds a step of four images."""
    import torch

    from launcher.launch import auto_batch
    from launcher.measure import batch_size
    from launcher.training.step import TrainStep

    original = TrainStep.__call__

    def limited(step: TrainStep, images: torch.Tensor, *others: Any) -> Any:
        if len(images) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return original(step, images, *others)

    TrainStep.__call__ = limited  # type: ignore[method-assign]
    auto_batch._why_unmeasured = lambda config, devices: None
    batch_size.interface = lambda device: gpu_with_memory(900)  # type: ignore[assignment]


def gpu_with_memory(used: int) -> SimpleNamespace:
    """Return the interface of a GPU that has reserved so many of its 1,000 bytes."""
    values: dict[str, Any] = {"empty_cache": None, "reset_peak_memory_stats": None, "mem_get_info": (1000, 1000)}
    values["max_memory_reserved"] = used
    return SimpleNamespace(**{name: lambda *_, value=value: value for name, value in values.items()})
