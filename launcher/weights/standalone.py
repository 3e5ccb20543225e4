"""The part that model.py has in exports of models of images, with torch or onnxruntime; needs NumPy and Pillow."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from launcher.weights.standalone_card import CARD, CLASSES


def read(path: str) -> Image.Image | np.ndarray:
    """Open an image's file, or an array .npy [H, W, C] if the images are no 8-bit RGB."""
    return np.load(path) if str(path).endswith(".npy") and not _is_rgb() else Image.open(path)


def prepare(image: Image.Image | np.ndarray) -> np.ndarray:
    """Return an image as the network's input, float32 [C, size, size]; an array [H, W, C] if it is no 8-bit RGB.

    Raises Pillow's error if it is damaged, and ValueError if it has not the channels of the training images.
    """
    if isinstance(image, Image.Image):
        # note: decode first, since errors of the metadata below are ignored
        image.load()
        with suppress(Exception):
            image = ImageOps.exif_transpose(image) if CARD["input"]["exif_orientation"] else image
        if _is_rgb():
            if image.mode.startswith("I"):
                # note: Pillow would clip 16 bits at 255
                image = Image.fromarray((np.asarray(image) >> 8).astype("uint8"))
            return normalize(_centre(image, "RGB").transpose(2, 0, 1))
    pixels = np.asarray(image)
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    channels, dtype = CARD["input"]["channels"], CARD["input"]["dtype"]
    if pixels.ndim != 3 or (pixels.shape[2], pixels.dtype.name) != (channels, dtype):
        raise ValueError(f"{pixels.dtype} {pixels.shape} instead of {dtype} [H, W, {channels}]; pass such an array")
    pixels = pixels if dtype == "uint8" else pixels.astype(np.float32)
    planes = [Image.fromarray(np.ascontiguousarray(pixels[..., channel])) for channel in range(channels)]
    return normalize(np.stack([_centre(plane, plane.mode) for plane in planes]))


def _is_rgb() -> bool:
    return (CARD["input"].get("channels", 3), CARD["input"].get("dtype", "uint8")) == (3, "uint8")


