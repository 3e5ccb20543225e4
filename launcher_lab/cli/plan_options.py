"""The options of `train plan` that predict on other machines; each imports what it needs when it is used."""

import argparse

from launcher.plan.plan import Plan


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--on", metavar="MACHINE", help="predict time and cost on p5_48xlarge, 8xH100, 16xH100, or all")
    parser.add_argument(
        "--quality", type=float, metavar="TOP1", help="with --on: the length that reaches this top-1, percent"
    )
    parser.add_argument(
        "--budget", metavar="25usd|2h", help="choose recipe, epochs and machine: the best quality for it, or --quality"
    )


def handle(arguments: argparse.Namespace) -> int | None:
    """Print the prediction; return None without a machine."""
    if arguments.on is arguments.budget is arguments.quality is None:
        return None
    from launcher_lab.cli.on_machines import predict  # note: NumPy and the data sources

    return predict(arguments)


def chooses(arguments: argparse.Namespace) -> bool:
    """Return whether the command line has a budget, which chooses the recipe."""
    return arguments.budget is not None


def total(plan: Plan, *, is_spot: bool) -> str | None:
    """Return the predicted time and cost of a run, as `launcher_lab.predict.total`."""
    from launcher_lab.predict import total

    return total.total(plan, is_spot=is_spot)
