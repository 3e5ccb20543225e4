"""Ablation of a recipe's algorithms: all, none, all but one, only one, all and one more; effects in finished runs."""

import itertools
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from launcher.config.keys import is_text
from launcher.config.layers import leaves
from launcher.config.overrides import read_override, unquoted
from launcher.config.resolved import as_mapping, is_free
from launcher.config.schema import RunConfig
from launcher.errors import Problem, UserError
from launcher.plan.epochs import dilated_epochs
from launcher.records.run import RunSummary
from launcher.results.curves import Curve, CurvePoint, build_curves, changed_with_length
from launcher_lab.study.speedup import Interval, at_equal_cost, at_equal_quality, corrected, estimate

# Keys that may differ between runs of one variant, besides those that may change on resume.
_IGNORED = (
    *("seed", "recipe", "schedule.dilate", "compile"),
    *("dataset.classes", "dataset.train_samples", "dataset.val_samples", "model.weights_sha256"),
)
# Kind of variant to the variant that it is compared with.
_BASES = {"without": "all", "only": "none", "with": "all"}
_SWEEP = re.compile(r"(choice|range|sort|shuffle)\(.*\)")
_MOST_VALUES = 1000  # of one word

CurveAndPoint = tuple[Curve, CurvePoint]


@dataclass(frozen=True)
class Variant:
    """A variant of a recipe: its name, the algorithm or value under study, and the words that change the recipe."""

    name: str
    algorithm: str | None
    words: tuple[str, ...]

    @property
    def kind(self) -> str:
        """Return all, none, without, only or with."""
        return self.name.partition(" ")[0]


@dataclass(frozen=True)
class GridRow:
    """A variant at one length: the curve of its finished runs and the point of this length, or None without runs."""

    variant: Variant
    epochs: int
    result: CurveAndPoint | None


@dataclass(frozen=True)
class VariantResult:
    """Mean top-1 in percent, or other metric, and training minutes of a variant's finished runs, one per seed."""

    runs: int
    top1: float
    minutes: float


@dataclass(frozen=True)
class Effect:
    """The effect of an algorithm: points of top-1, or other metric, and the relative change of training time.

    `without` and `with` compare with all, `only` with none; the sign is that of adding the algorithm.
    """

    algorithm: str
    kind: str
    epochs: int
    top1: Interval
    time: float


@dataclass(frozen=True)
class Tradeoff:
    """The effect of an algorithm: speed-up at equal quality, and gain of the metric at equal training time.

    Outside the measured curve a value is None with a reason; `at_least` and `at_most` still bound the speed-up.
    """

    algorithm: str
    base: str  # the curve to compare with: all or none
    epochs: int  # of the variant
    speedup: Interval | None
    gain: Interval | None
    why_no_speedup: str
    why_no_gain: str
    at_least: float | None = None
    at_most: float | None = None


def grid(algorithms: Sequence[str], more: Sequence[str] = ()) -> list[Variant]:
    """Return the variants: all, none, all but each algorithm, only each algorithm, all with each of `more` (`--with`).

    Raises UserError if one of `more` is invalid.
    """
    variants = [Variant("all", None, ()), Variant("none", None, ("algorithms=[]",))]
    for name in algorithms:
        variants.append(Variant(f"without {name}", name, (f"algorithms.{name}=off",)))
    for name in algorithms:
        variants.append(Variant(f"only {name}", name, (f"algorithms=[{name}]",)))
    for text in more:
        variants += _with(text)
    return variants


def alternatives(word: str, limit: int) -> list[str] | None:
    """Expand a word with several values such as `epochs=8,16` to at most `limit` words; return None for one value.

    Values of a text key are split at commas.
    """
    key, _, text = word.partition("=")
    if is_text(RunConfig, key) and not _SWEEP.fullmatch(text):
        return None if unquoted(text) is not None else [f"{key}={value}" for value in text.split(",")]
    override = read_override(word)
    # note: a glob has no values until Hydra searches for files, and an interval has none
    if override is None or not override.is_sweep_override() or override.is_interval_sweep() or text.startswith("glob("):
        return None
    return [
        f"{override.get_key_element()}={value}" for value in itertools.islice(override.sweep_string_iterator(), limit)
    ]


def _with(text: str) -> Iterator[Variant]:
    """Yield the variants of algorithms and `key=value` words separated by spaces, one per combination of values.

    Raises UserError if the text is empty, or a quotation mark is not closed.
    """
    try:
        words = [word if "=" in word else f"algorithms.{word}=on" for word in shlex.split(text)]
    except ValueError:
        words = []
    if not words:
        message = "must be an algorithm or key=value, several in quotes, such as --with 'mixup loss=bce'"
        raise UserError(Problem(message, "--with", text))
    for chosen in itertools.product(*(alternatives(word, _MOST_VALUES) or [word] for word in words)):
        name = " ".join(word.removeprefix("algorithms.").removesuffix("=on") for word in chosen)
        yield Variant(f"with {name}", name, chosen)


