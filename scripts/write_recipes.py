"""Write the table of recipes with published figures into README.md, from the headers of recipes/.

Run it after one changes: .venv/bin/python scripts/write_recipes.py
"""

import re
from collections.abc import Sequence
from pathlib import Path

from launcher.config.recipes import Published, listing

README = Path(__file__).resolve().parents[1] / "README.md"
_BETWEEN = re.compile(r"(<!-- recipes: [^\n]*-->\n).*?(<!-- end -->)", re.DOTALL)


def written(text: str) -> str:
    """Return README with the current table between its marks."""
    head = "| recipe | what it is | published top-1 % | minutes, on |\n|---|---|---|---|"
    rows = [f"| `{one.name}` | {one.about.summary} | {_figures(one.about.published)} |"
            for one in listing() if one.about.published]  # fmt: skip
    table = "\n".join([head, *rows])
    return _BETWEEN.sub(rf"\g<1>\n{table}\n\n\g<2>", text)


def _figures(results: Sequence[Published]) -> str:
    """Return accuracies, minutes and machine of the results on the first machine."""
    first = [one for one in results if one.hardware == results[0].hardware]
    minutes = [f"{one.minutes:g}" for one in first if one.minutes is not None]
    return f"{_span([one.quality for one in first])} | {', '.join(filter(None, (_span(minutes), results[0].hardware)))}"


def _span(texts: Sequence[str]) -> str:
    """Return the lowest and the highest of some numbers, or one if they are equal."""
    ordered = sorted(dict.fromkeys(texts), key=lambda text: float(text.split()[-1]))
    return " to ".join(dict.fromkeys([*ordered[:1], *ordered[-1:]]))


if __name__ == "__main__":
    README.write_text(written(README.read_text()))
