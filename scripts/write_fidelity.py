"""Write docs/fidelity.md, the comparison with the published code, from docs/fidelity.yaml.

Run it after docs/fidelity.yaml changes: .venv/bin/python scripts/write_fidelity.py
"""

from pathlib import Path
from typing import Any

import yaml

DOCS = Path(__file__).resolve().parents[1] / "docs"
VERDICTS = {"same": "as published", "published": "`fidelity=published`", "differs": "differs"}
_HEAD = """\
# Fidelity

    train recipe=hot fidelity=published dataset.path=/data/imagenet

This page lists, per algorithm and recipe, whether this project computes what the published code computes: the same
("as published"), the same with `fidelity=published`, which sets the key in parentheses, or something else, with the
reason ("differs"). Each row has a test. `scripts/write_fidelity.py` writes this page from `docs/fidelity.yaml`.

For all rows: every random draw is a function of seed, purpose and position, so distributions are the published ones
and single draws are not. Images are rotated by their EXIF data; Pillow and FFCV in the published code use them as
stored, as does `dataset.exif_orientation=false`. Crops have Pillow-SIMD's pixels. Pillow rounds otherwise: down to 64
to 224 px, they differ from those of Pillow 13 by one level of 255 on up to 3.5 % of the values, bicubic ones of photos
by two on up to 0.001 %; `dataloader.decoder=pillow` resizes by the installed one. Rotations and shears differ from
Pillow's by one level on 0.3 % of the values on average, on 2 % of an image at most, since coordinates are float32.
`precision=auto` computes in bfloat16 if the GPU supports it; published runs used float16. An ablation is its base
recipe with one change. Accuracies and minutes are quoted as published: nobody has measured them with this code.
"""


def table() -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Return the rows of docs/fidelity.yaml by section and name."""
    loaded: dict[str, dict[str, list[dict[str, Any]]]] = yaml.safe_load((DOCS / "fidelity.yaml").read_text())
    return loaded


def page() -> str:
    """Return the whole page."""
    parts = [_HEAD]
    for section, names in table().items():
        rows = [_row(name, row) for name, rows in names.items() for row in rows]
        parts.append(f"## {section.capitalize()}\n\n| | | what |\n|---|---|---|\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def _row(name: str, row: dict[str, Any]) -> str:
    (verdict,) = row.keys() & VERDICTS.keys()
    what = row[verdict]
    if verdict == "published":
        what += f" ({', '.join(f'`{key}`' for key in row['keys'])})"
    if verdict == "differs":
        what += f": {row['why']}"
    return f"| `{name}` | {VERDICTS[verdict]} | {what} |"


if __name__ == "__main__":
    (DOCS / "fidelity.md").write_text(page())
    print(DOCS / "fidelity.md")
