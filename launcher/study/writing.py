"""A study's page, picture and table as files, each written whole or not at all."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from launcher.errors import Problem, UserError
from launcher.study.curves import Cost
from launcher.study.report import page
from launcher.study.study import Study
from launcher.study.tables import POINT_COLUMNS, point_rows


def write_page(study: Study, path: Path, *, title: str, written: str) -> None:
    """Write the page; raises UserError where the file cannot be written, as the others do."""
    content = page(study, title=title, written=written).encode()
    _replace(path, lambda temporary: temporary.write_bytes(content))


def write_csv(study: Study, path: Path) -> None:
    """Write one row a point."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(POINT_COLUMNS))
    writer.writeheader()
    writer.writerows(point_rows(study))
    _replace(path, lambda temporary: temporary.write_bytes(text.getvalue().encode()))


def write_picture(study: Study, path: Path, *, title: str, axis: Cost) -> None:
    """Write quality against one cost as PNG."""
    from launcher.study.picture import draw_tradeoff

    _replace(path, lambda temporary: draw_tradeoff(study, temporary, title=title, axis=axis))


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        write(temporary)
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise UserError(Problem(f"cannot be written: {error.strerror}", "--output", path)) from None
