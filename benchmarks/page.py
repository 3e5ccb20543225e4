"""Tables in pages of docs/."""

from pathlib import Path


def write_between(page: Path, start: str, end: str, text: str) -> None:
    """Replace what a page has between two marks, which lines of their own start with."""
    before, _, rest = page.read_text().partition(start)
    _, _, after = rest.partition(end)
    page.write_text(f"{before}{start}\n{text}{end}{after}")
