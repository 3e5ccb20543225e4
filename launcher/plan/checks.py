"""Errors and notes about a plan before a run starts; each rule is one function."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from launcher.compute.accelerator import Kind
from launcher.config.choices import LIBRARIES
from launcher.config.declaration import Declaration
from launcher.config.fields import edges, is_on, parse_duration
from launcher.config.keys import kinds
from launcher.config.layers import COMMAND_LINE, leaves
from launcher.config.resolved import as_mapping
from launcher.config.schema import LOSSES
from launcher.counts import count_of
from launcher.errors import Problem, Problems, UserError, first_few
from launcher.plan.plan import Plan

_FEW_IMAGES = 16
_MANY_DROPPED = 0.1


# Up to this size the last stage has single pixels, for which PyTorch's bf16 convolution on a CPU computes wrong
# gradients: those of weights that only see padding are uninitialized memory instead of zero.
_WRONG_IN_BF16_ON_CPU = 16


def check(plan: Plan, origins: Mapping[str, str], device: Kind = "cuda") -> None:
    """Check one plan for a type of device.

    Raises UserError that lists every broken rule.
    """
    rules = (
        _batch, _folds, _task, _channels, _warmup, _weights, _class_weights, _checkpointing, _declared,
        _evaluation_crop,
    )  # fmt: skip
    problems = [problem for rule in rules for problem in rule(plan)]
    problems += _unused_resize(plan, origins)
    problems += _on_a_cpu(plan) if device == "cpu" else ()
    problems += _on_mps(plan) if device == "mps" else ()
    problems += _without_graphs(plan) if device != "cuda" else ()
    if problems:
        raise UserError(*(Problem(p.message, p.key, p.value, origins.get(p.key or "")) for p in problems))


def _on_a_cpu(plan: Plan) -> Iterator[Problem]:
    config = plan.config
    # note: a plan without steps has no view, and views never shrink
    smallest = plan.view(0) if plan.total_steps and config.task.axes > 1 else math.inf
    if config.precision == "bf16" and smallest <= _WRONG_IN_BF16_ON_CPU:
        message = f"bfloat16 computes wrong gradients on a CPU for images of {smallest} px; set precision=fp32"
        yield Problem(message, "precision", "bf16")


def _without_graphs(plan: Plan) -> Iterator[Problem]:
    if plan.config.cuda_graphs == "require":
        message = "cannot capture steps (they need a GPU of NVIDIA or AMD); set cuda_graphs=on"
        yield Problem(message, "cuda_graphs", "require")


def _on_mps(plan: Plan) -> Iterator[Problem]:
    config = plan.config
    if config.precision == "bf16":
        yield Problem("not every Apple GPU (mps) has bfloat16; set precision=fp16 or fp32", "precision", "bf16")
    if plan.world_size > 1:
        yield Problem("an Apple GPU trains in one process; set launch.nproc=1 on one node", "launch.device", "mps")
    named: dict[str, Declaration] = {f"algorithms.{name}": values for name, values in config.algorithms.items()}
    for key, values in {**named, "optimizer": config.optimizer, "task": config.task}.items():
        if lacking := values.lacking.get("mps"):
            value = "on" if key in named else getattr(config, key).name
            yield Problem(f"needs {lacking}, which mps lacks; set launch.device=cpu", key, value)


def _batch(plan: Plan) -> Iterator[Problem]:
    batch, world = plan.batch_size, plan.world_size
    if batch % world:
        below = batch // world * world
        choices = f"{below} or {below + world}" if below else f"{world}"
        nodes = plan.config.launch.nnodes
        # note: a run that resumes keeps its batch
        fewer = next((count for count in range(world // nodes, 0, -1) if batch % (count * nodes) == 0), None)
        choices += f", or launch.nproc={fewer}" if fewer else ""
        yield Problem(f"not divisible by {count_of(world, 'process')}; set {choices}", "batch_size", batch)
    if batch > plan.train_samples:
        message = f"larger than the data set (dataset.train_samples={plan.train_samples}); set a smaller batch"
        yield Problem(message, "batch_size", batch)


def _folds(plan: Plan) -> Iterator[Problem]:
    dataset, loader = plan.config.dataset, plan.config.dataloader.name
    if dataset.folds is not None and (dataset.is_built_in or loader not in ("torchvision", "features")):
        message = "needs images of dataset.path, and dataloader=torchvision; set these, or remove the key"
        yield Problem(message, "dataset.folds", dataset.folds)


def _evaluation_crop(plan: Plan) -> Iterator[Problem]:
    image = plan.config.image
    least = min(edges(image.eval_size))
    size, resize = (plan.config.scaled_size(one) for one in (least, image.eval_resize))
    if size > resize and image.fit == "crop":
        message = f"larger than the images that it crops, whose shorter edge is resized to {resize:g} px; set "
        yield Problem(f"{message}image.eval_resize={least} or more", "image.eval_size", image.eval_size)


def _unused_resize(plan: Plan, origins: Mapping[str, str]) -> Iterator[Problem]:
    image, key = plan.config.image, "image.eval_resize"
    if image.fit != "crop" and image.eval_views in ("centre", "shifts") and origins.get(key) == COMMAND_LINE:
        message = f"image.fit={image.fit} evaluates whole images at image.eval_size; remove it, or set image.fit=crop"
        yield Problem(message, key, image.eval_resize)


def _task(plan: Plan) -> Iterator[Problem]:
    task, target = plan.config.task, plan.config.target
    problems, config = Problems(), plan.config
    if task.labelled not in config.loss.labels:
        fitting = [name for name, kind in LOSSES.declarations().items() if task.labelled in kind.labels]
        message = f"task={task.name} has no such loss; set loss={' or loss='.join(fitting)}"
        yield Problem(message, "loss", config.loss.name)
    if config.dataset.sampling == "balanced" and task.labelled != "class":
        message = f"task={task.name} has no single class an image to balance; set uniform"
        yield Problem(message, "dataset.sampling", "balanced")
    for key, of in (("model", "takes"), ("dataloader", "gives")):
        part = getattr(getattr(config, key), of)
        if part not in (None, *task.needs):
            fitting = [name for kind in kinds(key) if getattr(kind, of) in task.needs for name in kind.option_names()]
            message = f"is for {part}, but task={task.name} needs {task.needs[-1]}; set {first_few(fitting)}"
            problems.append(Problem(message, key, getattr(config, key).name))
    with problems.collected():
        task.patience(plan.config.stop)
    if target is not None:
        with problems.collected():
            task.goal(target)
    yield from problems


def _channels(plan: Plan) -> Iterator[Problem]:
    """Refuse models, weights and files that are for three channels."""
    dataset, model = plan.config.dataset, plan.config.model
    if dataset.channels != 3 and not model.any_channels:
        message = f"model={model.name} takes images of three channels alone; set another model"
        yield Problem(message, "dataset.channels", dataset.channels)
    if dataset.channels != 3 and model.weights in LIBRARIES:
        message = "has weights for images of three channels alone; set null, a file, a run folder or an export"
        yield Problem(message, "model.weights", model.weights)


def _warmup(plan: Plan) -> Iterator[Problem]:
    schedule = plan.config.schedule
    number, unit = parse_duration(schedule.warmup)
    if plan.total_steps and 0 < plan.total_steps <= plan.warmup_steps:
        message = (
            f"the warmup takes the whole run ({count_of(plan.epochs, 'epoch')}, {count_of(plan.total_steps, 'step')}); "
            f"shorten it, for example schedule.warmup=0.1dur, or scale the whole schedule with schedule.dilate"
        )
        yield Problem(message, "schedule.warmup", f"{number:g}{unit}")


def _weights(plan: Plan) -> Iterator[Problem]:
    """Require pretrained weights for algorithms that preserve them, and a library's weights for its own models."""
    config, rates = plan.config, plan.config.optimizer
    weights, library = config.model.weights, config.model.pretrained or config.model.library
    if weights in LIBRARIES and weights != library:
        own = f"model.weights={library}, " if library in LIBRARIES else ""
        yield Problem(
            f"has no weights for this model; set {own}a file, a run folder or an export", "model.weights", weights
        )
    needing = [f"algorithms.{name}" for name, one in config.algorithms.items() if one.needs_pretrained]
    factors = {"backbone_lr": rates.backbone_lr, "layer_decay": rates.layer_decay}
    texts = {name: "null" if factor is None else f"{factor:g}" for name, factor in factors.items() if factor != 1}
    needing += [f"optimizer.{name}={text}" for name, text in texts.items()]
    if config.model.weights is None and needing:
        needs = f"{' and '.join(needing)} need{'s' if len(needing) == 1 else ''} pretrained weights"
        yield Problem(f"{needs}; set model.weights to a run folder, a file, timm or torchvision", "model.weights", None)