def comparable(configs: Sequence[RunConfig], runs: Sequence[RunSummary], identity: str | None) -> list[RunSummary]:
    """Return the finished runs of the configs, at any length and seed, on the machine with the most of them.

    The configs are those of starts here, so `auto` is what it stands for on this machine. The runs use the data set of
    `identity`, by default that of most runs.
    """
    decisive = [_decisive(config.recipe, dict(leaves(as_mapping(config)))) for config in configs]
    matching = [run for run in runs if run.top1 is not None and _decisive(run.recipe, run.values) in decisive]
    identity = identity or next(iter(dict(Counter(run.identity for run in matching).most_common(1))), None)
    matching = [run for run in matching if run.identity == identity]
    machines = Counter(run.hardware for run in matching)
    return [run for run in matching if run.hardware == machines.most_common(1)[0][0]]


def curve_of(config: RunConfig, runs: Sequence[RunSummary]) -> CurveAndPoint | None:
    """Return the curve of a config's runs on one machine and its point at the config's length; None without runs."""
    decisive = _decisive(config.recipe, dict(leaves(as_mapping(config))))
    length = dilated_epochs(config.epochs, config.schedule.dilate)
    for curve in build_curves(run for run in runs if _decisive(run.recipe, run.values) == decisive):
        for point in curve.points:
            if point.epochs == length:
                return curve, point
    return None


def variant_result(result: CurveAndPoint) -> VariantResult:
    """Return the result of a point over all seeds."""
    curve, point = result
    return VariantResult(len(point.top1), curve.metric.sign * point.quality, point.cost("time") or 0.0)


def effects(rows: Sequence[GridRow]) -> list[Effect]:
    """Return the effect of each algorithm at each length that has runs of both variants; p-values are corrected."""
    listed = []
    for row, (_, point), base in _beside_base(rows):
        base_point = next((one for one in base.points if one.epochs == row.epochs), None)
        if base_point is None:
            continue
        # note: at one length, though runs may have ended before it
        used = [(base_point, 0.0, 1.0), (point, 0.0, -1.0)]
        change, sign = estimate(base_point.quality - point.quality, used, "epochs"), base.metric.sign
        with_it, without = base_point.cost("time") or 0.0, point.cost("time") or 0.0
        if row.variant.kind != "without":
            with_it, without, sign = without, with_it, -sign
        assert row.variant.algorithm is not None
        change = change.times(sign)
        listed.append(Effect(row.variant.algorithm, row.variant.kind, row.epochs, change, with_it / without - 1))
    tests = corrected([one.top1 for one in listed])
    return [replace(one, top1=test) for one, test in zip(listed, tests, strict=True) if test is not None]


def tradeoffs(rows: Sequence[GridRow]) -> list[Tradeoff]:
    """Return the tradeoff of each measured algorithm: the variant's point against the curve of all or none.

    P-values are corrected.
    """
    listed = []
    for row, (variant_curve, point), base in _beside_base(rows):
        assert row.variant.algorithm is not None
        name = _BASES[row.variant.kind]
        curve, variant = replace(base, name=name), replace(variant_curve, name=row.variant.name)
        speed, gain = at_equal_quality(curve, variant, "time", point), at_equal_cost(curve, variant, "time", point)
        algorithm, reasons = row.variant.algorithm, (speed.reason, gain.reason)
        gained = gain.value and gain.value.times(base.metric.sign)
        one = Tradeoff(algorithm, name, row.epochs, speed.value, gained, *reasons, at_least=speed.bound)
        listed.append(one if row.variant.kind == "without" else _of_adding(one))
    tests = corrected([value for one in listed for value in (one.speedup, one.gain)])
    return [
        replace(one, speedup=speedup, gain=gain)
        for one, speedup, gain in zip(listed, tests[::2], tests[1::2], strict=True)
    ]


def limits(parts: Mapping[str, float]) -> list[tuple[str, float, float]]:
    """Return each part, its share of the time, and Amdahl's limit (the speed-up if it were free), largest first."""
    total = sum(parts.values())
    shares = {name: seconds / total for name, seconds in parts.items()}
    return [(name, share, 1 / (1 - share)) for name, share in sorted(shares.items(), key=lambda item: -item[1])]


def _beside_base(rows: Sequence[GridRow]) -> Iterator[tuple[GridRow, CurveAndPoint, Curve]]:
    """Yield each measured row of an algorithm, its result, and the curve to compare with."""
    curves = {row.variant.name: row.result[0] for row in rows if row.result}
    for row in rows:
        base = curves.get(_BASES.get(row.variant.kind, ""))
        if row.result is not None and base is not None:
            yield row, row.result, base


def _decisive(recipe: str | None, values: Mapping[str, Any]) -> dict[str, Any]:
    ignored = {*_IGNORED, *changed_with_length(recipe)} if recipe else {*_IGNORED}
    return {key: value for key, value in values.items() if not is_free(key) and key not in ignored}


def _of_adding(one: Tradeoff) -> Tradeoff:
    """Invert a tradeoff where the point has the algorithm and the curve does not."""
    speedup, gain = _inverted(one.speedup, lambda ratio: 1 / ratio), _inverted(one.gain, lambda points: -points)
    return replace(one, speedup=speedup, gain=gain, at_least=None, at_most=one.at_least and 1 / one.at_least)


def _inverted(value: Interval | None, invert: Callable[[float], float]) -> Interval | None:
    """Invert a value and its interval, whose ends swap."""
    if value is None:
        return None
    low, high = (None if end is None else invert(end) for end in (value.high, value.low))
    return replace(value, value=invert(value.value), low=low, high=high)
