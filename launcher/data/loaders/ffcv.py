"""Images from FFCV files, decoded in threads."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from pydantic.dataclasses import dataclass

from launcher.config.declaration import RunPlan
from launcher.config.fields import STRICT
from launcher.config.schema import RunConfig
from launcher.data.ffcv.values import FFCVValues
from launcher.errors import Problem, UserError
from launcher.rank.signs import STOP

if TYPE_CHECKING:
    from launcher.data.images import Reader
    from launcher.data.inspection import Inspection
    from launcher.data.loaders.base import Opening
    from launcher.data.split import Split
    from launcher.data.workers import Report


@dataclass(frozen=True, config=STRICT)
class FFCVLoader(FFCVValues):
    """Images from FFCV files; `workers` are threads per rank."""

    def reads_from(self, config: RunConfig) -> str | None:
        from launcher.data.ffcv.dataset import FFCVDataset  # note: every command reads the values in this file

        with suppress(UserError):
            if self._writes(config):
                return config.dataset.path
            return str(FFCVDataset.of(config).path("train").parent)
        return None

    def inspect(
        self, config: RunConfig, must_exist: bool, skipped: Collection[str] | None, report: Report
    ) -> Inspection:
        from launcher.data.ffcv.inspection import inspect_files
        from launcher.data.inspection import inspect_source

        if self._writes(config):
            return inspect_source(config, must_exist, skipped, report)
        return inspect_files(config, must_exist)

    def identity(self, config: RunConfig, skipped: Collection[str] | None, images: Sequence[Split]) -> str:
        from launcher.data.ffcv.inspection import identity_of_files
        from launcher.data.identity import of_source

        return of_source(config, skipped, images) if self._writes(config) else identity_of_files(config)

    def training_fingerprint(self, config: RunConfig, images: Sequence[Split]) -> str | None:
        from launcher.data.ffcv.inspection import fingerprint_of_training
        from launcher.data.identity import of_training

        if self._writes(config):
            return of_training(config.dataset, images[0] if images else None)
        return fingerprint_of_training(config)

    def images(self, config: RunConfig, skipped: Collection[str]) -> Sequence[Split]:
        from launcher.data.sources.find import read_splits

        with STOP.waiting():
            return read_splits(config, skipped) if self._writes(config) else ()

    def open(self, opening: Opening) -> tuple[Reader, Reader]:
        from launcher.data.ffcv.growing import open_growing  # note: OpenCV
        from launcher.data.ffcv.loader import open_readers

        # note: another run may have completed the files
        grows = opening.images and self._writes(opening.plan.config)
        return open_growing(self, opening) if grows else open_readers(self, opening)

    def _writes(self, config: RunConfig) -> bool:
        """Return whether a run writes files that are missing."""
        from launcher.data.ffcv.dataset import FFCVDataset

        return self.write_missing and not FFCVDataset.of(config).are_written()

    def problems(self, plan: RunPlan) -> Iterator[Problem]:
        if self.write_missing and (reason := self.cannot_write(plan.config)):
            message = f"{reason}; set dataloader.write_missing=false, and write the files by train prepare"
            yield Problem(message, "dataloader.write_missing", True)
        if self.files.small_side is None or self.reads_small(plan, 0):
            return
        size = plan.loaded_view(0)
        least = -(-size * self.files.max_side // plan.full_view)
        key, value = "dataloader.files.small_side", least if size < plan.full_view else "null"
        message = f"no step uses images this small, since all crops have at least {size} px; set {key}={value}"
        yield Problem(message, key, self.files.small_side)

    def cannot_write(self, config: RunConfig) -> str:
        """Return why a run cannot write files while it trains; empty if it can."""
        from launcher.data.ffcv.dataset import FFCVDataset

        reasons = {
            "the images are not in a folder of this machine": not FFCVDataset.of(config).may_be_written(),
            "each of several nodes reads only a part of the images": config.launch.nnodes > 1,
            "files of skipped images have other numbers": config.dataset.skip_bad,
            "images have one class each in files that a run writes": config.task.labelled != "class",
            "small images are not written while a run trains": self.files.small_side is not None,
            "dataloader.train and dataloader.val exist": bool(self.train or self.val),
        }
        return next((reason for reason, is_one in reasons.items() if is_one), "")
