"""`train plan --budget`: the length that a budget pays for, by hand and by the command on steps made by hand."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.config.budget import Budget
from launcher.config.compose import compose
from launcher.config.groups import machines
from launcher.errors import UserError
from launcher.measure.estimate import Span
from launcher.plan.plan import plan_for
from launcher_lab.predict.budget import Length, affordable, best, rising, worthwhile
from launcher_lab.predict.machines import gpu_of
from launcher_lab.predict.offers import Offer, offers
from launcher_lab.predict.prediction import Predictor
from launcher_lab.study.curves import Curve, CurvePoint, StudySetting
from tests.commands import execute, refused
from tests.counted_steps import made_up

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
    (offer, *_) = offers(plan, Predictor(plan, made_up(plan)).on(machine, gpu_of(machine)), "")
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
    choice = affordable("mild", LENGTHS, offers_of_lengths(), paid, quality)
    assert (choice and choice.epochs) == epochs
    if choice:
        assert choice.quality == pytest.approx(expected)
        wall = choice.offer.wall
        assert (wall.seconds, wall.low, wall.high) == pytest.approx([60 * choice.epochs * f for f in (1, 0.9, 1.1)])
        around = {one.quality for one in LENGTHS if one.epochs == choice.epochs} or {75.0, 78.0}
        assert set(choice.known) == around


def test_what_cannot_run_or_has_no_price_is_not_chosen() -> None:
    paid = Budget(1000, "USD")
    assert affordable("mild", LENGTHS, offers_of_lengths(problem="too little memory"), paid, None) is None
    unpriced = offers_of_lengths(cost=None)
    assert affordable("mild", LENGTHS, unpriced, paid, None) is None
    in_time = affordable("mild", LENGTHS, unpriced, Budget(1e6, None), None)
    assert in_time is not None
    assert in_time.offer.cost is None


def test_lengths_rise_and_the_best_choices_are_of_different_recipes() -> None:
    assert rising([Length(20, 74.0), Length(10, 75.0), Length(30, 76.0), Length(10, 70.0)]) == [
        Length(10, 75.0),
        Length(30, 76.0),
    ]
    paid = Budget(1000, "USD")
    long = affordable("long", LENGTHS, offers_of_lengths(), paid, None)
    dear = affordable("dear", LENGTHS, offers_of_lengths(cost=Span(900, 900, 900)), paid, None)
    short = affordable("short", LENGTHS[:1], offers_of_lengths()[:1], paid, None)
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
    monkeypatch.setattr("launcher_lab.predict.prediction.counted_steps", made_up)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("_by_hand")
def test_the_command_chooses_what_its_own_prediction_confirms() -> None:
    words = ("plan", "recipe=ffcv_rn50", "--on", "8xH100")
    code, out, errors = execute(*words, "--budget", "20usd", "--json")
    assert code == 0, errors
    (choice,) = json.loads(out)["choices"]
    assert choice["recipe"] == "ffcv_rn50"
    assert 0 < choice["cost"]["value"] <= 20
    low, high = choice["known_top1"]
    assert low <= choice["top1"] <= high
    code, out, _ = execute("plan", *choice["words"], "--on", choice["machine"], "--json")
    confirmed = [offer for offer in json.loads(out)["offers"] if offer["spot"] == choice["spot"]]
    assert confirmed[0]["cost"]["value"] == pytest.approx(choice["cost"]["value"], rel=0.02)
    code, out, _ = execute(*words, "--budget", "20usd")
    assert f"train plan recipe=ffcv_rn50 epochs={choice['epochs']} dataloader=ffcv --on lambda_8x_h100" in out


@pytest.mark.usefixtures("_by_hand")
def test_a_small_memory_gets_the_device_batch_that_fits() -> None:
    words = ("plan", "recipe=ffcv_rn50", "--on", "1xA10G")
    code, out, errors = execute(*words, "--budget", "3d", "--json")
    assert code == 0, errors
    (choice,) = json.loads(out)["choices"]
    (part,) = [word for word in choice["words"] if word.startswith("device_batch_size=")]
    assert f"{part} fits" in refused(*words, "epochs=16", "device_batch_size=1024", "dataloader=ffcv")
    assert execute("plan", *choice["words"], "--on", choice["machine"])[0] == 0
    typed = refused(*words, "--budget", "3d", "device_batch_size=1024")
    assert "no machine can run it" in typed


@pytest.mark.usefixtures("_by_hand")
def test_what_a_budget_does_not_pay_for_is_said_with_what_can_be() -> None:
    words = ("plan", "recipe=ffcv_rn50", "--on", "8xH100")
    assert "--budget=1min: is not enough; 73.8 % take at least" in refused(*words, "--budget", "1min")
    error = refused(*words, "--budget", "1usd", "--quality", "78")
    assert "is not enough; 78.0 % take at least" in error
    assert "ffcv_rn50 with 56 epochs on lambda_8x_h100" in error
    assert "the highest known quality is 78.4 %" in refused(*words, "--budget", "9usd", "--quality", "90")
    assert "omit epochs=" in refused(*words, "epochs=3", "--budget", "9usd")
    assert "measure some with `train curve`" in refused(*words, "dataset=image_folder", "--budget", "9usd")
