"""`train plan --budget`: the length that a budget pays for, by hand and by the command on steps made by hand."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.config.compose import compose
from launcher.config.groups import machines
from launcher.errors import UserError
from launcher.measure.estimate import Span
from launcher.plan.plan import plan_for
from launcher.prediction.budget import Budget, Candidate, affordable, around, best, worthwhile
from launcher.prediction.lengths import Length, rising
from launcher.prediction.machines import gpu_of
from launcher.prediction.offers import Offer, offers
from launcher.prediction.prediction import Predictor
from launcher.records.origins import write_origins
from launcher.records.run_folder import RunFolder
from launcher.results import same_images
from launcher.results.curves import Curve, CurvePoint, StudySetting
from tests.commands import execute, output_of, refused, values_of
from tests.counted_steps import made_up
from tests.images import write_images
from tests.made_runs import MakeRun

pytestmark = pytest.mark.slow

LENGTHS = [Length(10, 70.0), Length(20, 75.0), Length(40, 78.0)]


@pytest.mark.parametrize(
    ("text", "amount", "currency"),
    [("25usd", 25, "USD"), ("$25", 25, "USD"), ("1.5 EUR", 1.5, "EUR"), ("2h", 7200, None), ("90min", 5400, None)],
)
def test_a_budget_is_money_or_time(text: str, amount: float, currency: str | None) -> None:
    assert Budget.of(text, "--budget") == Budget(amount, currency)


@pytest.mark.parametrize("text", ["", "25", "much", "0h", "-2h", "2 weeks", "$2h"])
def test_other_words_are_no_budget(text: str) -> None:
    with pytest.raises(UserError, match="must be money such as 25usd, or a time such as 2h"):
        Budget.of(text, "--budget")


def offers_of_lengths(**changes: Any) -> list[Offer]:
    """Return offers that take 60 s and 2 USD an epoch, with a tenth more or less."""
    machine = machines()["lambda_8x_h100"]
    plan = plan_for(compose(["recipe=mild", "dataset=imagenet"]).config, 8)
    (offer, *_) = offers(plan, Predictor(plan, made_up(plan)).on(machine, gpu_of(machine)))
    spans = [[Span(each * one.epochs * f, 0, 0).seconds for f in (1, 0.9, 1.1)] for one in LENGTHS for each in (60, 2)]
    walls, costs = [Span(*span) for span in spans[::2]], [Span(*span) for span in spans[1::2]]
    pairs = zip(walls, costs, strict=True)
    return [replace(offer, **{"wall": wall, "cost": cost, **changes}) for wall, cost in pairs]


@pytest.mark.parametrize(
    ("paid", "quality", "epochs", "expected"),
    [
        # note: 30 epochs are half of the way from 20 to 40, in the logarithm log2(1.5)
        (Budget(61, "USD"), None, 30, 75 + 3 * math.log2(1.5)),
        (Budget(30 * 60, None), None, 30, 75 + 3 * math.log2(1.5)),
        (Budget(40, "USD"), None, 20, 75.0),
        (Budget(1000, "USD"), None, 40, 78.0),
        (Budget(19.9, "USD"), None, None, None),
        (Budget(61, "USD"), 75.0, 20, 75.0),
        (Budget(61, "USD"), 69.0, 10, 70.0),
        (Budget(61, "USD"), 77.0, None, None),
        (Budget(1000, "USD"), 79.0, None, None),
        (Budget(1000, "EUR"), None, None, None),
    ],
)
def test_the_longest_run_or_that_of_a_quality_is_chosen(
    paid: Budget, quality: float | None, epochs: int | None, expected: float | None
) -> None:
    choice = affordable(Candidate("mild", LENGTHS), offers_of_lengths(), paid, quality)
    assert (choice and choice.epochs) == epochs
    if choice:
        assert choice.quality == pytest.approx(expected)
        wall = choice.offer.wall
        assert (wall.seconds, wall.low, wall.high) == pytest.approx([60 * choice.epochs * f for f in (1, 0.9, 1.1)])
        around = {one.quality for one in LENGTHS if one.epochs == choice.epochs} or {75.0, 78.0}
        assert set(choice.known) == around


@pytest.mark.parametrize("quality", [69.0, 70.0, 72.0, 75.0, 77.0, 78.0, 79.0])
def test_the_lengths_around_a_quality_give_the_same_choice_as_all(quality: float) -> None:
    needed, paid = around(LENGTHS, quality), Budget(1000, "USD")
    assert len(needed) <= 2
    every = affordable(Candidate("mild", LENGTHS), offers_of_lengths(), paid, quality)
    few = [offer for offer, one in zip(offers_of_lengths(), LENGTHS, strict=True) if one in needed]
    choice = affordable(Candidate("mild", needed), few, paid, quality) if needed else None
    assert (choice and replace(choice, candidate=Candidate("mild", LENGTHS))) == every


def test_what_cannot_run_or_has_no_price_is_not_chosen() -> None:
    paid = Budget(1000, "USD")
    assert affordable(Candidate("mild", LENGTHS), offers_of_lengths(problem="too little memory"), paid, None) is None
    unpriced = offers_of_lengths(cost=None)
    assert affordable(Candidate("mild", LENGTHS), unpriced, paid, None) is None
    in_time = affordable(Candidate("mild", LENGTHS), unpriced, Budget(1e6, None), None)
    assert in_time is not None
    assert in_time.offer.cost is None


def test_lengths_rise_and_the_best_choices_are_of_different_recipes() -> None:
    assert rising([Length(20, 74.0), Length(10, 75.0), Length(30, 76.0), Length(10, 70.0)]) == [
        Length(10, 75.0),
        Length(30, 76.0),
    ]
    paid = Budget(1000, "USD")
    long = affordable(Candidate("long", LENGTHS), offers_of_lengths(), paid, None)
    dear = affordable(Candidate("dear", LENGTHS), offers_of_lengths(cost=Span(900, 900, 900)), paid, None)
    short = affordable(Candidate("short", LENGTHS[:1]), offers_of_lengths()[:1], paid, None)
    assert long
    assert dear
    assert short
    cheaper = replace(long, offer=replace(long.offer, cost=Span(1, 1, 1)))
    assert best([dear, short, long, cheaper], None) == [cheaper, dear, short]
    assert best([dear, short, long, cheaper], 70.0) == [cheaper, short, dear]


def test_recipes_that_another_beats_everywhere_are_left_out() -> None:
    def curve(recipe: str, machine: str, minutes: float, top1: float, source: str | None = "a paper") -> Curve:
        point = CurvePoint(10, (top1,), {"time": (minutes,)})
        return Curve(recipe, recipe, StudySetting("imagenet", "resnet50", machine), (point,), source)

    curves = [curve("good", "a", 10, 76), curve("bad", "a", 20, 75), curve("long", "a", 30, 77)]
    assert worthwhile(curves) == ["good", "long"]
    assert worthwhile([*curves, curve("bad", "b", 20, 75)]) == ["bad", "good", "long"]
    assert worthwhile([*curves, curve("bad", "a", 20, 75, source=None)]) == ["bad", "good", "long"]


@pytest.fixture
def _by_hand(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("launcher.prediction.prediction.counted_steps", made_up)
    monkeypatch.chdir(tmp_path)


def assert_confirmed(choice: dict[str, Any]) -> None:
    """Assert that the prediction of the words of a choice has its cost."""
    offers = values_of("plan", *choice["words"], "--on", choice["machine"])["offers"]
    same = next(offer for offer in offers if offer["spot"] == choice["spot"])
    assert same["cost"]["value"] == pytest.approx(choice["cost"]["value"], rel=0.02)


@pytest.mark.usefixtures("_by_hand")
def test_the_command_chooses_what_its_own_prediction_confirms() -> None:
    words = ("plan", "recipe=ffcv_rn50", "--on", "8xH100")
    (choice,) = values_of(*words, "--budget", "20usd")["choices"]
    assert choice["recipe"] == "ffcv_rn50"
    assert 0 < choice["cost"]["value"] <= 20
    low, high = choice["known_top1"]
    assert low <= choice["top1"] <= high
    assert_confirmed(choice)
    command = f"train plan recipe=ffcv_rn50 epochs={choice['epochs']} dataloader=ffcv --on lambda_8x_h100"
    assert command in output_of(*words, "--budget", "20usd")


@pytest.mark.usefixtures("_by_hand")
def test_a_small_memory_gets_the_device_batch_that_fits() -> None:
    words = ("plan", "recipe=ffcv_rn50", "--on", "1xA10G")
    (choice,) = values_of(*words, "--budget", "3d")["choices"]
    (part,) = [word for word in choice["words"] if word.startswith("device_batch_size=")]
    assert f"{part} fits" in refused(*words, "epochs=16", "device_batch_size=1024", "dataloader=ffcv")
    assert execute("plan", *choice["words"], "--on", choice["machine"])[0] == 0
    assert "no machine can run it" in refused(*words, "--budget", "3d", "device_batch_size=1024")


@pytest.mark.usefixtures("_by_hand")
def test_what_a_budget_does_not_pay_for_is_said_with_what_can_be() -> None:
    words = ("plan", "recipe=ffcv_rn50", "--on", "8xH100")
    assert "--budget=1min: is not enough; 73.8 % take at least" in refused(*words, "--budget", "1min")
    error = refused(*words, "--budget", "1usd", "--quality", "78")
    assert "is not enough; 78.0 % take at least" in error
    assert "ffcv_rn50 with 56 epochs on lambda_8x_h100" in error
    assert "the highest known quality is 78.4 %" in refused(*words, "--budget", "9usd", "--quality", "90")
    assert "omit epochs=" in refused(*words, "epochs=3", "--budget", "9usd")
    assert "measure some with `train curve`" in refused(*words, "dataset=shapes", "--budget", "9usd")
    assert "set dataset.path=FOLDER" in refused(*words, "dataset=image_folder", "--budget", "9usd")


def test_a_choice_without_a_known_quality_is_the_longest_and_keeps_the_order() -> None:
    offers, paid = offers_of_lengths(), Budget(30 * 60, None)
    lengths = [Length(1, None), Length(100, None)]
    shortest = replace(offers[0], wall=Span(60, 54, 66), cost=Span(2, 1.8, 2.2))
    ends = [shortest, replace(shortest, wall=Span(6000, 5400, 6600))]
    usual, cheap = (
        affordable(Candidate("small", lengths, label=label), ends, paid, None) for label in ("usual", "cheap")
    )
    assert usual
    assert cheap
    assert (usual.epochs, usual.quality, usual.known) == (30, None, None)
    assert usual.offer.wall.seconds == pytest.approx(1800)
    shorter = replace(usual, epochs=29)
    assert best([shorter, usual, replace(cheap, epochs=31)], None) == [usual, replace(cheap, epochs=31)]
    assert affordable(Candidate("small", lengths), ends, paid, 70.0) is None


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Write 60 images of 144 pixels, of two classes."""
    folder = tmp_path / "images"
    write_images(folder, {"train": 60, "val": 10}, size=(144, 150))
    return folder


