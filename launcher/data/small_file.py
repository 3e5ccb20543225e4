"""The smaller pictures beside the full ones, in an FFCV file of their own: its name, and whether it fits the full one;
imports neither FFCV nor torch.

A plan says which steps read it; evaluation never does.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from launcher.config.schema import FFCVFile, FFCVFiles, FFCVLoader, RunConfig
from launcher.data.beton import Beton, missing, open_beton, written_path
from launcher.errors import Problem, UserError

_KEY = "dataloader.files.small_side"


def full_values(files: FFCVFiles) -> FFCVFile:
    """What the files of full pictures are written with."""
    return FFCVFile(files.max_side, files.jpeg_share, files.quality, files.restart_interval)


def small_values(files: FFCVFiles) -> FFCVFile | None:
    """What the file of small training pictures is written with, if there is to be one.

    Raises:
        UserError: they would not be smaller.
    """
    if files.small_side is None:
        return None
    if files.small_side >= files.max_side:
        message = f"must be less than dataloader.files.max_side ({files.max_side}), half of it for instance"
        raise UserError(Problem(message, _KEY, files.small_side))
    return FFCVFile(files.small_side, files.small_jpeg_share, files.quality, files.restart_interval)


def open_small(config: RunConfig, full: Beton) -> Beton | None:
    """The small pictures of the training pictures in `full`, if the config asks for them.

    Raises:
        UserError: the file is not there, not whole, or of other pictures.
    """
    assert isinstance(config.dataloader, FFCVLoader)
    if (values := small_values(config.dataloader.files)) is None:
        return None
    path = small_path(config, values)
    if not path.is_file():
        raise UserError(missing(config, path, _KEY))
    small = open_beton(path, _KEY)
    if not np.array_equal(small.rows["f1"], full.rows["f1"]):
        message = f"{path} holds other pictures than {full.path}; remove it, and write it again by train prepare"
        raise UserError(Problem(message, _KEY, values.max_side))
    return small


def small_path(config: RunConfig, values: FFCVFile) -> Path:
    """Where the small training pictures are: a file as any other of those values."""
    return written_path(config, "train", values)
