"""Images from FFCV files, decoded in threads."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from pydantic.dataclasses import dataclass

from launcher.config.fields import STRICT
from launcher.config.schema import RunConfig
from launcher.data.ffcv.values import FFCVValues
from launcher.errors import UserError

if TYPE_CHECKING:
    from launcher.data.images import Reader
    from launcher.data.index import Images
    from launcher.data.inspection import Inspection
    from launcher.data.loaders.base import Opening
    from launcher.data.workers import Report


@dataclass(frozen=True, config=STRICT)
class FFCVLoader(FFCVValues):
    """Images from FFCV files; `workers` are threads per rank."""

    def reads_from(self, config: RunConfig) -> str | None:
        from launcher.data.ffcv.dataset import FFCVDataset  # note: every command reads the values in this file

        with suppress(UserError):
            files = FFCVDataset.of(config)
            return config.dataset.path if files.are_missing else str(files.path("train").parent)
        return None

    def inspect(
        self, config: RunConfig, must_exist: bool, skipped: Collection[str] | None, report: Report
    ) -> Inspection:
        from launcher.data.ffcv.dataset import FFCVDataset
        from launcher.data.ffcv.inspection import inspect_files
        from launcher.data.inspection import inspect_source

        # note: a new run writes them before it starts
        if FFCVDataset.of(config).are_missing:
            return inspect_source(config, must_exist, skipped, report)
        return inspect_files(config, must_exist)

    def identity(self, config: RunConfig, skipped: Collection[str] | None, images: Sequence[Images]) -> str:
        from launcher.data.ffcv.inspection import identity_of_files

        return identity_of_files(config)

    def open(self, opening: Opening) -> tuple[Reader, Reader]:
        from launcher.data.ffcv.reader import open_readers  # note: OpenCV

        return open_readers(self, opening)