@pytest.mark.usefixtures("_by_hand")
def test_own_images_have_three_choices_of_unknown_quality_that_the_prediction_confirms(images: Path) -> None:
    words = ("plan", f"dataset.path={images}", "--on", "1xA10G")
    code, out, errors = execute(*words, "--budget", "1h", "--json")
    assert code == 0, errors
    assert "auto:" not in errors
    choices = json.loads(out)["choices"]
    assert [choice["recipe"] for choice in choices] == ["small", "finetune", "small"]
    assert [choice["top1"] for choice in choices] == [None] * 3
    sizes = [[word for word in choice["words"] if "native_size" in word] for choice in choices]
    assert sizes == [["dataset.native_size=144"], ["dataset.native_size=144"], ["dataset.native_size=72"]]
    assert "model.weights=torchvision" in choices[1]["words"]
    assert max(choice["minutes"]["value"] for choice in choices) <= 60
    assert "none is known to reach 76 %" in refused(*words, "--budget", "1h", "--quality", "76")
    assert_confirmed(choices[0])


@pytest.mark.usefixtures("_by_hand")
def test_own_images_with_finished_runs_have_the_qualities_of_these_alone(
    images: Path, make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(same_images, "identity", lambda *_: f"image_folder at {images}")
    own = {"name": "image_folder", "path": str(images), "native_size": 64}
    for name, epochs, top1, dataset in (
        ("a", 2, 0.5, own), ("b", 9, 0.7, own), ("c", 9, 0.9, {**own, "path": "/other"})
    ):  # fmt: skip
        path = make_run(name, (top1,) * epochs, (60.0,) * epochs, recipe="small", dataset=dataset)
        keys = ("dataset.native_size", "dataset.path", "launch.device", "batch_size")
        write_origins(RunFolder(path), dict.fromkeys(keys, "command line"))
    words = ("plan", f"dataset.path={images}", "--on", "1xA10G", f"runs={tmp_path}", "batch_size=32")
    assert values_of(*words, "--budget", "9h")["choices"][0]["top1"] is None
    (choice,) = values_of(*words[:-1], "--budget", "9h")["choices"]
    assert (choice["epochs"], choice["top1"]) == (9, pytest.approx(70))
    assert choice["words"][:4] == ["recipe=small", "epochs=9", "dataset.native_size=64", "batch_size=64"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--quality", "0.76"], "--quality=0.76: must be a top-1 in percent, above 1 and up to 100; did you mean 76?"),
        (["--quality", "0"], "above 1 and up to 100"),
        (["--quality", "nan"], "above 1 and up to 100"),
        (["--budget", "25eur"], "--budget=25eur: the prices are in USD; set an amount in it"),
        (["stop.minutes=3"], "limits the time as stop.minutes does; omit one"),
        (["schedule.dilate=0.5"], "omit schedule.dilate="),
        (["target=0.76"], "has the quality to reach in --quality 76; omit target="),
    ],
)
def test_words_that_a_budget_cannot_have_are_refused(words: list[str], message: str) -> None:
    assert message in refused("plan", "--budget", "25usd", "--on", "8xH100", *words)
