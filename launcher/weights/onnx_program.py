"""The program of an ONNX file: what an evaluation computes, from inputs as loaded to averaged outputs.

Its card has lines of Python that predict a file by it, with onnxruntime, NumPy and Pillow alone.
"""

import io
import warnings
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from launcher.config.fields import edges, in_ratio
from launcher.data.batch import START, Batch
from launcher.errors import UserError, one_line
from launcher.tasks import Task

# note: the limit of protobuf for one message
_MOST_BYTES = 2**31 - 1
_SCORES = {
    "softmax": "scores = np.exp(outputs - np.logaddexp.reduce(outputs))",
    "sigmoid": "scores = 1 / (1 + np.exp(-outputs))",
}
_BYTES = "bytes"
# What serves the file over HTTP, at /v2/models/model/infer: NVIDIA's Triton reads inputs and outputs from the program.
SERVE = (
    'docker run --rm -p 8000:8000 -v "$PWD/model.onnx:/models/model/1/model.onnx" '
    "nvcr.io/nvidia/tritonserver:25.01-py3 tritonserver --model-repository=/models"
)


class ExportGraph(nn.Module):
    """Prepares inputs as loaded (normalizes images), and averages the network's outputs over views and mirror images.

    Outputs are logits, or numbers in the unit of the training data, float64.
    """

    def __init__(self, network: nn.Module, task: Task):
        super().__init__()
        self.network, self._task = network.eval(), task

    def forward(self, inputs: Tensor) -> Tensor:
        passes = self._task.passes(self._task.prepare(Batch(inputs, inputs, np.empty(0), START)).inputs)
        # note: one pass of all, since a graph would repeat the network
        outputs = self.network(torch.cat(passes) if len(passes) > 1 else passes[0])
        return self._task.in_unit(self._task.average([*outputs.unflatten(0, (len(passes), -1))]))


def input_name(task: Task) -> str:
    """Return the name of the program's input."""
    return "tokens" if task.axes == 1 else "images"


def output_name(task: Task) -> str:
    """Return the name of the program's output."""
    return "numbers" if task.scores(task.config.loss) == "numbers" else "logits"


def write_onnx(network: nn.Module, task: Task, path: Path) -> None:
    """Write the program of a network, float32 on the CPU, for any number of images or length of texts.

    Its metadata are removed: those of torch's exporter contain paths of this machine.

    Raises UserError if the weights exceed the size of an ONNX file, or the network has an operation that ONNX lacks.
    """
    size = sum(tensor.nbytes for tensor in network.state_dict().values())
    if size > _MOST_BYTES:
        raise UserError(f"ONNX files hold 2.1 GB, but the weights have {size / 1e9:.1f} GB; export without --onnx")
    from onnxscript.ir.passes.common import ClearMetadataAndDocStringPass

    # note: torch would fix a batch size of one
    inputs, _ = task.blank(2, task.loaded_evaluation_size(task.config), torch.device("cpu"))
    lengths = {1: torch.export.Dim.AUTO} if task.axes == 1 else {}
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            program = torch.onnx.export(
                ExportGraph(network, task),
                (inputs.contiguous(),),
                dynamo=True,
                input_names=[input_name(task)],
                output_names=[output_name(task)],
                dynamic_shapes=({0: torch.export.Dim("batch"), **lengths},),
                verbose=False,
            )
        except torch.onnx.OnnxExporterError as error:
            reason = one_line(str(error.__cause__ or error)).partition(". ")[0]
            raise UserError(f"torch cannot write this network as ONNX: {reason}; export without --onnx") from None
    assert program is not None
    ClearMetadataAndDocStringPass()(program.model)
    path.write_bytes(program.model_proto.SerializeToString())


def card_lines(card: Mapping[str, Any], *, of_text: bool, of_pixels: bool) -> list[str]:
    """Return the lines; card: with `input`, `scores` and `task`. of_pixels: outputs are of each pixel."""
    if of_text:
        return _of_text(card)
    image = card["input"]
    is_rgb = (image["channels"], image["dtype"]) == (3, "uint8")
    dtype = "uint8" if image["dtype"] == "uint8" else "float32"
    upright = (
        'ImageOps.exif_transpose(Image.open("image.jpg"))' if image["exif_orientation"] else 'Image.open("image.jpg")'
    )
    pixels = f'np.asarray(prepared({upright}.convert("RGB"))).transpose(2, 0, 1)[None]'
    if not is_rgb:
        planes = f'np.load("image.npy").astype("{dtype}").transpose(2, 0, 1)'
        pixels = f"np.stack([np.asarray(prepared(Image.fromarray(one))) for one in {planes}])[None]"
    return [
        "import json, numpy as np, onnxruntime",
        "from PIL import Image, ImageOps",
        'card, session = json.load(open("model_card.json")), onnxruntime.InferenceSession("model.onnx")',
        "def prepared(image):",
        *(f"    {line}" for line in _prepared(image)),
        f"pixels = {pixels}",
        *(padded := _padded(image, dtype)),
        f'outputs = session.run(None, {{"images": {"whole" if padded else "pixels"}}})[0][0]',
        *_printed(card, of_pixels=of_pixels),
    ]


