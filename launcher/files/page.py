"""HTML pages of images: one file that loads nothing and runs no script, in light or dark colours."""

import base64
import html
import io
from collections.abc import Collection, Iterable
from html.parser import HTMLParser
from pathlib import Path
from string import Template

import numpy as np
from PIL import Image

from launcher.errors import Problem, UserError, one_line
from launcher.files import atomic, outputs

# Images up to this size are stored without loss and shown with their pixels.
_SMALL, _QUALITY = 96, 90
_PAGE = Path(__file__).with_suffix(".html")


def text(value: object) -> str:
    """Escape a text: markup, control characters, and invalid bytes of names."""
    return html.escape(one_line(str(value)))


def image(pixels: np.ndarray, about: str) -> str:
    """Return an element of an image, uint8 [H, W, 3]; `about` describes it where it is not shown."""
    return image_element(_encoded(pixels), about)


def _encoded(pixels: np.ndarray) -> str:
    """Return an image, uint8 [H, W, 3], as a data URI."""
    small, file = max(pixels.shape[:2]) <= _SMALL, io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG" if small else "JPEG", quality=_QUALITY)
    return f"data:image/{'png' if small else 'jpeg'};base64,{base64.b64encode(file.getvalue()).decode()}"


def image_element(uri: str, about: str) -> str:
    """Return an element of an encoded image."""
    small = " class=small" if uri.startswith("data:image/png") else ""
    return f'<img{small} src="{text(uri)}" alt="{text(about)}">'


def figures(images: Iterable[tuple[np.ndarray, str, str]]) -> str:
    """Return a grid of images, each with its description and a caption of markup."""
    return grid((image(pixels, about), caption) for pixels, about, caption in images)


def grid(images: Iterable[tuple[str, str]]) -> str:
    """Return a grid of elements of images, each with a caption of markup."""
    listed = (f"<figure>{element}<figcaption>{caption}</figcaption></figure>" for element, caption in images)
    return f'<div class="images">{"".join(listed)}</div>'


def read_figures(text: str) -> list[tuple[str, str, list[str]]]:
    """Return the images of a page: encoded, description, and the lines of the caption as texts."""
    parser = _Figures()
    parser.feed(text)
    return parser.images


class _Figures(HTMLParser):
    """Collects what `grid` has written; other images are skipped."""

    def __init__(self) -> None:
        super().__init__()
        self.images: list[tuple[str, str, list[str]]] = []
        self._in_caption = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag == "img" and (uri := values.get("src", "")).startswith("data:image/"):
            self.images.append((uri, values.get("alt", ""), []))
        self._in_caption = tag == "figcaption" or (self._in_caption and tag != "figure")

    def handle_endtag(self, tag: str) -> None:
        self._in_caption = self._in_caption and tag != "figcaption"

    def handle_data(self, data: str) -> None:
        if self._in_caption and self.images:
            self.images[-1][2].append(data)


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
    """Check before the work that a page can be written; raises UserError as `outputs.check_file`, or without .html."""
    if path.suffix != ".html":
        raise UserError(Problem("must end in .html", "--output", path))
    outputs.check_file(path)


def write(path: Path, title: str, body: str) -> None:
    """Write a page, atomically; the title is a text, the body markup."""
    atomic.write_text(path, Template(_PAGE.read_text(encoding="utf-8")).substitute(title=text(title), body=body))
