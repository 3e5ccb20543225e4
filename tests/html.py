"""Parse the HTML pages that commands write."""

from html.parser import HTMLParser
from pathlib import Path


class Page(HTMLParser):
    """The tags and texts of a page."""

    def __init__(self, path: Path):
        super().__init__()
        self.tags: list[str] = []
        self.sources: list[str] = []
        self.texts: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.sources += [str(value) for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
