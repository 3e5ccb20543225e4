"""`train look`: write a page of a data set and of the images that a run trains on, or heat maps of its errors."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from launcher.compute import randomness
from launcher.config.compose import compose
from launcher.config.fields import size_text
from launcher.config.resolved import read
from launcher.console import console, print_json, progress_bars, verbatim
from launcher.counts import count_of
from launcher.errors import Problem, UserError
from launcher.files import page
from launcher.launch.devices import decide
from launcher.launch.prepare import prepare
from launcher.look.census import classes_section, images_section
from launcher.plan.plan import Plan
from launcher.records.run_folder import existing

if TYPE_CHECKING:
    from launcher.data.images import Reader
    from launcher.look.steps import Example

EXAMPLES = [
    "train look recipe=small dataset.path=/data/flowers",
    "train look recipe=hot dataset.path=/data/imagenet -o hot.html",
    "train look --cam runs/mild-imagenet-1120-1 -o cam.html",
    "train look recipe=mild dataset=shapes model=resnet18 launch=cpu batch_size=64",
]
_MOST_CLASSES, _FEW_CLASSES, _OF_NUMBERS = 20, 5, 10


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--cam", metavar="RUN", help="the errors of a run folder, with heat maps (Grad-CAM), instead")
    parser.add_argument("--best", action="store_true", help="with --cam the best checkpoint instead of the newest")
    parser.add_argument("-o", "--output", default="look.html", metavar="FILE", help="the page (default: look.html)")
    parser.add_argument("--json", action="store_true", help="as one JSON object")


def main(arguments: argparse.Namespace) -> int:
    path = Path(arguments.output)
    page.check_output(path)
    if arguments.cam:
        return _heat_maps(arguments, path)
    if arguments.best:
        raise UserError("--best is for heat maps of a run; add --cam RUN")
    composed = arguments.composed or compose(arguments.overrides)
    if not composed.config.dataloader.reads:
        message = "has noise instead of images; set dataloader=torchvision or ffcv"
        raise UserError(Problem(message, "dataloader", "synthetic"))
    task = composed.config.task
    if task.axes != 2:
        raise UserError(Problem("has no images to show; `train look` is for tasks of images", "task", task.name))
    with progress_bars(console(sys.stderr)) as (_, report):
        prepared = prepare(composed, seen=arguments.seen, is_new=False, weights=False, report=report)
    # note: imports torch, so only after all checks
    from launcher.data.images import ImageReader
    from launcher.look.steps import examples, loaders_here

    plan, seed, numbers = prepared.plan, prepared.plan.config.seed, task.labelled == "numbers"
    by_image = numbers or task.labelled == "pixels"
    with closing(loaders_here(plan, prepared.skipped)) as loaders:
        train, val = loaders.train.reader, loaders.evaluate.reader
        assert isinstance(train, ImageReader)
        order = randomness.generator(seed, "look").permutation(len(train.names))
        classes = [0] if by_image else sorted(order[:_MOST_CLASSES].tolist())
        steps = sorted({0, plan.total_steps // 2, plan.total_steps - 1})
        each = _OF_NUMBERS if by_image else 2 if len(classes) <= _FEW_CLASSES else 1
        found = examples(plan, train, classes, each, steps)
        parts = [images_section(train, val, prepared.notes, seed)]
        if numbers:
            parts.append(_numbers(train))
        elif not by_image:
            parts.append(classes_section(train, val, classes, seed))
        parts += [_step(plan, train, *step) for step in zip(steps, found, strict=True)]
    where = plan.config.dataset.path or plan.config.dataset.name
    page.write(path, f"{plan.config.recipe or 'no recipe'} on {where}", "".join(parts))
    of_classes = "" if by_image else f" of {count_of(len(classes), 'class')}"
    if arguments.json:
        shown = [list(dict.fromkeys(train.name(one.index) for one in images)) for images in found]
        print_json(
            {"file": path, "steps": [{"step": step, "images": of} for step, of in zip(steps, shown, strict=True)]}
        )
        return 0
    images = f"{count_of(sum(map(len, found)), 'image')}{of_classes}"
    console().print(verbatim(f"{path}: {images} at {count_of(len(steps), 'step')}"))
    return 0


def _heat_maps(arguments: argparse.Namespace, path: Path) -> int:
    """Write the page of a run's errors with heat maps."""
    if arguments.overrides:
        raise UserError("--cam is for the images and values of its run; remove the words key=value")
    folder = existing(arguments.cam, saved=True)
    config = read(folder.config)
    if config.task.labelled != "class" or config.task.axes != 2:
        raise UserError(f"--cam is for classifications, and {folder.path} is task={config.task.name}; pass another run")
    device = decide(replace(config.launch, nproc=1)).kind
    from launcher.look.heat_maps import errors_page

    markup = errors_page(folder, config, device, best=arguments.best)
    page.write(path, f"{folder.path.name}: errors with heat maps", markup)
    if arguments.json:
        print_json({"file": path, "steps": []})
    else:
        console().print(verbatim(f"{path}: errors with heat maps of the predicted class"))
    return 0


