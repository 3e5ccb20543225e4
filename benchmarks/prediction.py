"""How far predictions are from published rates: those that the efficiencies are fitted to, and those held out.

    python -m benchmarks.prediction --page docs/prediction.md    # --fit prints the fitted values

Steps are traced on tensors without values, half a minute in all; nothing is trained, and no GPU is needed.
"""

from __future__ import annotations

import argparse
import copy
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from scipy.optimize import minimize

from lab.predict.machines import Gpu, decoding_threads, gpus, thread_rate
from lab.predict.prediction import Predictor, efficiencies
from launcher.config.compose import compose
from launcher.config.groups import machines
from launcher.config.schema import Hardware
from launcher.plan.plan import plan_for

_FILE = Path(__file__).with_name("published_rates.yaml")
_BATCH = 256
_WORKERS = 8
_BEGIN, _END = "<!-- figures -->", "<!-- end of figures -->"
GOAL_MEDIAN, GOAL_WORST = 0.15, 0.35
# Two figures say little of two values: each is also held to what is usual, as if that were known to a factor of
# exp(0.2), a figure to exp(0.1).
_EXPECTED, _PRIOR, _FIGURE = (0.7, 0.8), 0.2, 0.1
_ALSO = {"share": ("operation",)}
# Fitted value -> the places that hold it.
_FITTED = {
    "products": ("convolution forward", "convolution data", "convolution weight", "matrix"),
    "memory": ("memory",),
}


@dataclass(frozen=True)
class Figure:
    """A published figure, images/s or minutes, and what it was measured on; `fits` is empty where it was held out."""

    name: str
    machine: str
    source: str
    step: str | None = None
    rate: float | None = None
    minutes: float | None = None
    epochs: int | None = None
    stack: str = "eager"
    loader: tuple[str, int, int, int] | None = None
    batch: int = _BATCH
    fits: str = ""

    @property
    def unit(self) -> str:
        return "min" if self.minutes else "images/s"

    @property
    def published(self) -> float:
        return float(self.minutes or self.rate or 0.0)


@cache
def _file() -> dict[str, Any]:
    return dict(yaml.safe_load(_FILE.read_text()))


def figures() -> list[Figure]:
    """Every figure of published_rates.yaml."""
    return [
        Figure(**{**entry, "loader": tuple(entry["loader"])} if "loader" in entry else entry)
        for entry in _file()["figures"]
    ]


def machine_of(figure: Figure) -> tuple[Hardware, Gpu]:
    """The figure's machine; a GPU that nobody rents out has its rates in the file."""
    facts = dict(_file()["machines"][figure.machine])
    gpu = gpus()[facts["gpu"]] if isinstance(facts["gpu"], str) else Gpu(**facts.pop("gpu"))
    known = replace(machines()["this_machine"], name=figure.machine, gpus=facts["gpus"], cores=facts["cores"])
    return known, gpu


@cache
def _predictor(step: str, gpu_count: int, batch: int, epochs: int | None, fused: bool) -> Predictor:
    words = [*_file()["steps"][step], "dataset=imagenet", f"batch_size={gpu_count * batch}"]
    words += [f"epochs={epochs}"] if epochs else []
    words += ["compile=on"] if fused else []
    return Predictor(plan_for(compose(words).config, gpu_count))


def predicted(figure: Figure, values: Mapping[str, Any]) -> float:
    """The figure as predicted, in its unit."""
    machine, gpu = machine_of(figure)
    if figure.loader:
        kind, workers, side, operations = figure.loader
        threads = decoding_threads(kind, workers * (machine.gpus or 1), machine.cores, values)
        return threads * thread_rate(kind, side, operations, values)
    assert figure.step is not None
    assert machine.gpus is not None
    predictor = _predictor(figure.step, machine.gpus, figure.batch, figure.epochs, figure.stack == "fused")
    plan = predictor.plan
    # note: published runs load by FFCV's own loader
    loaders = {**values["loaders"], "ffcv": values["loaders"]["ffcv_plain"]}
    seconds = predictor.on(machine, gpu, {**values, "loaders": loaders}).steps_seconds
    return seconds / 60 if figure.minutes else plan.total_steps * plan.config.batch_size / seconds


