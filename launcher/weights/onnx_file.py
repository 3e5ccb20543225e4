"""A network as an ONNX file that says which pictures it takes; needs onnx and onnxscript."""

from __future__ import annotations

import contextlib
import io
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from launcher.errors import UserError

_USE = Path(__file__).with_name("standalone_onnx.py")
# note: protobuf's own bound on one message
_MOST_BYTES = 2**31 - 1


class _Evaluated(nn.Module):
    """The logits as a run evaluates them: with the mirror images', if that is so."""

    def __init__(self, network: nn.Module, flip_average: bool):
        super().__init__()
        self.network, self.flip_average = network, flip_average

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.network(images)
        return (logits + self.network(images.flip(3))) / 2 if self.flip_average else logits


def onnx_card(card: Mapping[str, Any]) -> dict[str, Any]:
    """A model's card with what an ONNX file takes and gives, and the lines of a program that uses it."""
    side, classes = card["input"]["size"], len(card["classes"])
    mirrored = ", the mean of the picture's and its mirror image's" * card["flip_average"]
    return {
        **{name: value for name, value in card.items() if name != "load"},
        "images": f"float32 [batch, 3, {side}, {side}]: RGB, resized, cropped and normalised as `input` says",
        "logits": f"float32 [batch, {classes}]{mirrored}; `scores` of them are the probabilities of `classes`",
        "use": _USE.read_text(encoding="utf-8").splitlines(),
    }


def write_onnx(network: nn.Module, path: Path, card: Mapping[str, Any]) -> None:
    """Write a network in evaluation mode, float32 on the CPU, for batches of any size.

    Raises:
        UserError: it is larger than an ONNX file may be.
    """
    size = sum(tensor.nbytes for tensor in network.state_dict().values())
    if size > _MOST_BYTES:
        raise UserError(f"the network has {size / 1e9:.1f} GB of weights, and one ONNX file holds 2.1 GB at most")
    side = card["input"]["size"]
    # note: two images, since one is a size that the exporter would take for fixed
    images = torch.zeros(2, 3, side, side)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            _Evaluated(network, card["flip_average"]).eval(),
            (images,),
            dynamo=True,
            input_names=["images"],
            output_names=["logits"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            verbose=False,
        )
    assert program is not None
    path.write_bytes(program.model_proto.SerializeToString())
    note_card(path, card)


def note_card(path: Path, card: Mapping[str, Any]) -> None:
    """Write or replace what an ONNX file says of itself: each of the card's values as JSON."""
    import onnx

    model = onnx.load(path)
    onnx.helper.set_model_props(model, {name: json.dumps(value) for name, value in card.items()})
    path.write_bytes(model.SerializeToString())
