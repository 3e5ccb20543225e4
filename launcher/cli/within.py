"""`recipe=auto budget=5min`: the words of the best known run of these images that ends in time, and when that is."""

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher import paths, plugins
from launcher.config.budget import BUDGET, Budget
from launcher.config.compose import compose
from launcher.config.resolved import with_absolute_paths
from launcher.config.yaml_file import read_mapping
from launcher.errors import Problem, UserError, one_line
from launcher.launch.prepare_run import planned_here
from launcher.plugins import registered

# What decides which images and devices a run has, and where the finished ones are.
_OF_IMAGES = ("dataset", "seed", "runs", "launch", "hardware")


def best_within(verb: str, words: Sequence[str], typed: Mapping[str, Any], dataset: str) -> tuple[list[str], float]:
    """Return the words without `budget` that fit it best, and when the command must end, of time.monotonic().

    Those of a finished run of the same images replace `recipe=auto` where they promise most; otherwise the length is
    what fits by a measurement. Prints the three best runs to standard error. dataset: the option of typed images. A job
    has what is left after the assumed time of its start.

    Raises UserError if the budget is no time, or the words limit the time too.
    """
    started, text = time.monotonic(), str(typed[BUDGET])
    paid = Budget.of(text, BUDGET)
    if paid.currency is not None:
        paid = _time_for(paid, words, text)
    if typed.get("stop.minutes") is not None:
        raise UserError(Problem("limits the time as stop.minutes does; omit one", BUDGET, text))
    if verb == "submit":
        paid = _after_start(paid, text)
    rest = [word for word in words if _key(word) != BUDGET]
    limited, ends = [*rest, f"stop.minutes={paid.amount / 60:.6g}"], started + paid.amount
    choices = _known([f"dataset={dataset}", *rest], typed, paid.amount)
    for choice in choices:
        _show(f"{BUDGET}={text}: {choice.line}")
    if not choices:
        _show(f"{BUDGET}={text}: no finished run of these images in so short a time, so no top-1 is known; the epochs "
              "that fit are measured first")  # fmt: skip
        return limited, ends
    # note: much shorter runs do not tell what the time is worth
    if 2 * choices[0].seconds < paid.amount:
        return limited, ends
    own = [word for word in choices[0].words if _key(word) == "recipe" or _key(word) not in typed]
    return [*own, *(word for word in limited if word.lstrip("+") not in ("auto", "recipe=auto"))], ends


def _time_for(paid: Budget, words: Sequence[str], text: str) -> Budget:
    """Return the time that an amount of money pays for on the machine of some words.

    Raises UserError if that has no price in the currency.
    """
    config = compose([word for word in words if _key(word).partition(".")[0] in ("hardware", "launch")]).config
    price, currency = config.hardware.price_per_hour, config.hardware.currency
    if not price or currency != paid.currency:
        message = "this machine has no price; set a time such as 2h; for rented machines: train plan --budget 25usd"
        raise UserError(Problem(message if not price else f"its price is in {currency}", BUDGET, text))
    return Budget(3600 * paid.amount / (price * config.launch.nnodes), None)


def _after_start(paid: Budget, text: str) -> Budget:
    """Return the time of a job's budget without its start, which `stop.minutes` do not count.

    Raises UserError if none is left.
    """
    start = float(read_mapping(paths.CONF / "auto.yaml")["minutes_of_start"])
    if (minutes := paid.amount / 60) <= start:
        message = f"a job takes {start:g} min to start; set more, such as {2 * start:g}min"
        raise UserError(Problem(message, BUDGET, text))
    _show(f"{BUDGET}={text}: {minutes:.6g} min, {start:g} of them assumed for the job's start; what its machine takes "
          "before is paid besides")  # fmt: skip
    return Budget(paid.amount - 60 * start, None)


def _known(words: Sequence[str], typed: Mapping[str, Any], seconds: float) -> list[Any]:
    """Return the known choices for the images of some words; none without the plug-in, or for another task."""
    choices = getattr(registered(plugins.OPTIONS).get("plan"), "known_choices", None)
    if choices is None or typed.get("task", "classification") != "classification":
        return []
    of_images = compose([word for word in words if _key(word).partition(".")[0] in _OF_IMAGES])
    config = with_absolute_paths(of_images.config)
    if not any(Path(config.runs).glob("*/metrics.jsonl")):
        return []
    return list(choices(config, typed, planned_here(of_images).processes * config.launch.nnodes, seconds))


def _key(word: str) -> str:
    return word.lstrip("+").partition("=")[0]


def _show(text: str) -> None:
    print(one_line(f"auto: {text}"), file=sys.stderr)
