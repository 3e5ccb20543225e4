"""Find the teacher of a run: another run, an export, or a model of timm."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from launcher.config.algorithms import Algorithms
from launcher.config.compose import compose
from launcher.config.declaration import Size
from launcher.config.fields import size_text
from launcher.config.schema import RunConfig
from launcher.counts import count_of
from launcher.errors import Problem, UserError
from launcher.files import atomic
from launcher.models.timm import timm_architectures
from launcher.plan.plan import plan_for
from launcher.training.networks import check_teacher, run_network, teacher_file, teacher_of
from launcher.weights.load import SourceWeights, load_weights


def find_teacher(config: RunConfig, *, with_weights: bool = True) -> tuple[SourceWeights, RunConfig]:
    """Return the weights of a run's teacher and the config that trained it; with_weights=False: without those of timm.

    Raises UserError if it does not exist or cannot be read.
    """
    values = config.algorithms.teaching
    assert values is not None
    assert values.teacher is not None
    teacher, key = values.teacher, values.key
    of_timm = teacher in timm_architectures()
    if not of_timm and not Path(teacher).exists():
        message = "is neither a path nor a model of timm; set a run folder, an export, or a model such as resnet50"
        raise UserError(Problem(message, key, teacher))
    trained = _of_timm(teacher) if of_timm else None
    if trained and not with_weights:
        return SourceWeights(teacher, {}), trained
    try:
        source = load_weights(
            trained.model if trained else replace(config.model, weights=str(Path(teacher).absolute()))
        )
    except UserError as error:
        # note: a key of the teacher's own config is part of the message
        plain = ("model.weights", None)
        texts = (one.message if one.key in plain else f"{one.key} {one.message}" for one in error.problems)
        pairs = zip(error.problems, texts, strict=True)
        raise UserError(*(replace(one, message=t, key=key, value=teacher) for one, t in pairs)) from None
    if (trained := trained or source.config) is None:
        message = "has weights without a config; set a run folder or an export"
        raise UserError(Problem(message, key, teacher))
    return source, trained


def _of_timm(architecture: str) -> RunConfig:
    """Return a config with timm's values of a pretrained model."""
    from timm.models import get_pretrained_cfg  # note: takes a second

    config = compose(["dataset=imagenet", "algorithms=[]", "model=timm", f"model.architecture={architecture}"]).config
    known: Any = get_pretrained_cfg(architecture)
    size, mean, std = known.input_size[-1], list(known.mean), list(known.std)
    return replace(
        config,
        model=replace(config.model, weights="timm"),
        image=replace(config.image, reference=size, train_size=size),
        dataset=replace(config.dataset, native_size=size, classes=known.num_classes, mean=mean, std=std),
    )


def with_teacher(config: RunConfig, classes: list[str] | None, *, with_weights: bool) -> tuple[RunConfig, str]:
    """Return the config with the absolute path and the digest of its teacher, and a note on its cost.

    Raises UserError if the teacher does not exist, or has other classes than the run.
    """
    source, trained = find_teacher(config, with_weights=with_weights)
    values = config.algorithms.teaching
    assert values
    assert values.teacher
    _check_classes(source, trained, config, classes)
    digest = check_teacher(config, teacher_file(trained, source.tensors), values.teacher) if source.tensors else None
    path = values.teacher if values.teacher in timm_architectures() else str(Path(values.teacher).absolute())
    taught = replace(values, teacher=path, teacher_sha256=digest)
    algorithms = Algorithms.of({**config.algorithms, values.name: taught})
    return replace(config, algorithms=algorithms), _note(config, trained)


def _check_classes(source: SourceWeights, trained: RunConfig, config: RunConfig, classes: Sequence[str] | None) -> None:
    """Raise a UserError if a teacher has other classes than the run of a config, which has these `classes`."""
    theirs, ours = (one.task.outputs(one.dataset) for one in (trained, config))
    reason = (
        f"has {count_of(theirs, 'output')} of task={trained.task.name}, and the run {ours} of task={config.task.name}"
    )
    if trained.task == config.task and theirs == ours:
        pairs = zip(source.classes or (), classes or (), strict=False)
        different = ((number, *pair) for number, pair in enumerate(pairs) if pair[0] != pair[1])
        reason = next((f"has other classes: number {n} is {its} there and {our} here" for n, its, our in different), "")
    if reason:
        message = f"{reason}; set a teacher of the same classes in the same order"
        values = config.algorithms.teaching
        assert values
        raise UserError(Problem(message, values.key, values.teacher))


def copy_teacher(config: RunConfig, path: Path) -> None:
    """Write the file of a run's teacher.

    Raises UserError if it cannot be read, or the run has had another one.
    """
    source, trained = find_teacher(config)
    content = teacher_file(trained, source.tensors)
    check_teacher(config, content, source.origin)
    with atomic.writing(path) as temporary:
        temporary.write_bytes(content)


def _note(config: RunConfig, trained: RunConfig) -> str:
    plan, teacher = plan_for(config, 1), teacher_of(trained)
    added = _operations(teacher.network, teacher.size) / _operations(run_network(plan), plan.full_size) / 3
    named = f"the teacher, {trained.model.architecture} at {size_text(teacher.size)} px"
    return f"{named}, adds {added:.0%} to the operations of a step of {size_text(plan.full_size)} px"


def _operations(network: nn.Module, size: Size) -> int:
    """Count the operations of a forward pass of one image."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        network.to("meta").eval()(torch.empty(1, 3, *size, device="meta"))
    return int(counter.get_total_flops())
