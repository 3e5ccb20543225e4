"""Compare predictions with published throughput: fitted figures, and held-out ones.

    python -m benchmarks.prediction --page benchmarks/results/prediction.md    # --fit prints the fitted values

Steps are traced on tensors without values in two minutes; no GPU is needed.
"""

import argparse
import copy
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from scipy.optimize import least_squares

from benchmarks.published import Figure, error, figures, machine_of, predicted, waits_for_loader
from launcher.config.gpus import efficiencies
from launcher.prediction.machines import decoding_threads

_WORKERS = 8
_BEGIN, _END = "<!-- figures -->", "<!-- end of figures -->"
GOAL_MEDIAN, GOAL_WORST = 0.10, 0.25
# Standard deviations of the logarithms: of each fitted value around its usual value, and of a figure.
_PRIOR, _FIGURE = 0.3, 0.1
# For each stack, table and name of the fitted values -> their usual value.
_FITTED: dict[str, dict[tuple[str, str], float]] = {
    "eager": {
        ("products", "convolution"): 0.75,
        ("products", "matrix"): 0.8,
        ("products", "depthwise"): 0.05,
        ("products", "unaligned"): 0.4,
        ("memory", "other"): 0.75,
        ("memory", "batch norm"): 0.85,
        ("memory", "depthwise"): 0.4,
        ("memory", "pool"): 0.5,
        ("memory", "strided"): 0.4,
        ("", "kernel"): 5e-6,
    },
    "fused": {("products", "convolution"): 0.75, ("memory", "other"): 0.8},
    "compiled": {("bf16", "other"): 10.0},
}


def fit(values: Mapping[str, Any]) -> dict[str, Any]:
    """Fit each group of values to its own figures by least squares of the logarithms; return all values."""
    fitted = copy.deepcopy(dict(values))
    one, two = fitted_to("operation")
    machine, _ = machine_of(one)
    threads = decoding_threads("torchvision_other", _WORKERS * (machine.gpus or 1), machine.cores, fitted)
    # note: from the difference of the two figures, which removes the loader's own time
    fitted["loaders"]["operation"]["seconds"] = round(threads * (1 / two.published - 1 / one.published), 6)
    ratios = [one.published / alone(one).published / (machine_of(one)[0].gpus or 1) for one in fitted_to("ranks")]
    fitted["stacks"]["eager"]["ranks"] = round(statistics.geometric_mean(ratios), 3)
    for name, usual in _FITTED.items():
        stack = fitted["stacks"][name]
        places = [(stack[table] if table else stack, key, start) for (table, key), start in usual.items()]
        _fit_group(fitted, fitted_to(name), places)
        for later in ("fused", "compiled") if name == "eager" else ():
            _copy(fitted["stacks"], name, later)
    _fit_group(fitted, fitted_to("call"), [(fitted["stacks"]["eager"], "call", 3e-5)], prior=np.inf)
    for stack in fitted["stacks"].values():
        stack["call"] = fitted["stacks"]["eager"]["call"]
    for loader, own in (("torchvision", fitted_to("operation")), ("ffcv", fitted_to("share"))):
        _fit_group(fitted, own, [(fitted["loaders"]["share"], loader, 0.5)], prior=np.inf)
    return fitted


def fitted_to(value: str) -> list[Figure]:
    """Return the figures that a value is fitted to."""
    return [figure for figure in figures() if figure.fits == value]


def alone(figure: Figure) -> Figure:
    """Return the same program's figure on one such GPU."""
    gpu = machine_of(figure)[1]
    others = ((one, *machine_of(one)) for one in figures() if (one.name, one.source) == (figure.name, figure.source))
    return next(one for one, machine, other in others if (machine.gpus, other) == (1, gpu))


def _copy(stacks: dict[str, Any], source: str, target: str) -> None:
    """Copy the fitted values of one stack to another that uses them without a separate fit."""
    for table, key in _FITTED[source].keys() - _FITTED[target].keys():
        here, there = ((stacks[name][table] if table else stacks[name]) for name in (source, target))
        if key in there:
            there[key] = here[key]


