"""The ablation grid, its runs, and effects computed by hand."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.config.compose import compose
from launcher.config.resolved import as_mapping
from launcher.records.run import read_run
from launcher.records.run_folder import RunFolder, note_dataset
from launcher.results.curves import Curve, CurvePoint
from launcher_lab.study.ablation import (
    GridRow,
    Variant,
    VariantResult,
    comparable,
    curve_of,
    effects,
    grid,
    limits,
    tradeoffs,
    variant_result,
)
from tests.curves import SETTING, Values, curve
from tests.made_runs import MakeRun


def test_the_grid_composes_and_keeps_the_recipes_values() -> None:
    medium = compose(["recipe=medium"]).config
    variants = {variant.name: variant for variant in grid(list(medium.algorithms))}
    assert len(variants) == 2 + 2 * len(medium.algorithms)
    for variant in variants.values():
        active = compose(["recipe=medium", *variant.words]).config.algorithms
        kind, _, name = variant.name.partition(" ")
        everything = medium.algorithms
        expected = {
            "all": everything,
            "none": {},
            "without": {key: value for key, value in everything.items() if key != name},
            "only": {name: everything.get(name)},
        }
        assert active == expected[kind]


def test_with_adds_a_row_per_value_and_each_row_composes() -> None:
    rows = grid([], ["colout", "optimizer.lr=0.1,0.2", "loss=cross_entropy image.scale=[0.3,1.0]"])[2:]
    assert [(row.name, row.kind) for row in rows] == [
        (f"with {name}", "with")
        for name in ("colout", "optimizer.lr=0.1", "optimizer.lr=0.2", "loss=cross_entropy image.scale=[0.3,1.0]")
    ]
    configs = [compose(["recipe=mild", *row.words]).config for row in rows]
    assert configs[0].algorithms.keys() == {*compose(["recipe=mild"]).config.algorithms, "colout"}
    assert [config.optimizer.lr for config in configs] == [2.048, 0.1, 0.2, 2.048]
    assert (configs[3].loss.name, configs[3].image.scale) == ("cross_entropy", [0.3, 1.0])


def test_effects_by_hand() -> None:
    listed = effects(rows(all=((50.0, 76.0), (100.0, 80.0)), none=((50.0, 76.0),),
                          **{"without sam": ((40.0, 75.5), (80.0, 79.0)), "only sam": ((60.0, 76.5),),
                             "with ema": ((55.0, 75.0),), "without ema": ()}))  # fmt: skip
    assert [(e.algorithm, e.kind, e.epochs, e.top1.value, pytest.approx(e.time)) for e in listed] == [
        ("sam", "without", 1, 0.5, pytest.approx(0.25)),
        ("sam", "without", 2, 1.0, pytest.approx(0.25)),
        ("sam", "only", 1, 0.5, pytest.approx(0.2)),
        ("ema", "with", 1, -1.0, pytest.approx(0.1)),
    ]


def test_effects_of_runs_that_end_early_are_those_at_their_length() -> None:
    """A patience or a target ends runs of one length at different epochs."""
    listed = []
    for name, epochs, top1 in (("all", 3.0, 70.0), ("without ema", 2.0, 40.0), ("only ema", 4.0, 75.0)):
        point = CurvePoint(5, (top1,), {"time": (epochs,), "epochs": (epochs,)})
        own = Curve(name, "mild", SETTING, (point,))
        listed.append(GridRow(Variant(name, name.partition(" ")[2] or None, ()), 5, (own, point)))
        if name == "all":
            listed.append(GridRow(Variant("none", None, ()), 5, (own, point)))
    measured = [(effect.epochs, effect.top1.value, effect.time) for effect in effects(listed)]
    assert measured == [(5, 30.0, pytest.approx(0.5)), (5, 5.0, pytest.approx(1 / 3))]


def test_amdahls_limits_by_hand() -> None:
    assert limits({"forward": 1.0, "backward": 2.0, "sam": 1.0}) == [
        ("backward", 0.5, 2.0),
        ("forward", 0.25, pytest.approx(4 / 3)),
        ("sam", 0.25, pytest.approx(4 / 3)),
    ]


WORDS = ["dataset=shapes", "recipe=mild", "schedule.warmup=0ba"]


@pytest.fixture
def make_variant(make_run: MakeRun) -> Callable[..., Path]:
    """Make a finished run with epochs of one minute."""

    def make(name: str, *words: str, top1: float = 0.5, epochs: int = 2) -> Path:
        values = as_mapping(compose([*WORDS, *words]).config)
        return make_run(name, [top1] * epochs, [60.0] * epochs, **values)

    return make


def test_a_variant_gets_the_runs_of_all_seeds_at_its_length(tmp_path: Path, make_variant: Callable[..., Path]) -> None:
    make_variant("a", "epochs=2", "seed=1", top1=0.4)
    make_variant("b", "epochs=2", "seed=2", top1=0.5)
    make_variant("c", "epochs=2", "algorithms.ema=off", top1=0.6)
    make_variant("d", "epochs=4", "seed=1", top1=0.9, epochs=4)
    configs = [compose([*WORDS, "epochs=2", *more]).config
               for more in ([], ["algorithms.ema=off"], ["algorithms.blurpool=off"])]  # fmt: skip
    runs = comparable(configs, [read_run(path) for path in sorted(tmp_path.iterdir())], None)
    whole, without, missing = (curve_of(config, runs) for config in configs)
    assert missing is None
    assert variant_result(whole) == VariantResult(2, pytest.approx(45.0), pytest.approx(2.0))
    assert [point.epochs for point in whole[0].points] == [2, 4]
    assert variant_result(without) == VariantResult(1, pytest.approx(60.0), pytest.approx(2.0))


def test_runs_on_another_machine_or_other_images_are_excluded(
    tmp_path: Path, make_variant: Callable[..., Path]
) -> None:
    for seed, data in enumerate(("flowers", "flowers", "cars", "flowers")):
        note_dataset(RunFolder(make_variant(str(seed), "epochs=2", f"seed={seed}")), data)
    metrics = tmp_path / "3" / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"cpu"', '"A100"'))
    configs = [compose([*WORDS, "epochs=2"]).config]
    runs = [read_run(path) for path in sorted(tmp_path.iterdir())]
    assert [run.seed for run in comparable(configs, runs, "cars")] == [2]
    assert [run.seed for run in comparable(configs, runs, None)] == [0, 1]
    assert comparable(configs, [], None) == []


def rows(**measured: tuple[tuple[Values, Values], ...]) -> list[GridRow]:
    """Return rows of the (minutes, top-1) of variants by name; a variant without points was not measured."""
    listed = []
    for name, points in measured.items():
        variant, own = Variant(name, name.partition(" ")[2] or None, ()), curve(f"the runs of {name}", *points)
        listed += [GridRow(variant, epochs, (own, point)) for epochs, point in enumerate(own.points, 1)]
        listed += [GridRow(variant, 1, None)] * (not points)
    return listed


def test_effects_on_the_tradeoff_by_hand() -> None:
    """From 10 minutes and 70 % to 40 minutes and 74 %, 72 % takes 20 minutes: linear in the logarithm of the time."""
    base = ((10.0, 70.0), (40.0, 74.0))
    without, only, more = tradeoffs(rows(all=base, none=base, **{
        "without sam": ((30.0, 72.0),), "only sam": ((10.0, 72.0),), "with ema": ((10.0, 72.0),)}))  # fmt: skip
    assert (without.speedup.value, only.speedup.value) == (pytest.approx(30 / 20), pytest.approx(20 / 10))
    log_part = math.log(30 / 10) / math.log(4)
    assert (without.gain.value, only.gain.value) == (pytest.approx(4 * log_part - 2), pytest.approx(72 - 70))
    assert (more.algorithm, more.base, more.speedup, more.gain) == ("ema", "all", only.speedup, only.gain)


def test_beyond_the_measured_range_the_tradeoff_has_a_reason_and_a_bound() -> None:
    base = ((10.0, 70.0),)
    bounded = tradeoffs(rows(all=base, none=base, **{"without sam": ((30.0, 69.0),), "only sam": ((30.0, 69.0),)}))
    assert [(one.speedup, one.gain) for one in bounded] == [(None, None)] * 2
    assert [(one.at_least, one.at_most) for one in bounded] == [(3.0, None), (None, pytest.approx(1 / 3))]
    assert bounded[0].why_no_speedup == "all has no point this low; its cheapest has 70.00 %"
    assert bounded[1].why_no_gain == "none was measured only from 10 to 10"


def test_an_inverted_interval_contains_the_inverted_value() -> None:
    base = (((5.0,) * 3, (70.0, 70.2, 69.8)), ((20.0,) * 3, (74.0, 74.2, 73.8)))
    (one,) = tradeoffs(rows(none=base, **{"only sam": (((10.0, 11.0, 9.0), (72.0, 72.2, 71.8)),)}))
    for value in (one.speedup, one.gain):
        assert value.low < value.value < value.high
