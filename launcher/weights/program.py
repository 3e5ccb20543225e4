"""The lines of Python in the card of an ONNX export that predict a file, with onnxruntime, NumPy and Pillow alone."""

from collections.abc import Mapping
from typing import Any

from launcher.config.fields import edges, in_ratio

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


def program(card: Mapping[str, Any], *, of_text: bool, of_pixels: bool) -> list[str]:
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
