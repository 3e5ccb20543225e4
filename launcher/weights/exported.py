"""What `train export` has written, read back as a network: its safetensors and its card, and none of its code."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from launcher.errors import UserError
from launcher.weights.export import CARD, WEIGHTS, plain_network

_KINDS: dict[str, type] = {
    **{"architecture": str, "surgery": dict, "classes": list, "input": dict, "flip_average": bool, "scores": str},
}
_INPUT: dict[str, type] = {
    **{"resize": int, "size": int, "interpolation": str, "exif_orientation": bool, "mean": list, "std": list},
}
_SHOWN = 10


def read_exported(folder: Path, changes: Mapping[str, Callable[..., Any]]) -> tuple[nn.Module, dict[str, Any]]:
    """The network of an export in evaluation mode, and its card.

    changes: the surgeries by name, as `Surgery.change`; the values are the card's.

    Raises:
        UserError: a file is missing, damaged, or not of the network that the card names.
    """
    card = read_card(folder / CARD)
    path, prefix = folder / WEIGHTS, "+".join(card["surgery"]) + "." if card["surgery"] else ""
    try:
        weights = load_file(path)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} is no safetensors file, or cut short ({error}); export the run again") from None
    if unknown := [name for name in card["surgery"] if name not in changes]:
        raise UserError(f"{folder / CARD}: no surgery {unknown[0]} here; use the model.py beside it")
    try:
        network: nn.Module = plain_network(card)
        for name, values in card["surgery"].items():
            changes[name](network, **values)
    # note: whatever an edited card makes of the builders
    except Exception as error:
        raise UserError(f"{folder / CARD} describes no network: {error}; export the run again") from None
    _check_weights(path, {name.removeprefix(prefix): tensor for name, tensor in weights.items()}, network, card)
    network.load_state_dict({name.removeprefix(prefix): tensor for name, tensor in weights.items()})
    return network.eval(), card


def read_card(path: Path) -> dict[str, Any]:
    """A model's card, with all that a network is rebuilt by.

    Raises:
        UserError: it is missing, no JSON, or lacks something.
    """
    try:
        card = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise UserError(f"{path} is missing, which says what the weights beside it are") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read as JSON: {error}; export the run again") from None
    values = card if isinstance(card, dict) else {}
    if wrong := _wrong(values, _KINDS) or _wrong(values["input"], _INPUT):
        raise UserError(f"{path} has no proper {wrong[0]}; export the run again")
    return values


def _wrong(values: dict[str, Any], kinds: dict[str, type]) -> list[str]:
    """Names of values that are missing, of another kind, empty lists, or no side in pixels."""
    found = [(name, kind, values.get(name)) for name, kind in kinds.items()]
    too_small: dict[type, Any] = {int: range(-(2**63), 1), list: ([],)}
    return [name for name, kind, value in found if type(value) is not kind or value in too_small.get(kind, ())]


def _check_weights(path: Path, weights: Mapping[str, Tensor], network: nn.Module, card: Mapping[str, Any]) -> None:
    """See that names and shapes are the network's."""
    if different := differences(network.state_dict(), weights):
        what = f"a {card['architecture']} of {len(card['classes'])} classes"
        raise UserError(f"{path} does not hold {what} as {CARD} says: {listed(different)}; export the run again")


def differences(expected: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> list[str]:
    """What keeps weights from being those of a network, in words."""
    found = [
        f"{name} is {_shape(weights[name])} instead of {_shape(tensor)}"
        for name, tensor in expected.items()
        if name in weights and weights[name].shape != tensor.shape
    ]
    found += [f"{name} is missing" for name in expected if name not in weights]
    return found + [f"{name} has no place here" for name in weights if name not in expected]


def listed(different: Sequence[str]) -> str:
    """The first few of them, and how many more there are."""
    return ", ".join(different[:_SHOWN]) + f" and {len(different) - _SHOWN:,} more" * (len(different) > _SHOWN)


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "a number"
