"""`train eval RUN --cam`: heat maps of errors."""

from __future__ import annotations

import argparse

from launcher.cli.evaluate import evaluation, requested
from launcher.errors import Problem, UserError


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cam", action="store_true", help="heat maps (Grad-CAM) in the gallery of --by-class")


def handle(arguments: argparse.Namespace) -> int | None:
    """Evaluate as the option requests it; return None without it."""
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