def error(figure: Figure, values: Mapping[str, Any]) -> float:
    """Of the predicted figure, relative to the published one."""
    return predicted(figure, values) / figure.published - 1


def fit(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with those that are fitted, each group to its own figures alone: least squares of the logarithms."""
    fitted = copy.deepcopy(dict(values))
    one, two = (figure for figure in figures() if figure.fits == "operation")
    machine, _ = machine_of(one)
    threads = decoding_threads("torchvision", _WORKERS * (machine.gpus or 1), machine.cores, fitted)
    # note: of the two figures' difference, since what they have in common is the loader's
    fitted["loaders"]["operation"] = round(threads * (1 / two.published - 1 / one.published), 6)
    for group in ("eager", "fused", "share"):
        own = [figure for figure in figures() if figure.fits in (group, *_ALSO.get(group, ()))]
        start = np.array([0.5] if group == "share" else _EXPECTED)

        def miss(found: np.ndarray, own: list[Figure] = own, group: str = group, expected: np.ndarray = start) -> float:
            _put(fitted, group, found)
            off = sum((np.log1p(error(figure, fitted)) / _FIGURE) ** 2 for figure in own)
            far = np.sum((np.log(found / expected) / _PRIOR) ** 2) if len(found) > 1 else 0.0
            return float(off + far)

        found = minimize(
            miss, start, method="Nelder-Mead", bounds=[(0.2, 0.98)] * len(start), options={"xatol": 1e-4}
        ).x
        _put(fitted, group, np.round(found, 3))
    return fitted


def _put(values: dict[str, Any], group: str, found: np.ndarray) -> None:
    if group == "share":
        values["loaders"]["share"] = float(found[0])
        return
    for value, names in zip(found, _FITTED.values(), strict=True):
        values["stacks"][group].update(dict.fromkeys(names, float(value)))


def row(figure: Figure, values: Mapping[str, Any]) -> str:
    """A line of the page's table."""
    found = predicted(figure, values)
    digits = 1 if figure.minutes else 0
    kind = "loader" if figure.loader else figure.stack
    cells = (
        figure.name, figure.machine, kind, f"{figure.published:,g} {figure.unit}", f"{found:,.{digits}f}",
        f"{found / figure.published - 1:+.0%}", figure.source,
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def page(values: Mapping[str, Any]) -> str:
    """Both tables, and how far held-out figures are off."""
    head = "| figure | machine | stack | published | predicted | error | source |\n|---|---|---|---|---|---|---|"
    fitted = [figure for figure in figures() if figure.fits]
    held = [figure for figure in figures() if not figure.fits]
    tables = {
        name: "\n".join([head, *(row(one, values) for one in those)]) for name, those in (("f", fitted), ("h", held))
    }
    off = sorted(abs(error(figure, values)) for figure in held)
    worst = max(held, key=lambda figure: abs(error(figure, values)))
    said = (
        f"{len(held)} held-out figures: median error {statistics.median(off):.0%} (goal {GOAL_MEDIAN:.0%}), worst "
        f"{off[-1]:.0%} (goal {GOAL_WORST:.0%}: {worst.name}, {worst.machine}); nine tenths within "
        f"{off[int(np.ceil(0.9 * len(off))) - 1]:.0%}."
    )
    return f"Fitted:\n\n{tables['f']}\n\nHeld out:\n\n{tables['h']}\n\n{said}\n"


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compare predictions with published rates.")
    parser.add_argument("--fit", action="store_true", help="fit again, and print what was found")
    parser.add_argument("--page", metavar="FILE", help="also write the tables there, between its marks")
    arguments = parser.parse_args(words)
    values: Mapping[str, Any] = efficiencies()
    if arguments.fit:
        values = fit(values)
        print(yaml.safe_dump({key: values[key] for key in ("stacks", "loaders")}, sort_keys=False))
    text = page(values)
    print(text)
    if arguments.page:
        path = Path(arguments.page)
        before, _, rest = path.read_text().partition(_BEGIN)
        _, _, after = rest.partition(_END)
        path.write_text(f"{before}{_BEGIN}\n{text}{_END}{after}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
