"""Tables in pages of docs/."""

from pathlib import Path


def write_between(page: Path, begin: str, end: str, text: str) -> None:
    """Replace what a page has between two marks, which lines of their own begin with."""
    before, _, rest = page.read_text().partition(begin)
    _, _, after = rest.partition(end)
    page.write_text(f"{before}{begin}\n{text}{end}{after}")
