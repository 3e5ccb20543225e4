"""`train eval RUN --corruptions`: the metric on corrupted images by kind and strength; `--cam`: heat maps of errors."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from launcher.cli.evaluate import evaluation, requested
from launcher.config.goals import Metric
from launcher.console import console, print_json, progress_bars, table
from launcher.counts import count_of
from launcher.errors import Problem, UserError
from launcher.launch.devices import decide

if TYPE_CHECKING:
    from launcher_lab.look.corrupted_eval import Robustness


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--corruptions", action="store_true", help="on corrupted images instead, as ImageNet-C: 15 kinds at 5 strengths"
    )
    parser.add_argument("--cam", action="store_true", help="heat maps (Grad-CAM) in the gallery of --by-class")


def handle(arguments: argparse.Namespace) -> int | None:
    """Evaluate as the options request it; return None without one of them."""
    if arguments.corruptions:
        return _corruptions(arguments)
    return _heat_maps(arguments) if arguments.cam else None


def _heat_maps(arguments: argparse.Namespace) -> int:
    """Evaluate as without the option, with heat maps in the gallery."""
    if not arguments.by_class:
        raise UserError("--cam is for the gallery of --by-class; add --by-class")
    from launcher_lab.cli.look import check_explained  # note: every verb imports this module, and it takes long

    folder, config, _ = requested(arguments)
    check_explained(config, folder)
    if config.image.eval_views != "centre":
        message = "has several views, and heat maps are of one; set centre, or omit --cam"
        raise UserError(Problem(message, "image.eval_views", config.image.eval_views))
    from launcher_lab.look.heat_maps import Explained

    return evaluation(arguments, Explained)


def _corruptions(arguments: argparse.Namespace) -> int:
    """Print the table."""
    only = {
        "--by-class": arguments.by_class,
        "--csv": arguments.csv is not None,
        "--only-present": arguments.only_present,
        "--cam": arguments.cam,
        "--ema-length": arguments.ema_length is not None,
    }
    if others := [flag for flag, is_set in only.items() if is_set]:
        raise UserError(*(f"{flag} is for images as they are; remove it, or --corruptions" for flag in others))
    folder, config, other = requested(arguments)
    # note: imports torch, so only after all checks of the words
    from launcher_lab.look.corrupted_eval import check_corruptible, robustness

    check_corruptible(config)
    devices = decide(replace(config.launch, nproc=1))
    with progress_bars(console(sys.stderr)) as (_, report):
        result = robustness(folder, config, devices.kind, best=arguments.best, other=other, report=report)
    for note in result.notes:
        print(f"note: {note}", file=sys.stderr)
    metric = config.task.primary
    if arguments.json:
        shown = {"step": result.step, "metric": metric.name, "samples": result.images, "clean": result.clean}
        print_json({**shown, "mean": result.mean, "means": result.means, "corruptions": result.values}, indent=None)
        return 0
    _print(result, metric)
    print(f"{count_of(result.images, config.task.sample)}{f' of {other}' if other else ''} on {devices}")
    return 0


def _print(result: Robustness, metric: Metric) -> None:
    columns = (*map(str, range(1, 6)), "mean")
    rows = (
        [kind, *(metric.text(value, 1) for value in (*values, result.means[kind]))]
        for kind, values in result.values.items()
    )
    console().print(table(f"{metric.title} by strength", *columns, numbers=columns, rows=rows))
    clean, mean = metric.text(result.clean), metric.text(result.mean)
    print(
        f"step {result.step:,}: {metric.title} {mean}, the mean over {count_of(len(result.values), 'kind')}; ", end=""
    )
    print(f"{clean} on the images as they are")
