"""The models that `check_model` accepted, remembered in the cache: building one imports torch and timm, for seconds."""

import hashlib
import json
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from launcher import atomic, paths
from launcher.config.resolved import as_mapping
from launcher.plan.plan import Plan

_SOURCES = ("algorithms/*.py", "models/*.py", "training/model_check.py")


def is_accepted(plan: Plan) -> bool:
    """Return whether this code accepted the plan's network, algorithms and image sizes with the same libraries."""
    return _path(_facts(plan)).is_file()


def remember(plan: Plan) -> None:
    """Remember that the model of the plan was accepted; a refusal is never remembered."""
    facts = _facts(plan)
    # note: it only saves time
    with suppress(OSError):
        _path(facts).parent.mkdir(parents=True, exist_ok=True)
        atomic.write_text(_path(facts), facts)


def _path(facts: str) -> Path:
    return paths.cache() / "models" / f"{hashlib.sha256(facts.encode()).hexdigest()[:32]}.json"


def _facts(plan: Plan) -> str:
    """Return what the check depends on as JSON."""
    config, values = plan.config, as_mapping(plan.config)
    sizes = {plan.image_size(steps[0]) for steps in plan.of_equal_size(range(plan.total_steps))}
    facts = {
        **{key: values[key] for key in ("model", "algorithms", "loss")},
        "outputs": config.task.outputs(config.dataset),
        "sizes": sorted(sizes),
        "evaluation": plan.scaled_size(config.image.eval_size),
        "libraries": [version(name) for name in ("torch", "torchvision", "timm")],
        "source": paths.source_digest(Path(__file__).parents[1], _SOURCES),
    }
    return json.dumps(facts, sort_keys=True)
