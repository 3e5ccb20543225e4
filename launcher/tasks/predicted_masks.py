"""Predict the masks of whole images by a segmentation, at their own size."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.nn import functional as F

from launcher.config.fields import edges, in_ratio
from launcher.data.crops import centre_cut, place_inside, resize_by_torch
from launcher.data.decode import UnreadableImage
from launcher.data.images import pixel_type_of
from launcher.data.index import Piece
from launcher.data.masks.values import MaskTask
from launcher.data.sources.reading import read
from launcher.errors import Problem, UserError
from launcher.files import atomic
from launcher.tasks.pixels import palette
from launcher.tasks.presenters import PredictedImage, PredictingModel


def write_masks(
    model: PredictingModel, files: Sequence[str], masks: Sequence[Path], top: int
) -> Iterator[PredictedImage]:
    """Write the predicted mask of each file, the PNG of `mask_image`; yield the classes with most pixels.

    Images are resized as for an evaluation, and not cropped; scores are resized to the image's own size.

    Raises UserError if a folder cannot be written.
    """
    try:
        for file, mask in zip(files, masks, strict=True):
            mask.parent.mkdir(parents=True, exist_ok=True)
            yield predicted_file(model, file, top, mask)
    except OSError as error:
        raise UserError(
            Problem(f"cannot be written ({error.strerror}); set another folder", "--masks", mask.parent)
        ) from None


def predicted_file(model: PredictingModel, file: str, top: int, write_to: Path | None = None) -> PredictedImage:
    """Return the classes with most pixels of a file's whole image; `write_to`: where its mask is written."""
    values = model.card["input"]
    try:
        pixels = pixel_type_of(values).read(read(Piece(file, file)), upright=values["exif_orientation"])
    except UnreadableImage as error:
        return PredictedImage(file, [], str(error))
    mask = predicted_mask(model, pixels)
    if write_to:
        with atomic.writing(write_to) as temporary:
            mask_image(mask, model.task).save(temporary, "PNG")
    return PredictedImage(file, largest_shares(mask, model.card["classes"], top))


def largest_shares(mask: np.ndarray, names: Sequence[str], top: int) -> list[tuple[str, float]]:
    """Return the classes with most pixels of a mask of class indices, with their share of all."""
    shares = np.bincount(mask.reshape(-1), minlength=len(names)) / mask.size
    order = np.argsort(-shares, kind="stable")[:top]
    return [(names[n], float(shares[n])) for n in order if shares[n]]


def mask_image(mask: np.ndarray, task: MaskTask) -> Image.Image:
    """Return class indices, uint8 [H, W], as an image of the values that the task has for them, which it would read.

    These are colours, or numbers with a palette; those above 255 have 16 bits.
    """
    values = np.array(task.values() or range(256))[mask]
    if task.is_coloured:
        return Image.fromarray((values[..., None] >> [16, 8, 0] & 255).astype(np.uint8))
    if max(task.values() or [0]) > 255:
        return Image.fromarray(values.astype(np.uint16))
    image = Image.fromarray(values.astype(np.uint8))
    image.putpalette(palette().reshape(-1).tolist())
    return image


@torch.inference_mode()
def predicted_mask(model: PredictingModel, pixels: np.ndarray) -> np.ndarray:
    """Return the class of each pixel of an image [H, W, C], uint8 [H, W]."""
    values = model.card["input"]
    size = edges(values["size"])
    (*shape, _), inside = pixels.shape, (slice(None), slice(None))
    if values["resize"] is None:
        resized = centre_cut(pixels, None, size, values["interpolation"], fill=values["fill"])
        inside = place_inside(shape[0], shape[1], size) if values["fill"] else inside
    else:
        least = in_ratio(values["resize"], size)
        scale = max(edge / own for edge, own in zip(least, shape, strict=True))
        height, width = (max(1, round(edge * scale)) for edge in shape)
        resized = resize_by_torch(pixels, height, width, values["interpolation"])
    image = torch.from_numpy(np.ascontiguousarray(resized.transpose(2, 0, 1)))[None].to(model.device)
    scores = F.interpolate(model.outputs(image)[..., *inside], shape, mode="bilinear")
    return np.asarray(scores.argmax(1)[0].to(torch.uint8).cpu())
