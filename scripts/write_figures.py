"""Write tables into README.md and docs/: published figures, the results of the demo, words of other tools.

Run it after published.yaml, a recipe's header, docs/demo.yaml or synonyms.yaml changes:
.venv/bin/python scripts/write_figures.py
"""

import re
from collections.abc import Sequence
from functools import cache
from itertools import groupby
from pathlib import Path

import yaml

from launcher.config.recipes import Published, Recipe, ablations, listing
from launcher.results.curves import Curve
from launcher.results.published import published, published_curves

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "docs/first_run.md", "docs/recipes.md", "docs/results.md", "docs/configuration.md")
_SYNONYMS = ROOT / "launcher" / "config" / "synonyms.yaml"


@cache
def tables() -> dict[str, str]:
    """Return each table by the name of its mark in the pages."""
    return {
        "demo": _demo(),
        "recipes": _recipes(),
        "results": _results(listing()),
        "ablations": _results(ablations()),
        "machines": _machines(),
        "synonyms": _synonyms(),
    }


def written(page: str) -> str:
    """Return a page with the current tables between their marks."""
    for name, table in tables().items():
        page = re.sub(f"(<!-- {name}: [^\n]*-->\n).*?(<!-- end -->)", rf"\g<1>\n{table}\n\g<2>", page, flags=re.DOTALL)
    return page


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _demo() -> str:
    """Return the accuracy and the time of the demo, from docs/demo.yaml."""
    results = yaml.safe_load((ROOT / "docs" / "demo.yaml").read_text())
    top1, minutes = ([result[name] for result in results] for name in ("top1", "core_minutes"))
    return (
        f"With {len(results)} seeds it reached {_span(top1, '.1f')} % top-1 accuracy on 1,000 validation images; "
        f"chance is 10 %.\nIt took {_span(minutes, '.0f')} minutes of processor time.\n"
    )


def _span(values: Sequence[float], digits: str) -> str:
    """Return the lowest and the highest value, or one number where both look the same."""
    least, most = (f"{value:{digits}}" for value in (min(values), max(values)))
    return least if least == most else f"{least} to {most}"


def _recipes() -> str:
    """Return one row per recipe with published figures, those of the first machine in its header."""
    rows = []
    for recipe in listing():
        if not (results := recipe.about.published):
            continue
        first = [one for one in results if one.hardware == results[0].hardware]
        rows.append([f"`{recipe.name}`", recipe.about.summary, *_figures(first)])
    return _table(["recipe", "what it is", "published top-1 %", "minutes", "on"], rows)


def _results(recipes: Sequence[Recipe]) -> str:
    """Return one row per recipe, machine and source."""
    rows = []
    for recipe in recipes:
        groups = groupby(recipe.about.published, key=lambda one: (one.hardware, one.source))
        for (_, source), results in groups:
            listed = list(results)
            epochs = ", ".join(str(one.epochs or "–") for one in listed)
            rows.append([f"`{recipe.name}`", epochs, *_figures(listed), source])
        if not recipe.about.published:
            rows.append([f"`{recipe.name}`", "–", "–", "–", "–", f"{recipe.about.summary}; no quality of it is listed"])
    return _table(["recipe", "epochs", "top-1 %", "minutes", "on", "source"], rows)


def _figures(results: Sequence[Published]) -> list[str]:
    """Return accuracies, minutes and machine of results on one machine."""
    if not results:
        return ["–", "–", "–"]
    minutes = [one.minutes for one in results]
    times = ", ".join("–" if one is None else f"{one:g}" for one in minutes) if any(minutes) else "–"
    return [", ".join(one.quality for one in results), times, results[0].hardware]


def _machines() -> str:
    rows = []
    for machine in published()["machines"]:
        curves = [curve for curve in published_curves() if curve.setting.hardware == machine["name"]]
        points = "; ".join(map(_points, curves)) or f"none: {machine['why']}"
        rows.append([f"{machine['name']} ({machine['cloud']})", f"8 {machine['gpu']}", points])
    return _table(["machine", "GPUs", "published points: top-1 % in minutes, *derived*"], rows)


def _points(curve: Curve) -> str:
    points = [f"{point.quality:.4g} in {point.cost('time'):g}" for point in curve.points]
    marked = [f"*{text}*" if point.note else text for text, point in zip(points, curve.points, strict=True)]
    model = "" if curve.setting.model == "resnet50" else f" ({curve.setting.model})"
    return f"{curve.name}{model} {', '.join(marked)}"


def _synonyms() -> str:
    """Return one row per tool: its words, each with ours."""
    rows: list[list[str]] = []
    for line in _SYNONYMS.read_text().partition("\nkeys:\n")[2].partition("\nlines:\n")[0].splitlines():
        if line.startswith("  # "):
            rows.append([line.removeprefix("  # "), ""])
        else:
            theirs, ours = line.strip().split(": ")
            rows[-1][1] += f"{', ' if rows[-1][1] else ''}`{theirs}` → `{ours}`"
    return _table(["tool", "its word → here"], rows)


if __name__ == "__main__":
    for name in PAGES:
        (ROOT / name).write_text(written((ROOT / name).read_text()))
        print(name)
