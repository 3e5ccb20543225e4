"""What `train predict` reads and prints for a task: here files of images; imports no torch."""

from __future__ import annotations

import csv
import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from launcher.config.tasks import SHARES
from launcher.counts import count_of
from launcher.data.dropped import notes_on
from launcher.data.listing import image_files, is_file
from launcher.data.pixel_types import PixelType
from launcher.errors import DONE, FAILED, Problem, UserError, first_few, one_line

if TYPE_CHECKING:
    from argparse import Namespace

    import torch

    from launcher.config.schema import RunConfig

STDIN, TOP, TOKENS, MASKS = "-", 5, 100, "masks"


@dataclass(frozen=True)
class PredictedImage:
    """The task's prediction of a file: names with probabilities or numbers; or the reason it cannot be read."""

    file: str
    classes: list[tuple[str, float]]
    unreadable: str | None = None


class PredictingModel(Protocol):
    """What presenters use of a trained model (`launcher.weights`)."""

    @property
    def task(self) -> Any: ...
    @property
    def card(self) -> dict[str, Any]: ...
    @property
    def device(self) -> torch.device: ...
    def outputs(self, pixels: torch.Tensor) -> torch.Tensor: ...
    def predict_files(self, files: Sequence[str], top: int) -> Iterable[PredictedImage]: ...


class Presenter(ABC):
    """Checks the words of a command line before the model is loaded, and prints predictions."""

    def __init__(self, arguments: Namespace, config: RunConfig):
        self.arguments, self.predicted = arguments, config.task.predicted

    @abstractmethod
    def present(self, model: PredictingModel) -> int:
        """Print the predictions; return the exit code."""


class ImagePresenter(Presenter):
    """Prints the predictions of each image as a line, JSON or rows of CSV, and counts those that cannot be read."""

    def __init__(self, arguments: Namespace, config: RunConfig):
        """Find the images; raises UserError if there is none, or an output would overwrite a file."""
        super().__init__(arguments, config)
        named = [*arguments.images, *(_listed(arguments.list) if arguments.list else [])]
        if arguments.csv and (missing := [one for one in named if one.endswith(".csv") and not is_file(Path(one))]):
            raise UserError(Problem("is printed; type --csv > FILE to write it", "--csv", missing[0]))
        self.files, self.dropped = image_files(named, PixelType.of(config.dataset).extensions)
        if not self.files:
            raise UserError("no images; pass files, folders, or --list FILE")
        if not any(is_file(Path(file)) for file in self.files):
            raise UserError(f"no such image: {first_few(self.files)}; pass files, folders, or --list FILE")

    def predictions(self, model: PredictingModel) -> Iterable[PredictedImage]:
        """Return those of the files."""
        return model.predict_files(self.files, self.arguments.top or TOP)

    def present(self, model: PredictingModel) -> int:
        failed, show = 0, self._json if self.arguments.json else self._csv if self.arguments.csv else self._line
        for note in notes_on(self.dropped):
            print(f"note: {one_line(note)}", file=sys.stderr)
        if self.arguments.csv:
            print("file,rank", *self.predicted, "error", sep=",")
        for prediction in self.predictions(model):
            if prediction.unreadable:
                failed += 1
                reason = f"{prediction.file} cannot be read as an image ({prediction.unreadable})"
                print(f"error: {one_line(reason)}", file=sys.stderr)
            show(prediction)
        if failed:
            print(f"error: {failed:,} of {count_of(len(self.files), 'file')} cannot be read", file=sys.stderr)
        return FAILED if failed else DONE

    def _json(self, image: PredictedImage) -> None:
        rows = [dict(zip(self.predicted, one, strict=True)) for one in image.classes]
        print(
            json.dumps({"file": image.file} | ({"error": image.unreadable} if image.unreadable else {"classes": rows}))
        )

    def _csv(self, image: PredictedImage) -> None:
        from launcher.console import csv_cell

        file, digits = csv_cell(image.file), ".6f" if self.predicted[1] in SHARES else ".9g"
        rows = [[file, rank, csv_cell(one), f"{p:{digits}}", ""] for rank, (one, p) in enumerate(image.classes, 1)]
        # note: each file has a row, also one without a class
        none = [file, "", "", "", csv_cell(image.unreadable or "")]
        csv.writer(sys.stdout, lineterminator="\n").writerows(rows or [none])

    def _line(self, image: PredictedImage) -> None:
        digits = ".2%" if self.predicted[1] in SHARES else ".6g"
        classes = "  ".join(f"{one} {score:{digits}}" for one, score in image.classes)
        if not image.unreadable:
            print(one_line(f"{image.file}: {classes or f'no {self.predicted[0]}'}"))


def _listed(name: str) -> list[str]:
    """Read the non-empty lines of a file or of standard input; raises UserError if the file cannot be read."""
    try:
        text = sys.stdin.read() if name == STDIN else Path(name).read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise UserError(Problem(f"cannot be read ({error.strerror}); pass another file", "--list", name)) from None
    # note: names may have other separators of lines, and files of Windows start with a byte-order mark
    return [line for line in text.removeprefix("\ufeff").split("\n") if line]
