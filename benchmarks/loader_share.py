"""Predict on each rented machine how much of a recipe's training waits for its loader.

    python -m benchmarks.loader_share --page docs/prediction.md

Steps are traced on tensors without values in two minutes; no GPU is needed.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.page import write_between

_BEGIN, _END = "<!-- loaders -->", "<!-- end of loaders -->"
RECIPES = ("mild", "medium", "hot")
_FASTER = [
    *("dataloader=ffcv", "dataloader.files.jpeg_share=1.0", "dataloader.files.restart_interval=4"),
    *("dataloader.decode=crop", "dataloader.dct_scaling=true", "algorithms.progressive_resizing.where=loader"),
]
# By column: images in folders, the files of `train prepare`, and files with values that load faster.
LOADERS = {"images": ["dataloader=torchvision"], "files": ["dataloader=ffcv"], "faster files": _FASTER}

Offers = dict[str, dict[str, Any]]


def offers(recipe: str, words: Sequence[str], machines: str = "all") -> Offers:
    """Return the offers on demand of the machines that can train a recipe, by machine, as `train plan` prints them."""
    command = [sys.executable, "-m", "launcher", "plan", f"recipe={recipe}", "--on", machines, "--json", *words]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["offers"]
    return {offer["machine"]: offer for offer in found if not offer["spot"] and not offer["problem"]}


def cell(of_loaders: Sequence[dict[str, Any]], *, writes: bool = False) -> str:
    """Return the hours of training with each loader, and in percent how much of them waits for the loader.

    writes: whether a run writes files by default, which gets a star.
    """
    hours = [f"{offer['training_minutes']['value'] / 60:.3g}" for offer in of_loaders]
    return f"{', '.join(hours)} ({', '.join(f'{share(offer):.0f}' for offer in of_loaders)})" + " \\*" * writes


def share(offer: dict[str, Any]) -> float:
    """Return the percentage of training in steps that wait for the loader."""
    seconds = [(float(phase["steps"] * phase["seconds"]), phase["bound"] == "loader") for phase in offer["phases"]]
    return 100 * sum(one for one, waits in seconds if waits) / sum(one for one, _ in seconds)


def table(machines: str = "all") -> str:
    """Return a row a machine, sorted by name."""
    by_recipe = [[offers(recipe, words, machines) for words in LOADERS.values()] for recipe in RECIPES]
    by_default = [offers(recipe, [], machines) for recipe in RECIPES]
    names = sorted({name for of_loaders in by_recipe for found in of_loaders for name in found})
    gpus = {name: found[name]["gpu"] for of_loaders in by_recipe for found in of_loaders for name in found}
    lines = [["machine", "GPUs", *(f"`{recipe}`" for recipe in RECIPES)], ["---"] * (2 + len(RECIPES))]
    for name in names:
        cells = [
            cell([found[name] for found in of_loaders], writes=default[name]["writing_minutes"] > 0)
            if all(name in found for found in of_loaders)
            else "–"
            for of_loaders, default in zip(by_recipe, by_default, strict=True)
        ]
        lines.append([name, gpus[name], *cells])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Predict how much of training waits for the loader.")
    parser.add_argument("--page", metavar="FILE", help="write the table to this file, between its marks")
    arguments = parser.parse_args(words)
    text = table()
    print(text, end="")
    if arguments.page:
        write_between(Path(arguments.page), _BEGIN, _END, f"\n{text}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