def _class_weights(plan: Plan) -> Iterator[Problem]:
    task, classes = plan.config.task, plan.config.dataset.classes
    for name, off in (("class_weights", "none"), ("pos_weight", "none"), ("logit_adjustment", 0)):
        key, value = f"loss.{name}", getattr(plan.config.loss, name, off)
        if value != off and not task.weighs_classes:
            yield Problem(f"task={task.name} has no weights of classes; set {key}={off}", key, value)
        elif isinstance(value, list) and len(value) != classes:
            has = f"has {count_of(len(value), 'number')} for {task.counted(classes)}"
            message = f"{has}; set one per class, in the order of their names"
            yield Problem(message, key, value)


def _checkpointing(plan: Plan) -> Iterator[Problem]:
    if plan.config.model.checkpointing == "on":
        for key in ("compile", "cuda_graphs"):
            if is_on(value := getattr(plan.config, key)):
                yield Problem(
                    f"untested with model.checkpointing=on; set {key}=off or model.checkpointing=off", key, value
                )


def _declared(plan: Plan) -> Iterator[Problem]:
    active, optimizer = plan.config.algorithms, plan.config.optimizer
    for declaration in (plan.config.model, plan.config.task, optimizer, plan.config.schedule, plan.config.dataloader):
        yield from declaration.problems(plan)
    for name, values in active.items():
        if values.needs_classes and plan.config.task.labelled == "numbers":
            message = (
                f"has no meaning with task={plan.config.task.name}: {values.needs_classes} (algorithms.{name}=off)"
            )
            yield Problem(message, f"algorithms.{name}", "on")
        if values.needs_rgb and not plan.config.dataset.is_rgb:
            has = f"dataset.channels={plan.config.dataset.channels} dataset.dtype={plan.config.dataset.dtype}"
            message = f"has no meaning with {has}: {values.needs_rgb} (algorithms.{name}=off)"
            yield Problem(message, f"algorithms.{name}", "on")
        if values.acts_on and (others := [part for part in plan.config.task.needs if part not in values.acts_on]):
            acts, task = " and ".join(values.acts_on), plan.config.task.name
            message = f"has no meaning with task={task}: it acts on {acts}, not on {' or '.join(others)}"
            message += f" (algorithms.{name}=off)"
            yield Problem(message, f"algorithms.{name}", "on")
        for other, reason in values.excludes.items():
            if other in active:
                message = f"cannot be combined with {other}: {reason} (algorithms.{other}=off or algorithms.{name}=off)"
                yield Problem(message, f"algorithms.{name}", "on")
        for point, reason in optimizer.excludes.items():
            if values.place(point) is not None:
                message = f"cannot be combined with optimizer={optimizer.name}: {reason} (algorithms.{name}=off)"
                yield Problem(message, f"algorithms.{name}", "on")
        for problem in values.problems(plan):
            yield replace(problem, key=f"algorithms.{name}.{problem.key}")


