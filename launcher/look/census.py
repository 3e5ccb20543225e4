"""Sections of a page on a data set: its images, some of which are decoded, and its classes; imports no torch."""

from collections.abc import Iterable, Sequence

import numpy as np

from launcher.compute import randomness
from launcher.counts import count_of
from launcher.data.classes import class_counts
from launcher.data.decode import UnreadableImage
from launcher.data.images import ImageReader, Reader
from launcher.data.workers import in_threads
from launcher.files import page

_MOST_LISTED = 100
# Limits of the decoded images, so that this takes seconds.
_MOST_IMAGES, _MOST_BYTES = 1000, 128 << 20


def images_section(train: ImageReader, val: Reader, notes: Iterable[str], seed: int) -> str:
    """Build the HTML section: sizes (seeded sample), undecodable files, notes."""
    sizes: list[tuple[int, int]] = []
    bad: list[tuple[str, str]] = []
    left = _MOST_BYTES
    numbers = randomness.generator(seed, "census").permutation(train.samples)[:_MOST_IMAGES].tolist()

    def measured(number: int) -> tuple[int, int, int] | str:
        try:
            return train.measure(number)
        except UnreadableImage as error:
            return str(error)

    for number, result in zip(numbers, in_threads(measured, numbers), strict=False):
        if isinstance(result, str):
            bad.append((page.text(train.name(number)), page.text(result)))
            continue
        width, height, size = result
        sizes.append((width, height))
        if (left := left - size) < 0:
            break
    checked = f"{len(sizes) + len(bad):,} of {count_of(train.samples, 'training image')}"
    hint = f"{train.samples:,} training and {count_of(val.samples, 'validation image')}; sizes are those of {checked}"
    widths, heights = np.array(sizes, np.int64).reshape(-1, 2).T
    rows = []
    for name, values in ("width", widths), ("height", heights), ("width / height", widths / heights):
        shown = np.quantile(values, (0, 0.05, 0.5, 0.95, 1)) if len(values) else ()
        rows.append([name, *(f"{value:,.{2 * (values.dtype.kind == 'f')}f}" for value in shown)])
    columns = ("", "least", "5 %", "median", "95 %", "most")
    body = page.table(columns, rows, range(1, len(columns)))
    body += "".join(f"<p>{page.text(f'note: {note}')}</p>\n" for note in notes)
    if bad:
        body += f"<p>{len(bad):,} of these cannot be decoded; <code>train doctor</code> checks all:</p>\n"
        body += page.table(("file", "reason"), bad[:_MOST_LISTED])
    return page.section("Images", hint, body)


def classes_section(train: Reader, val: Reader, classes: Sequence[int], seed: int) -> str:
    """Return a section of the numbers of images of some classes."""
    trained, evaluated = (class_counts(one.labels, len(train.names)) for one in (train, val))
    some = f"{len(classes)} of {count_of(len(train.names), 'class')}, drawn by seed={seed}; "
    hint = some * (len(classes) < len(train.names)) + "training images per class: "
    hint += f"{trained.min():,} to {trained.max():,}, median {np.median(trained):,.0f}"
    rows = []
    for number in classes:
        bar = f'<span class="bar" style="width: calc(min(20rem, 40vw) * {trained[number] / trained.max():.3f})"></span>'
        rows.append((page.text(train.names[number]), f"{trained[number]:,}", f"{evaluated[number]:,}", bar))
    return page.section("Classes", hint, page.table(("class", "training", "validation", ""), rows, (1, 2)))
