"""The temperature of a run's logits, in its folder: `train calibrate` writes it, predictions read it; no torch."""

import json
import math
from collections.abc import Mapping
from typing import Any

from launcher import atomic
from launcher.errors import UserError
from launcher.records.run_folder import RunFolder
from launcher.regular import read_regular

FACT = "temperature"


def write(folder: RunFolder, values: Mapping[str, Any]) -> None:
    """Write the temperature, the step of its checkpoint, and what it changes, atomically."""
    atomic.write_text(folder.calibration, json.dumps(values, indent=1) + "\n")


def added(state: dict[str, Any], folder: RunFolder) -> dict[str, Any]:
    """Return a checkpoint with the temperature among the facts of its task, if it was fitted to these weights.

    Raises UserError if the file is damaged.
    """
    step, temperature = _read(folder)
    return state if step != state["step"] else {**state, "task": {**state.get("task", {}), FACT: temperature}}


def notes(facts: Mapping[str, Any], step: int, folder: RunFolder | None) -> list[str]:
    """Return a note on the temperature of a network with these facts, or on that of another step of its run."""
    if FACT in facts:
        return [f"calibrated: predictions divide the logits by {facts[FACT]:.4g}"]
    if folder is None or (of_step := _read(folder)[0]) is None:
        return []
    return [
        f"not calibrated: {folder.calibration} is of step {of_step:,}, and these weights of step {step:,}; "
        f"type train calibrate {folder.path}"
    ]


def _read(folder: RunFolder) -> tuple[int | None, float]:
    """Return step and temperature; no step without a file."""
    try:
        values = json.loads(read_regular(folder.calibration))
        step, temperature = int(values["step"]), float(values[FACT])
        if not 0 < temperature < math.inf:
            raise ValueError
    except FileNotFoundError:
        return None, 1.0
    except (OSError, ValueError, KeyError, TypeError, RecursionError, UserError):
        message = f"{folder.calibration} cannot be read; remove it, or type train calibrate {folder.path}"
        raise UserError(message) from None
    return step, temperature