def _numbers(train: Reader) -> str:
    """Return a page's section of the numbers of the training images."""
    columns = ("", "mean", "least", "5 %", "median", "95 %", "most")
    values = (
        (name, of.mean(), *np.quantile(of, (0, 0.05, 0.5, 0.95, 1)))
        for name, of in zip(train.names, train.labels.T, strict=True)
    )
    rows = [[page.text(name), *(f"{value:.6g}" for value in row)] for name, *row in values]
    return page.section("Numbers", "of the training images", page.table(columns, rows, range(1, len(columns))))


def _step(plan: Plan, train: Reader, step: int, images: Sequence[Example]) -> str:
    """Return the images at a step: a row each, and a column for each algorithm that changes one of them."""
    from launcher.look.steps import ALL, LOADED

    names = list(images[0].versions) if images else [LOADED]
    same = {name: all(np.array_equal(one.versions[name], one.versions[LOADED]) for one in images) for name in names}
    seen = [name for name in names if name in (LOADED, ALL) or not same[name]]
    without = [name for name in names if name not in seen]
    size = f"images of {size_text(plan.size(step))} px, loaded at {size_text(plan.loaded_size(step))} px"
    hint = f"epoch {step // plan.steps_per_epoch + 1} of {plan.epochs}; {size}; each algorithm alone, and all together"
    if without:
        hint += f". Not visible at this step: {', '.join(without)}"
    if {one.step for one in images} - {step}:
        hint += ". Classes without an image in this step are shown at the nearest one with such an image"
    rows = (
        [_about(plan, train, one, step), *(page.image(one.versions[name], name) for name in seen)] for one in images
    )
    place = {0: "First", plan.total_steps - 1: "Last"}.get(step, "Middle")
    return page.section(f"{place} step, number {step:,}", hint, page.table(("label", *seen), rows))


def _about(plan: Plan, train: Reader, one: Example, step: int) -> str:
    """Return an image's label, file, step if it is another, and target after all algorithms, as markup."""
    numbers = plan.config.task.labelled == "numbers"

    def values(of: Mapping[int, float]) -> list[str]:
        return [f"{train.names[n]} {v:.6g}" if numbers else f"{v:.2f} {train.names[n]}" for n, v in of.items()]

    label = ", ".join(values(one.label) if numbers else (train.names[n] for n in one.label)) or "no label"
    lines = [train.name(one.index)]
    if one.step != step:
        lines.append(f"step {one.step:,}")
    if sorted(target := values(one.target)) != sorted(values(one.label)):
        lines += [f"target {value}" for value in target]
    about = "".join(f"<br>{page.text(line)}" for line in lines)
    return f'{page.text(label)}<span class="hint">{about}</span>'