def _fit_group(
    values: dict[str, Any], own: Sequence[Figure], places: Sequence[tuple[dict[str, Any], str, float]],
    prior: float = _PRIOR,
) -> None:  # fmt: skip
    """Fit the values at `places` (table, key, usual value) to the figures, with a prior around the usual values."""
    usual = np.log([start for _, _, start in places])

    def residuals(logs: np.ndarray) -> np.ndarray:
        for (table, name, _), value in zip(places, np.exp(logs), strict=True):
            table[name] = float(f"{value:.6g}")
        errors = [np.log1p(error(figure, values)) / _FIGURE for figure in own]
        return np.array([*errors, *((logs - usual) / prior)])

    # note: the bound keeps fractions below 1 where published kernels fuse more than the model counts
    most = [np.inf if start > 1 else np.log(0.98) for _, _, start in places]
    fitted = least_squares(residuals, usual, bounds=(-np.inf, most), diff_step=1e-3).x
    for (table, name, _), value in zip(places, np.exp(fitted), strict=True):
        table[name] = float(f"{value:.3g}")


def row(figure: Figure, values: Mapping[str, Any]) -> str:
    """Return a row of the page's tables."""
    value = predicted(figure, values)
    relative = f"{value / figure.published - 1:+.0%}"
    if figure.network:
        batch, size, layout = figure.network
        cells = (figure.name, str(batch), str(size), layout, f"{figure.published:,.0f}", f"{value:,.0f}", relative)
        return f"| {' | '.join(cells)} |"
    digits = 1 if figure.minutes else 0
    kind = "loader" if waits_for_loader(figure, values) else figure.stack
    cells = (
        figure.name, figure.machine, kind, f"{figure.published:,g} {figure.unit}", f"{value:,.{digits}f}", relative,
        figure.source,
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def page(values: Mapping[str, Any]) -> str:
    """Return the tables of fitted and held-out figures, and the summary of the held-out errors."""
    head = (
        "| figure | machine | stack, loader | published | predicted | error | source |\n|---|---|---|---|---|---|---|"
    )
    network_head = "| network | batch | px | layout | published | predicted | error |\n|---|---|---|---|---|---|---|"
    parts = []
    for title, is_fitted in (("Fitted", True), ("Held out", False)):
        group = [figure for figure in figures() if bool(figure.fits) is is_fitted]
        listed, networks = ([f for f in group if bool(f.network) is timms] for timms in (False, True))
        parts.append("\n".join([f"{title}:", "", head, *(row(figure, values) for figure in listed)]))
        parts.append(
            "\n".join([f"{title}, timm's networks:", "", network_head, *(row(one, values) for one in networks)])
        )
    return "\n\n".join([*parts, *summary(values)]) + "\n"


def summary(values: Mapping[str, Any]) -> list[str]:
    """Return a sentence each on the errors of held-out figures: timm's networks, others by bottleneck, and all."""
    held = [(figure, abs(error(figure, values))) for figure in figures() if not figure.fits]
    loading = {one for one, _ in held if not one.network and waits_for_loader(one, values)}
    parts = {
        "networks of timm": [one for one in held if one[0].network],
        "other figures with a GPU as bottleneck": [one for one in held if not one[0].network and one[0] not in loading],
        "figures with the loader as bottleneck": [one for one in held if one[0] in loading],
        "figures in all": held,
    }
    return [_sentence(f"{len(own)} held-out {what}", own) for what, own in parts.items()]


def _sentence(what: str, own: Sequence[tuple[Figure, float]]) -> str:
    errors = sorted(size for _, size in own)
    tenth = errors[int(np.ceil(0.9 * len(errors))) - 1]
    beyond = [f"{figure.name}, {figure.machine}" for figure, size in own if size > GOAL_WORST]
    return (
        f"{what}: median error {statistics.median(errors):.0%} (goal {GOAL_MEDIAN:.0%}), nine tenths within "
        f"{tenth:.0%}, worst {errors[-1]:.0%} (goal {GOAL_WORST:.0%}); beyond it: "
        f"{'; '.join(beyond) or 'none'}."
    )


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compare predictions with published throughput.")
    parser.add_argument("--fit", action="store_true", help="repeat the fit, and print its values")
    parser.add_argument("--page", metavar="FILE", help="also write the tables to this file, between its marks")
    arguments = parser.parse_args(words)
    values: Mapping[str, Any] = efficiencies()
    if arguments.fit:
        values = fit(values)
        print(yaml.safe_dump({key: values[key] for key in ("stacks", "loaders")}, sort_keys=False))
    text = page(values)
    print(text)
    if arguments.page:
        before, _, rest = Path(arguments.page).read_text().partition(_BEGIN)
        Path(arguments.page).write_text(f"{before}{_BEGIN}\n{text}{_END}{rest.partition(_END)[2]}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