def _centre(image: Image.Image, mode: str) -> np.ndarray:
    """Return the centre of an image that the network gets, converted to a mode."""
    values = CARD["input"]
    # note: the middle of an image more than 50 times as long as wide, as in training: all of it would take gigabytes
    least = min(image.size)
    left, top = (max(0, edge - 50 * least) // (4 * least) * 2 * least for edge in image.size)
    image = image.crop((left, top, image.width - left, image.height - top))
    width, height = image.size
    short, size = values["resize"], values["size"]
    if not isinstance(short, int):
        # note: as FFCV, which cuts the centre before it resizes
        least = max(1, min(width, height, int(min(width, height) * size / short)))
        left, top, short = (width - least) // 2, (height - least) // 2, size
        image, (width, height) = image.crop((left, top, left + least, top + least)), (least, least)
    shape = (short, int(short * height / width)) if width <= height else (int(short * width / height), short)
    resized = image.convert(mode).resize(shape, Image.Resampling[values["interpolation"].upper()])
    left, top = (max(int((edge - size) / 2), round((edge - size) / 2)) for edge in shape)
    return np.asarray(resized.crop((left, top, left + size, top + size)))


def normalize(pixels: np.ndarray) -> np.ndarray:
    """Normalize pixels [..., C, H, W] by the mean and standard deviation of the training; returns float32."""
    mean, std = (np.array(CARD["input"][name], np.float32)[:, None, None] for name in ("mean", "std"))
    largest = {"uint8": 255, "uint16": 65535, "float32": 1}[CARD["input"].get("dtype", "uint8")]
    return (pixels.astype(np.float32) / largest - mean) / std


def views(images: np.ndarray) -> list[np.ndarray]:
    """Return what the network gets of images [B, C, H, W], whose outputs are averaged: views and mirror images."""
    kind, loaded = CARD.get("views", {"kind": "centre"})["kind"], images.shape[3]
    shown = [images]
    if kind == "shifts":
        padded = np.pad(images, [(0, 0), (0, 0), (1, 1), (1, 1)], mode="reflect")
        shown += [np.ascontiguousarray(padded[..., one : one + loaded, one : one + loaded]) for one in (0, 2)]
    elif kind != "centre":
        size = CARD["views"]["size"]
        last = loaded - size
        corners = [(0, 0), (0, last), (last, 0), (last, last), (last // 2, last // 2)]
        shown = [images[..., top : top + size, left : left + size] for top, left in corners]
        if kind == "scales":
            shown = [_scaled(images, square, size) for square in (size, (size + loaded) // 2, loaded)]
    return [one for view in shown for one in ([view, view[..., ::-1].copy()] if CARD["flip_average"] else [view])]


def _scaled(images: np.ndarray, square: int, size: int) -> np.ndarray:
    """Return the centred squares of float32 images [B, C, H, W], resized to [B, C, size, size]."""
    first = (images.shape[3] - square) // 2
    centre = images[..., first : first + square, first : first + square]
    planes = (Image.fromarray(plane) for image in centre for plane in np.ascontiguousarray(image))
    resized = [np.asarray(plane.resize((size, size), Image.Resampling.BILINEAR)) for plane in planes]
    return np.stack(resized).reshape(*images.shape[:2], size, size)


def averaged(outputs: list[np.ndarray]) -> np.ndarray:
    """Return the mean of the outputs of all `views`; those of shifted ones count half."""
    if CARD["flip_average"] and outputs[0].ndim == 4:
        # note: those of pixels are mirrored too
        outputs = [one[..., ::-1] if number % 2 else one for number, one in enumerate(outputs)]
    if CARD.get("views", {"kind": "centre"})["kind"] == "shifts":
        still = len(outputs) // 3
        return np.asarray((_mean(outputs[:still]) + _mean(outputs[still:])) / np.float32(2))
    return _mean(outputs)


def _mean(outputs: list[np.ndarray]) -> np.ndarray:
    return np.asarray(sum(outputs[1:], start=outputs[0]) / np.float32(len(outputs)))


def converted(outputs: np.ndarray) -> np.ndarray:
    """Return logits, or normalized numbers [B, K] in the training data's unit, float64."""
    facts = CARD.get("task", {})
    return outputs * np.array(facts["scale"]) + np.array(facts["shift"]) if "scale" in facts else outputs


def predicted(scores: np.ndarray) -> list[int]:
    """Return the classes that are predicted for scores [C], likeliest first: five, or all from the threshold on."""
    facts = CARD.get("task", {})
    order: list[int] = np.argsort(-scores, kind="stable").tolist()
    if "threshold" in facts:
        return [number for number in order if scores[number] >= facts["threshold"]]
    return order[:5]


def mask_image(indices: np.ndarray) -> Image.Image:
    """Return class indices [H, W] as an image of the values or colours that the run's `task.classes` has."""
    classes = CARD["config"]["task"]["classes"]
    values = [*classes.values()] if isinstance(classes, dict) else [*range(len(CLASSES))]
    if any(isinstance(one, str) for one in values):
        return Image.fromarray(np.array([[*bytes.fromhex(one[1:])] for one in values], np.uint8)[indices])
    return Image.fromarray(np.array(values, np.uint8 if max(values) < 256 else np.uint16)[indices])


def main(logits_of: Callable[[np.ndarray], np.ndarray]) -> None:
    """Print the predictions of the image files on the command line: likeliest classes, numbers, or shares of pixels.

    Those of pixels are also written, as NAME_mask.png in the current folder.
    """
    if not sys.argv[1:]:
        sys.exit("usage: python model.py IMAGE ...")
    for path in sys.argv[1:]:
        try:
            image = prepare(read(path))
        except (OSError, ValueError) as error:
            sys.exit(f"{path} cannot be read: {error}")
        logits = logits_of(image[None])[0].astype(np.float64)
        print(path)
        if logits.ndim == 3:
            # note: of the crop that the network gets
            mask = logits.argmax(0)
            mask_image(mask).save(f"{Path(path).stem}_mask.png")
            shares = np.bincount(mask.reshape(-1), minlength=len(CLASSES)) / mask.size
            print(*(f"{share:8.2%}  {name}" for name, share in zip(CLASSES, shares, strict=True) if share), sep="\n")
            continue
        if CARD["scores"] == "numbers":
            print(*(f"{value:12.6g}  {name}" for name, value in zip(CLASSES, logits, strict=True)), sep="\n")
            continue
        raised = np.exp(logits - logits.max())
        scores = 1 / (1 + np.exp(-logits)) if CARD["scores"] == "sigmoid" else raised / raised.sum()
        for number in predicted(scores):
            print(f"{scores[number]:8.2%}  {CLASSES[number]}")
