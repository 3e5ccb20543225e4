"""The model card of an export, read without torch, so that an invalid one is refused at once."""

import json
from pathlib import Path
from typing import Any

from launcher.config.schema import RunConfig
from launcher.config.validate import validate
from launcher.errors import UserError

CARD, WEIGHTS, ONNX = "model_card.json", "model.safetensors", "model.onnx"


def read_card(path: Path) -> tuple[RunConfig, list[str], dict[str, Any]]:
    """Read the run's config, its class names, and what its task has computed from a model card.

    Raises UserError if the card is missing, is not JSON, or lacks a value.
    """
    try:
        card = json.loads(path.read_bytes())
        config, classes, facts = validate(card["config"]), card["classes"], dict(card.get("task", {}))
    except FileNotFoundError:
        raise UserError(f"{path} is missing, and the weights cannot be used without it; export the run again") from None
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is not a model card ({type(error).__name__}: {error}); export the run again") from None
    except UserError as error:
        raise UserError(f"{path} has no valid config ({error.line}); export the run again") from None
    if not isinstance(classes, list) or len(classes) != config.dataset.classes:
        raise UserError(f"{path} does not list the classes of its config; export the run again")
    numbers = {name: [value] * len(classes) if isinstance(value, float) else value for name, value in facts.items()}
    if set(facts) - set(config.task.facts) or not all(_are_numbers(one, len(classes)) for one in numbers.values()):
        raise UserError(
            f"{path} has other values of its task than {', '.join(config.task.facts)}; export the run again"
        )
    return config, [str(name) for name in classes], facts


def _are_numbers(values: Any, count: int) -> bool:
    return isinstance(values, list) and len(values) == count and all(isinstance(one, float) for one in values)
