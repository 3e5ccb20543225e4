"""A summary of a data set's images: classes, sizes, and files that cannot be decoded; imports no torch."""

from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from launcher import page, randomness
from launcher.config.schema import FFCVLoader, RunConfig
from launcher.data.classes import class_counts, read_labels
from launcher.data.decode import UnreadableImage, decode
from launcher.data.ffcv.dataset import FFCVDataset
from launcher.data.folder import Folder
from launcher.data.sources.find import read_splits
from launcher.data.sources.pieces import Piece
from launcher.data.unreadable import reason
from launcher.probe import usable_cores

_MOST_LISTED = 100
# Limits of the decoded images, so that this takes seconds.
_MOST_IMAGES, _MOST_BYTES = 1000, 128 << 20


@dataclass(frozen=True)
class Census:
    """The classes and the labels of training and validation images, int64 [N] or rows [N, K].

    `sizes`, int64 [M, 2], are widths and heights of `checked` training images, and `bad` maps those that cannot be
    decoded to reasons. `images` are the training images; None for FFCV files.
    """

    classes: list[str]
    train: np.ndarray
    val: np.ndarray
    sizes: np.ndarray
    checked: int
    bad: dict[str, str]
    images: Folder | None

    def name(self, index: int) -> str:
        """Return the name of the training image of a sample."""
        number = index % len(self.train)
        return self.images.files[number] if self.images else f"image {number}"

    def is_readable(self, index: int) -> bool:
        """Return whether the image of a sample can be decoded; FFCV files were checked when they were written."""
        return self.images is None or reason(self.images.piece(index % len(self.train))) is None


def census(config: RunConfig, skipped: Collection[str] = ()) -> Census:
    """Count a config's images, without those `skipped`; decode some, drawn by the seed.

    Raises UserError if the images are missing.
    """
    if isinstance(config.dataloader, FFCVLoader):
        train, val = (FFCVDataset.of(config).open(split) for split in ("train", "val"))
        names = train.manifest.classes if train.manifest else [*map(str, range(max(train.classes, val.classes)))]
        heights, widths = train.sizes(np.arange(train.samples))
        sizes = np.column_stack([widths, heights]).astype(np.int64)
        names, labels = read_labels(config, names)
        return Census(names, labels[train.rows["f1"]], labels[val.rows["f1"]], sizes, train.samples, {}, None)
    images, held = read_splits(config, skipped)
    drawn: list[Piece] = []
    left = _MOST_BYTES
    for number in randomness.generator(config.seed, "census").permutation(len(images.files))[:_MOST_IMAGES].tolist():
        piece = images.piece(number)
        left -= Path(piece.file).stat().st_size if piece.size is None else piece.size
        drawn += [piece] if left > 0 or not drawn else []

    def size(piece: Piece) -> tuple[int, int] | str:
        try:
            return decode(piece.read(), upright=config.dataset.exif_orientation).image.size
        except UnreadableImage as error:
            return str(error)

    with ThreadPoolExecutor(usable_cores()) as pool:
        results = dict(zip(drawn, pool.map(size, drawn), strict=True))
    bad = {str(piece): one for piece, one in results.items() if isinstance(one, str)}
    sizes = np.array([one for one in results.values() if not isinstance(one, str)], np.int64).reshape(-1, 2)
    return Census(images.classes, images.labels, held.labels, sizes, len(drawn), bad, images)


def images_section(facts: Census, notes: Iterable[str]) -> str:
    """Return a page's section of sizes, notes and files that cannot be decoded."""
    checked = f"{facts.checked:,} of {len(facts.train):,} training images"
    hint = f"{len(facts.train):,} training and {len(facts.val):,} validation images; sizes are those of {checked}"
    widths, heights = facts.sizes.T
    rows = []
    for name, values in ("width", widths), ("height", heights), ("width / height", widths / heights):
        shown = np.quantile(values, (0, 0.05, 0.5, 0.95, 1)) if len(values) else ()
        rows.append([name, *(f"{value:,.{2 * (values.dtype.kind == 'f')}f}" for value in shown)])
    columns = ("", "least", "5 %", "median", "95 %", "most")
    body = page.table(columns, rows, range(1, len(columns)))
    body += "".join(f"<p>{page.text(f'note: {note}')}</p>\n" for note in notes)
    if facts.bad:
        listed = [(page.text(file), page.text(reason)) for file, reason in [*facts.bad.items()][:_MOST_LISTED]]
        body += f"<p>{len(facts.bad):,} of these cannot be decoded; <code>train doctor</code> checks all:</p>\n"
        body += page.table(("file", "reason"), listed)
    return page.section("Images", hint, body)


def classes_section(facts: Census, classes: Sequence[int], seed: int) -> str:
    """Return a page's section of the images of some classes."""
    train, val = (class_counts(labels, len(facts.classes)) for labels in (facts.train, facts.val))
    some = f"{len(classes)} of {len(facts.classes):,} classes, drawn by seed={seed}; "
    hint = some * (len(classes) < len(facts.classes)) + "training images per class: "
    hint += f"{train.min():,} to {train.max():,}, median {np.median(train):,.0f}"
    rows = []
    for number in classes:
        bar = f'<span class="bar" style="width: calc(min(20rem, 40vw) * {train[number] / train.max():.3f})"></span>'
        rows.append((page.text(facts.classes[number]), f"{train[number]:,}", f"{val[number]:,}", bar))
    return page.section("Classes", hint, page.table(("class", "training", "validation", ""), rows, (1, 2)))
