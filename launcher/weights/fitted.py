"""What `train calibrate` fits to a run's weights, in its folder: predictions, evaluations and exports use it; no torch.

These are facts of the task: the temperature of logits, the least confidence of a class that is predicted, and a
threshold for each of several classes.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

from launcher import atomic
from launcher.errors import UserError
from launcher.records.run_folder import RunFolder
from launcher.regular import read_regular

TEMPERATURE, CONFIDENCE, THRESHOLD = FACTS = ("temperature", "confidence", "threshold")


def write(folder: RunFolder, values: Mapping[str, Any]) -> None:
    """Write the facts, the step of their checkpoint, and what they change, atomically."""
    atomic.write_text(folder.calibration, json.dumps(values, indent=1) + "\n")


def added(state: dict[str, Any], folder: RunFolder) -> dict[str, Any]:
    """Return a checkpoint with these among the facts of its task, if they were fitted to its weights.

    Raises UserError if the file is damaged.
    """
    step, facts = _read(folder)
    return state if step != state["step"] else {**state, "task": {**state.get("task", {}), **facts}}


def notes(facts: Mapping[str, Any], step: int, folder: RunFolder | None) -> list[str]:
    """Return notes on what was fitted to a network with these facts, or to another step of its run."""
    lines = []
    if TEMPERATURE in facts:
        lines.append(f"calibrated: predictions divide the logits by {facts[TEMPERATURE]:.4g}")
    if CONFIDENCE in facts:
        lines.append(f"calibrated: predictions have no class below a probability of {facts[CONFIDENCE]:.4g}")
    if isinstance(facts.get(THRESHOLD), list):
        lines.append("calibrated: each class is predicted from a threshold of its own on")
    if lines or folder is None or (of_step := _read(folder)[0]) is None:
        return lines
    return [
        f"not calibrated: {folder.calibration} is of step {of_step:,}, and these weights of step {step:,}; "
        f"type train calibrate {folder.path}"
    ]


def _read(folder: RunFolder) -> tuple[int | None, dict[str, Any]]:
    """Return the step and the facts; no step without a file."""
    try:
        values = json.loads(read_regular(folder.calibration))
        step, facts = int(values["step"]), {name: values[name] for name in FACTS if name in values}
        numbers = [one for value in facts.values() for one in (value if isinstance(value, list) else [value])]
        if not numbers or not all(isinstance(one, float) and 0 < one < math.inf for one in numbers):
            raise ValueError
    except FileNotFoundError:
        return None, {}
    except (OSError, ValueError, KeyError, TypeError, RecursionError, UserError):
        message = f"{folder.calibration} cannot be read; remove it, or type train calibrate {folder.path}"
        raise UserError(message) from None
    return step, facts
