"""Images whose labels may be wrong: confident learning on predictions of runs that were not trained on them.

Northcutt, Jiang and Chuang, "Confident Learning: Estimating Uncertainty in Dataset Labels" (2021).
"""

from collections.abc import Sequence

import numpy as np

from launcher import page
from launcher.config.schema import RunConfig
from launcher.counts import count_of
from launcher.data.decode import UnreadableImage
from launcher.data.images import CentreCrops, evaluation_input
from launcher.data.sources.pieces import Piece
from launcher.data.sources.reading import read
from launcher.tasks.images import displayed

_MOST_SHOWN = 96


def suspected_labels(labels: np.ndarray, probabilities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the images whose label is probably another class, likeliest first, and these classes, int64 [S] each.

    labels: int64 [N]; probabilities: [N, C], of networks that were not trained on the image. The threshold of a class
    is the mean probability of it over the images with its label. An image belongs confidently to the likeliest of the
    classes whose thresholds its probabilities reach; it is suspected if that is not its label (off the diagonal of the
    confident joint), in the order of the probability of the label less that of the likeliest other class.
    """
    count = probabilities.shape[1]
    sums = np.zeros(count)
    np.add.at(sums, labels, probabilities[np.arange(len(labels)), labels])
    images = np.bincount(labels, minlength=count)
    # note: nothing is confidently of a class without images
    thresholds = np.where(images > 0, sums / np.maximum(1, images), np.inf)
    reached = np.where(probabilities >= thresholds, probabilities, -np.inf)
    confident = reached.argmax(1)
    suspected = np.flatnonzero((reached.max(1) > -np.inf) & (confident != labels))
    own = probabilities[suspected, labels[suspected]]
    others = probabilities[suspected].copy()
    others[np.arange(len(suspected)), labels[suspected]] = -np.inf
    order = np.argsort(own - others.max(1, initial=-np.inf), kind="stable")
    return suspected[order], confident[suspected][order]


def labels_page(
    config: RunConfig, names: Sequence[str], labels: np.ndarray, probabilities: np.ndarray, pieces: Sequence[Piece]
) -> tuple[str, int]:
    """Return a gallery of the images whose labels are suspected, as markup, and their number.

    names: of the classes. pieces: where the images are; without one that cannot be decoded any more.
    """
    images, classes = suspected_labels(labels, probabilities)
    decoder, view = CentreCrops(values := evaluation_input(config)), values["size"]
    figures: list[tuple[np.ndarray, str, str]] = []
    for number, other in zip(images[:_MOST_SHOWN].tolist(), classes.tolist(), strict=False):
        label, piece = int(labels[number]), pieces[number]
        try:
            pixels, _ = decoder.decode({"image": read(piece), "label": label}, view, None)
        except (UnreadableImage, OSError):
            continue
        shares = probabilities[number, [label, other]]
        lines = [
            f"<b>{page.text(names[label])}</b> {shares[0]:.1%}",
            f"rather {page.text(names[other])} {shares[1]:.1%}",
        ]
        caption = "<br>".join([*lines, f'<span class="hint">{page.text(piece.name)}</span>'])
        figures.append((_shown(pixels, config), f"{names[label]}, rather {names[other]}", caption))
    of_all = f"{count_of(len(images), 'label')} of {count_of(len(labels), 'image')}"
    hint = f"{of_all} may be wrong by confident learning, from predictions of runs without the image in training"
    return page.section("Suspected labels", hint, page.figures(figures) if figures else "<p>none</p>"), len(images)


def _shown(pixels: np.ndarray, config: RunConfig) -> np.ndarray:
    """Return an image [H, W, C] as decoded as RGB to look at, uint8 [H, W, 3]."""
    import torch

    planes = torch.from_numpy(np.ascontiguousarray(pixels)).permute(2, 0, 1)[None]
    shown: np.ndarray = displayed(planes / config.dataset.largest, config.dataset)[0]
    return shown
