"""Write the tables of docs/efficiency.md that hold what was published: machines, and stated speed-ups computed anew.

Run it after a change of published.yaml or of a recipe's header: .venv/bin/python scripts/write_efficiency.py
"""

from __future__ import annotations

import re
from pathlib import Path

from lab.study.curves import Curve
from lab.study.published import benchmarked_machines, published_curves, stated_speedups

PAGE = Path(__file__).resolve().parents[1] / "docs" / "efficiency.md"


def tables() -> dict[str, str]:
    """Name of each table's mark in the page, and the table."""
    return {"machines": _machines(), "speed-ups": _speedups()}


def written(page: str) -> str:
    """The page with its tables of now between their marks."""
    for name, table in tables().items():
        page = re.sub(f"(<!-- {name}: [^\n]*-->\n).*?(<!-- end -->)", rf"\g<1>\n{table}\n\g<2>", page, flags=re.DOTALL)
    return page


def _machines() -> str:
    lines = ["| machine | GPUs | published points: top-1 % in minutes, *derived* |", "|---|---|---|"]
    for machine in benchmarked_machines():
        curves = [c for c in published_curves() if c.setting.hardware == machine.name]
        told = "; ".join(map(_points, curves)) or f"none: {machine.why}"
        lines.append(f"| {machine.name} ({machine.cloud}) | 8 {machine.gpu} | {told} |")
    return "\n".join(lines) + "\n"


def _points(curve: Curve) -> str:
    points = [f"{point.quality:.4g} in {point.cost('time'):g}" for point in curve.points]
    told = [f"*{text}*" if point.note else text for text, point in zip(points, curve.points, strict=True)]
    model = "" if curve.setting.model == "resnet50" else f" ({curve.setting.model})"
    return f"{curve.name}{model} {', '.join(told)}"


def _speedups() -> str:
    lines = ["| claim | stated | computed | from | verdict |", "|---|---|---|---|---|"]
    for one in stated_speedups():
        computed = "-" if one.computed is None else f"{one.computed:.2f}x"
        numbers = "-" if one.computed is None else f"{one.slow:g} / {one.fast:g} {one.unit}"
        lines.append(f"| {one.claim} | {one.told} | {computed} | {numbers} | {one.verdict} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
    print(PAGE)
