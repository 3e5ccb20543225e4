"""The code blocks of README and docs/."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
_FENCE = re.compile(r"^```(\w*)$")
_TITLE = re.compile(r"^`([\w/.]+)`:$")


@dataclass(frozen=True)
class Block:
    """A code block; `language` is empty for an indented one, `title` is the file name in the line above."""

    page: str
    language: str
    title: str
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"

    def __str__(self) -> str:
        return f"{self.page}: {self.lines[0]}"


def blocks(page: Path) -> Iterator[Block]:
    """Yield the code blocks of a page, fenced or indented."""
    lines, number, title = page.read_text().splitlines(), 0, ""
    while number < len(lines):
        line, start = lines[number], number
        if fence := _FENCE.match(line):
            number = lines.index("```", number + 1)
            yield Block(page.name, fence[1], title, tuple(lines[start + 1 : number]))
        elif line.startswith("    ") and not lines[number - 1].strip():
            while number < len(lines) and (lines[number].startswith("    ") or not lines[number].strip()):
                number += 1
            yield Block(page.name, "", title, tuple(part[4:] for part in lines[start:number] if part.strip()))
        if line.strip():
            match = _TITLE.match(line)
            title = match[1] if match else ""
        number += 1


def all_blocks() -> list[Block]:
    return [block for page in PAGES for block in blocks(page)]