def _prepared(image: Mapping[str, Any]) -> list[str]:
    """Return the lines that resize and cut an image as an evaluation does; FFCV cuts before it resizes."""
    short, (rows, columns) = image["resize"], edges(image["size"])
    resample = f"Image.Resampling.{image['interpolation'].upper()}"
    if image.get("fill"):
        return [
            f"ratio = max(image.width / {columns}, image.height / {rows})",
            f"return image.resize([max(1, round(edge / ratio)) for edge in image.size], {resample})",
        ]
    if short is None:
        return [f"return image.resize(({columns}, {rows}), {resample})"]
    if isinstance(short, int):
        height, width = in_ratio(short, (rows, columns))
        size = f"[edge * {short} // min(image.size) for edge in image.size]"
        if rows != columns:
            by_width = f"({width}, {width} * image.height // image.width)"
            by_height = f"({height} * image.width // image.height, {height})"
            size = f"{by_width} if image.width * {height} <= image.height * {width} else {by_height}"
        return [
            f"image = image.resize({size}, {resample})",
            f"left, top = round((image.width - {columns}) / 2), round((image.height - {rows}) / 2)",
            f"return image.crop((left, top, left + {columns}, top + {rows}))",
        ]
    least = min(rows, columns)
    return [
        f"edge = int(min(image.width * {least} // {columns}, image.height * {least} // {rows}) * {least} / {short})",
        f"width, height = edge * {columns} // {least}, edge * {rows} // {least}",
        "left, top = (image.width - width) // 2, (image.height - height) // 2",
        f"return image.crop((left, top, left + width, top + height)).resize(({columns}, {rows}), {resample})",
    ]


def _padded(image: Mapping[str, Any], dtype: str) -> list[str]:
    """Return the lines that put whole images, `pixels`, on the colour around them; none for others."""
    if not image.get("fill"):
        return []
    rows, columns = edges(image["size"])
    return [
        f'whole = np.array({image["fill"]}, "{dtype}")[None, :, None, None].repeat({rows}, 2).repeat({columns}, 3)',
        "top, left = ((edge - own) // 2 for edge, own in zip(whole.shape[2:], pixels.shape[2:]))",
        "whole[:, :, top : top + pixels.shape[2], left : left + pixels.shape[3]] = pixels",
    ]


def _printed(card: Mapping[str, Any], *, of_pixels: bool) -> list[str]:
    """Return the lines that print what an image's outputs predict."""
    if of_pixels:
        return [
            "mask = outputs.argmax(0)",
            "for number in np.unique(mask): print(f\"{(mask == number).mean():.2%} {card['classes'][number]}\")",
        ]
    if card["scores"] == "numbers":
        return ['for name, value in zip(card["classes"], outputs): print(f"{value:.6g} {name}")']
    threshold = card["task"].get("threshold")
    chosen = "(-scores).argsort()[:5]" if threshold is None else f"np.flatnonzero(scores >= {threshold})"
    return [
        _SCORES[card["scores"]],
        f"for number in {chosen}: print(f\"{{scores[number]:.2%}} {{card['classes'][number]}}\")",
    ]


def _of_text(card: Mapping[str, Any]) -> list[str]:
    """Return the lines that continue a text by its likeliest tokens."""
    tokenizer, text = card["task"].get("tokenizer"), "some text"
    encode, decode, load = f'[*"{text}".encode()]', "bytes(one for one in tokens if one < 256).decode()", []
    if tokenizer != _BYTES:
        encode, decode = f'tokenizer.encode("{text}", add_special_tokens=False).ids', "tokenizer.decode(tokens)"
        load = ["from tokenizers import Tokenizer", 'tokenizer = Tokenizer.from_str(card["task"]["tokenizer"])']
    if tokenizer is None:
        encode, decode, load = "[0]  # the run did not have its tokenizer", "tokens", []
    return [
        "import json, numpy as np, onnxruntime",
        'card, session = json.load(open("model_card.json")), onnxruntime.InferenceSession("model.onnx")',
        *load,
        f"tokens = {encode}",
        "for _ in range(100):",
        f"    window = np.array([tokens[-{card['input']['length']}:]])",
        '    tokens.append(int(session.run(None, {"tokens": window})[0][0, -1].argmax()))',
        f"print({decode})",
    ]
