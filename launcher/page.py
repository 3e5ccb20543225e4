"""HTML pages of images: one file that loads nothing and runs no script, in light or dark colours."""

import base64
import html
import io
from collections.abc import Collection, Iterable
from pathlib import Path

import numpy as np
from PIL import Image

from launcher import atomic
from launcher.errors import Problem, UserError, one_line

_MARK = '<meta name="generator" content="train">'
# Images up to this size are stored without loss and shown with their pixels.
_SMALL, _QUALITY = 96, 90
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
{mark}
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>{title}</title>
<style>
:root {{ --ink: #1a1a1a; --faint: #5c5c5c; --line: #d4d4d4; --paper: #fff; --mark: #0072b2; color-scheme: light; }}
* {{ box-sizing: border-box; }}
body {{ margin: 0 auto; max-width: 72rem; padding: 1rem; color: var(--ink); background: var(--paper);
  font: 1rem/1.45 system-ui, sans-serif; overflow-wrap: anywhere; }}
h1 {{ font-size: 1.5rem; margin: 0 0 .25rem; }}
h2 {{ font-size: 1.15rem; margin: 1.5rem 0 .25rem; }}
p {{ margin: .25rem 0 .5rem; }}
.hint {{ color: var(--faint); font-size: .9rem; }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-size: .88rem; }}
th, td {{ text-align: left; padding: .25rem .9rem .25rem 0; vertical-align: top;
  border-bottom: 1px solid var(--line); }}
th {{ white-space: nowrap; }}
td {{ max-width: 24rem; }}
td:first-child {{ min-width: 8rem; }}
.number {{ text-align: right; font-variant-numeric: tabular-nums; }}
.bar {{ display: block; height: .8rem; margin-top: .25rem; background: var(--mark); }}
.images {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(8rem, 1fr)); gap: 1rem; }}
figure {{ margin: 0; font-size: .85rem; }}
img {{ display: block; width: 8rem; height: auto; }}
img.small {{ image-rendering: pixelated; }}
@media screen and (prefers-color-scheme: dark) {{
  :root {{ color-scheme: dark; --ink: #e6e6e6; --faint: #a8a8a8; --line: #3d3d3d; --paper: #16181b; --mark: #56b4e9; }}
}}
</style>
</head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>
"""


def text(value: object) -> str:
    """Escape a text: markup, control characters, and invalid bytes of names."""
    return html.escape(one_line(str(value)))


def image(pixels: np.ndarray, about: str) -> str:
    """Return an element of an image, uint8 [H, W, 3]; `about` describes it where it is not shown."""
    small, file = max(pixels.shape[:2]) <= _SMALL, io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG" if small else "JPEG", quality=_QUALITY)
    kind, data = "png" if small else "jpeg", base64.b64encode(file.getvalue()).decode()
    return f'<img{" class=small" * small} src="data:image/{kind};base64,{data}" alt="{text(about)}">'


def figures(images: Iterable[tuple[np.ndarray, str, str]]) -> str:
    """Return a grid of images, each with its description and a caption of markup."""
    listed = (f"<figure>{image(pixels, about)}<figcaption>{caption}</figcaption></figure>"
              for pixels, about, caption in images)  # fmt: skip
    return f'<div class="images">{"".join(listed)}</div>'


def table(columns: Iterable[str], rows: Iterable[Iterable[str]], numbers: Collection[int] = ()) -> str:
    """Return a table of cells of markup; the columns `numbers` are right-aligned."""

    def row(tag: str, cells: Iterable[str]) -> str:
        kinds = (' class="number"' * (place in numbers) for place in range(1 << 20))
        return f"<tr>{''.join(f'<{tag}{kind}>{cell}</{tag}>' for kind, cell in zip(kinds, cells, strict=False))}</tr>"

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
        if path.exists() and _MARK not in path.read_text(errors="replace")[:1000]:
            raise UserError(Problem("exists and is not such a page; set another name", "--output", path))
    except OSError as error:
        raise UserError(Problem(f"cannot be read: {error.strerror}", "--output", path)) from None


def write(path: Path, title: str, body: str) -> None:
    """Write a page, atomically; the title is a text, the body markup."""
    atomic.write_text(path, _PAGE.format(mark=_MARK, title=text(title), body=body))
