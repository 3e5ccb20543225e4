"""The network of a run before its start: pretrained weights, a teacher, and what algorithms and sizes it accepts.

Torch is imported only for weights, and for models that are not torchvision's and were not checked before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.config.algorithms import Algorithms
from launcher.config.choices import LIBRARIES
from launcher.config.layers import COMMAND_LINE
from launcher.config.resolved import as_mapping
from launcher.config.schema import RunConfig
from launcher.data.loaders.features import FeatureLoader
from launcher.data.workers import Report
from launcher.files.cache import cached, source_digest
from launcher.files.disk import is_there
from launcher.models.resnet import TorchvisionModel
from launcher.plan.plan import Plan
from launcher.plan.step_kinds import other_views
from launcher.records.run_folder import RunFolder
from launcher.weights.card import find_weights, problem

if TYPE_CHECKING:
    from launcher.weights.pretrained import Pretrained

# What decides whether a model is accepted.
_SOURCES = ("algorithms/*.py", "models/*.py", "launch/model_check.py")


def with_weights(
    config: RunConfig, classes: list[str] | None, origins: Mapping[str, str], *, must_exist: bool
) -> tuple[RunConfig, Pretrained | None, list[str]]:
    """Return the config with what pretrained weights and a teacher set, these weights, and notes on both.

    Without `must_exist` nothing is downloaded.
    """
    pretrained = _pretrained(config, classes, origins, must_exist)
    config, messages = (pretrained.config, [*pretrained.notes]) if pretrained else (config, [])
    if config.algorithms.teaching:
        from launcher.weights.teacher import with_teacher

        config, of_teacher = with_teacher(config, classes, with_weights=must_exist)
        messages += [of_teacher] if of_teacher else []
    return config, pretrained, messages


def _pretrained(
    config: RunConfig, classes: list[str] | None, origins: Mapping[str, str], must_exist: bool
) -> Pretrained | None:
    """Load `model.weights` if it is set; without `must_exist` download nothing."""
    if config.model.weights is None or (config.model.downloads and not must_exist):
        return None
    trained = None if config.model.weights in LIBRARIES else find_weights(config.model.weights)[1]
    theirs, ours = trained.model.architecture if trained else None, config.model.architecture
    # note: timm has other architectures with the same tensors
    if trained and trained.model.library == config.model.library == TorchvisionModel.library and theirs != ours:
        raise problem(config.model.weights, f"weights of {theirs}, not {ours}; set model={theirs}")
    from launcher.weights.pretrained import pretrained_weights

    typed = {key for key, origin in origins.items() if origin == COMMAND_LINE}
    return pretrained_weights(config, classes, typed=typed)


def write_teacher(config: RunConfig, folder: RunFolder) -> None:
    """Write the teacher of a run, if it has one, into its folder, unless it is there.

    Raises UserError if it cannot be read, or the run has had another one.
    """
    if config.algorithms.teaching and not is_there(folder.teacher):
        from launcher.weights.teacher import copy_teacher

        copy_teacher(config, folder.teacher)


def with_checked_network(plan: Plan, origins: Mapping[str, str], report: Report) -> tuple[Plan, list[str]]:
    """Check the network, unless this code accepted it with the same algorithms, image sizes and libraries.

    Returns the plan without the algorithms of the recipe that find nothing to change in it, and a note on each.

    Raises UserError if the network cannot be built, or an algorithm or an image size does not suit it.
    """
    # note: torchvision's models fail only in the batch norm of a single image
    if isinstance(plan.config.model, TorchvisionModel) and plan.rank_batch != plan.accumulation:
        return plan, []
    optional = sorted(name for name in plan.config.algorithms if _is_of_recipe(name, origins))

    def check_now() -> dict[str, str]:
        # note: the import of torch and timm takes seconds
        report(f"checking {plan.config.model.architecture} for the first time", 0, 1)
        from launcher.launch.model_check import check_model

        return check_model(plan, origins, optional)

    config, values = plan.config, as_mapping(plan.config)
    facts = {
        **{key: values[key] for key in ("model", "algorithms", "loss", "code_sha256")},
        "outputs": config.task.outputs(config.dataset),
        "channels": config.dataset.channels,
        "sizes": [plan.size(steps[0]) for steps in plan.of_equal_view(range(plan.total_steps))],
        "other_sizes": [view for view, *_ in other_views(plan)],
        "optional": optional,
        "features": isinstance(config.dataloader, FeatureLoader),
        "one_image": plan.rank_batch == plan.accumulation,
        "evaluation": plan.evaluation_size,
        "libraries": [version(name) for name in ("torch", "torchvision", "timm")],
        "source": source_digest(Path(__file__).parents[1], _SOURCES),
    }
    unneeded = cached("models", facts, dict[str, str], check_now)
    kept = Algorithms.of({name: own for name, own in config.algorithms.items() if name not in unneeded})
    off = f"of the recipe is off: {config.model.architecture} has no"
    notes = [f"algorithms.{name} {off} {needs}" for name, needs in unneeded.items()]
    return replace(plan, config=replace(config, algorithms=kept)), notes


def _is_of_recipe(name: str, origins: Mapping[str, str]) -> bool:
    """Return whether a recipe, and no word of the command line, has chosen an algorithm."""
    key = f"algorithms.{name}"
    own = [one for other, one in origins.items() if other == key or other.startswith(f"{key}.")]
    return bool(own) and COMMAND_LINE not in (*own, origins.get("algorithms"))
