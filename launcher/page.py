"""HTML pages of images: one file that loads nothing and runs no script, in light or dark colours."""

import base64
import html
import io
from collections.abc import Collection, Iterable
from pathlib import Path
from string import Template

import numpy as np
from PIL import Image

from launcher import atomic
from launcher.disk import reason
from launcher.errors import Problem, UserError, one_line

_MARK = '<meta name="generator" content="train">'
# Images up to this size are stored without loss and shown with their pixels.
_SMALL, _QUALITY = 96, 90
_PAGE = Path(__file__).with_suffix(".html")


def text(value: object) -> str:
    """Escape a text: markup, control characters, and invalid bytes of names."""
    return html.escape(one_line(str(value)))


def image(pixels: np.ndarray, about: str) -> str:
    """Return an element of an image, uint8 [H, W, 3]; `about` describes it where it is not shown."""
    small, file = max(pixels.shape[:2]) <= _SMALL, io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG" if small else "JPEG", quality=_QUALITY)
    kind, data = "png" if small else "jpeg", base64.b64encode(file.getvalue()).decode()
    return f'<img{" class=small" if small else ""} src="data:image/{kind};base64,{data}" alt="{text(about)}">'


def figures(images: Iterable[tuple[np.ndarray, str, str]]) -> str:
    """Return a grid of images, each with its description and a caption of markup."""
    listed = (f"<figure>{image(pixels, about)}<figcaption>{caption}</figcaption></figure>"
              for pixels, about, caption in images)  # fmt: skip
    return f'<div class="images">{"".join(listed)}</div>'


def table(columns: Iterable[str], rows: Iterable[Iterable[str]], numbers: Collection[int] = ()) -> str:
    """Return a table of cells of markup; the columns `numbers` are right-aligned."""

    def row(tag: str, cells: Iterable[str]) -> str:
        kinds = ((' class="number"' if place in numbers else "", cell) for place, cell in enumerate(cells))
        return f"<tr>{''.join(f'<{tag}{kind}>{cell}</{tag}>' for kind, cell in kinds)}</tr>"

    body = "".join(row("td", cells) for cells in rows)
    return (
        f'<div class="scroll"><table><thead>{row("th", map(text, columns))}</thead><tbody>{body}</tbody></table></div>'
    )


def section(title: str, hint: str, body: str) -> str:
    """Return a section with a title and a hint, both texts."""
    return f'<section>\n<h2>{text(title)}</h2>\n<p class="hint">{text(hint)}</p>\n{body}\n</section>\n'


def check_output(path: Path) -> None:
    """Check before the work that a page can be written.

    Raises UserError if the name does not end in .html, its folder is missing, or another file has the name.
    """
    if path.suffix != ".html":
        raise UserError(Problem("must end in .html", "--output", path))
    if not path.absolute().parent.is_dir():
        raise UserError(Problem("its folder does not exist; create it first", "--output", path))
    try:
        if path.exists() and _MARK not in path.read_text(encoding="utf-8", errors="replace")[:1000]:
            raise UserError(Problem("exists and is not such a page; set another name", "--output", path))
    except OSError as error:
        raise UserError(Problem(f"cannot be read: {reason(error)}", "--output", path)) from None


def write(path: Path, title: str, body: str) -> None:
    """Write a page, atomically; the title is a text, the body markup."""
    atomic.write_text(path, Template(_PAGE.read_text(encoding="utf-8")).substitute(title=text(title), body=body))