def notes(plan: Plan) -> list[str]:
    """Return notes on values that work but deserve attention before a run."""
    rules = (_learning_rate, _fitted, _partial_batch, _batch_norm, _of_declarations, _compiled)
    return [line for rule in rules for line in rule(plan)]


def _learning_rate(plan: Plan) -> Iterator[str]:
    optimizer, batch = plan.config.optimizer, plan.batch_size
    if plan.peak_lr != optimizer.lr:
        yield (
            f"learning rate {optimizer.lr:g} is for a batch of {optimizer.reference_batch_size}; at {batch} it "
            f"is scaled to {plan.peak_lr:g} (optimizer.scale_lr=off keeps it)"
        )


def _fitted(plan: Plan) -> Iterator[str]:
    if plan.shortened:
        values = dict(leaves(as_mapping(plan.config)))
        changed = [f"{key}={_text(before)} to {_text(values[key])}" for key, before in plan.shortened.items()]
        yield f"schedule.fit=on shortens the schedule for {count_of(plan.total_steps, 'step')}: {', '.join(changed)}"


def _text(value: str | list[str]) -> str:
    return value if isinstance(value, str) else f"[{','.join(value)}]"


def _partial_batch(plan: Plan) -> Iterator[str]:
    dropped = plan.train_samples - plan.steps_per_epoch * plan.batch_size
    if dropped > _MANY_DROPPED * plan.train_samples:
        yield f"each epoch drops {dropped:,} of {count_of(plan.train_samples, 'image')}, its last partial batch"


def _batch_norm(plan: Plan) -> Iterator[str]:
    images = plan.rank_batch // plan.accumulation
    if images < _FEW_IMAGES and plan.config.model.has_batch_norm:
        yield f"batch norm uses only {count_of(images, 'image')} per forward pass"


def _of_declarations(plan: Plan) -> Iterator[str]:
    for declaration in (
        plan.config.optimizer,
        plan.config.schedule,
        plan.config.dataloader,
        *plan.config.algorithms.values(),
    ):
        yield from declaration.notes(plan)


def _compiled(plan: Plan) -> Iterator[str]:
    if is_on(plan.config.compile) and plan.config.launch.device == "cpu":
        value = plan.config.compile
        yield f"compile={value} was slower than compile=off on every CPU measured, and adds minutes to the first start"
