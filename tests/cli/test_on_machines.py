"""`train plan --on`: its output and errors, on steps made by hand."""

import re
from pathlib import Path
from typing import Any

import pytest

from launcher.config.groups import machines
from launcher.prediction.machines import rented
from tests.commands import output_of, refused, values_of
from tests.counted_steps import made_up

PLAN = ("plan", "recipe=mild", "epochs=36", "dataset=imagenet")


@pytest.fixture(autouse=True)
def _by_hand(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("launcher.prediction.prediction.counted_steps", made_up)
    monkeypatch.chdir(tmp_path)


def offered(*words: str) -> list[dict[str, Any]]:
    return list(values_of(*words)["offers"])


def test_a_machine_has_minutes_money_and_bottlenecks() -> None:
    out = output_of(*PLAN, "--on", "8xH100")
    assert "lambda_8x_h100" in out
    assert "source: published rates of other programs" in out
    (offer,) = offered(*PLAN, "--on", "8xH100")
    hours = offer["minutes"]["value"] / 60
    assert offer["cost"]["value"] == pytest.approx(hours * machines()["lambda_8x_h100"].price_per_hour)
    assert {phase["bound"] for phase in offer["phases"]} <= {"arithmetic", "memory", "loader"}


def test_only_on_asks_for_time_and_cost() -> None:
    steps = values_of(*PLAN, "hardware=p4d_24xlarge")
    assert (steps["processes"], "offers" in steps) == (8, False)
    one = offered(*PLAN, "--on", "p4d_24xlarge")
    assert [offer["spot"] for offer in one] == [True, False]
    assert one[0]["minutes"]["value"] > one[1]["minutes"]["value"]


@pytest.mark.parametrize("words", [("--on", "2x p4d_24xlarge"), ("--on", "p4d_24xlarge", "launch.nnodes=2")])
def test_several_machines_share_the_batch_and_each_has_its_price(words: tuple[str, ...]) -> None:
    assert "2 x p4d_24xlarge" in output_of(*PLAN, *words)
    _, one = offered(*PLAN, "dataloader=torchvision", "--on", "p4d_24xlarge")
    _, two = offered(*PLAN, "dataloader=torchvision", *words)
    assert (one["nodes"], two["nodes"]) == (1, 2)
    assert two["memory_gigabytes"] == pytest.approx(one["memory_gigabytes"] / 2)
    minutes = two["minutes"]["value"]
    assert two["cost"]["value"] == pytest.approx(2 * machines()["p4d_24xlarge"].price_per_hour * minutes / 60)
    assert 1.6 < two["samples_per_second"] / one["samples_per_second"] < 2.0


@pytest.mark.slow
def test_a_budget_is_spent_on_several_machines() -> None:
    words = ("plan", "recipe=mild", "--budget", "100usd", "--on", "2x p4d_24xlarge")
    out = output_of(*words)
    assert "2 x p4d_24xlarge" in out
    assert "launch.nnodes=2" in out
    assert {choice["nodes"] for choice in values_of(*words)["choices"]} == {2}


@pytest.mark.slow
def test_all_machines_with_several_nodes_leave_out_those_without_a_known_network() -> None:
    offers = offered(*PLAN, "--on", "all", "launch.nnodes=2")
    unknown = {o["machine"] for o in offers if "network" in str(o["problem"])}
    known = rented()
    assert unknown == {
        str(o["machine"]) for o in offers if known[str(o["machine"])].network is None and "V100" not in str(o["gpu"])
    }
    assert "p5_48xlarge" in {o["machine"] for o in offers if not o["problem"]}


def test_all_machines_are_compared_and_the_front_marked() -> None:
    offers = offered(*PLAN, "--on", "all")
    able = [(o["minutes"]["value"], o["cost"]["value"], o["front"]) for o in offers if not o["problem"]]
    for minutes, cost, front in able:
        beaten = any(m <= minutes and c <= cost and (m, c) != (minutes, cost) for m, c, _ in able)
        assert front == (not beaten)
    assert {o["machine"] for o in offers} == machines().keys() - {"this_machine"}
    assert any(o["problem"] and "device_batch_size=" in str(o["problem"]) for o in offers)
    old = [o for o in offers if "V100" in str(o["gpu"])]
    assert old
    assert all("torch has no kernels for V100" in str(o["problem"]) for o in old)


def test_the_list_of_all_machines_fits_a_terminal_and_gives_reasons_below() -> None:
    out = output_of(*PLAN, "--on", "all")
    rows, notes = out.split("*: no other machine")
    assert max(map(len, rows.splitlines())) <= 100
    assert "runpod_8x_rtx4090" in rows
    assert "1 x T4" not in rows
    assert "device_batch_size=256 fits: g4dn_8xlarge\n" in notes
    assert "note: not possible: torch has no kernels for V100 16GB" in notes
    assert "note: price: unknown date: " in notes


@pytest.mark.slow
def test_a_quality_gives_the_length_of_its_curve() -> None:
    out = output_of("plan", "recipe=hot", "dataset=imagenet", "--quality", "80.78", "--on", "8xH100")
    assert "note: 450 epochs for 80.78 %: Mosaic ResNet deep dive, 2022: hot on 8x A100 80GB" in out
    out = output_of("plan", "recipe=mild", "--quality", "76.6", "--on", "8xH100")
    assert "its minutes at the throughput predicted there" in out


def test_a_machine_without_a_price_gives_a_note() -> None:
    out = output_of(*PLAN, "--on", "8xH100", "hardware.price_per_hour=null")
    assert "note: no price for lambda_8x_h100; set hardware.price_per_hour=2.5" in out


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ((*PLAN, "--on", "p5_48xlage"), "did you mean p5_48xlarge?"),
        ((*PLAN, "--on", "1xT4"), "=null: 2,048 images at once need 70 GB of a GPU's 16; device_batch_size=256 fits"),
        ((*PLAN, "--on", "this_machine"), "its GPU is not in conf/gpus.yaml; measure with `train estimate`"),
        ((*PLAN, "--quality", "76.6"), "needs --on MACHINE"),
        ((*PLAN, "--on", "all", "--quality", "76.6"), "sets the length already"),
        (("plan", "recipe=mild", "--on", "all", "--quality", "95"), "the curves of mild reach 75.9 to 78.1 %"),
        ((*PLAN, "--on", "all", "--budget", "50USD", "--quality", "1"), "up to 100; did you mean 100?"),
        ((*PLAN, "--on", "16xH100", "launch.nnodes=2"), "--on=16xH100: has 2 machines; omit launch.nnodes="),
        ((*PLAN, "--on", "8xH100", "launch.nnodes=2"), "hardware.network=null: the network between machines is not"),
        ((*PLAN, "--on", "8xH100", "launch=cpu"), "launch=cpu: predictions use all 8 GPUs of lambda_8x_h100; omit"),
        ((*PLAN, "--on", "8xH100", "launch.nproc=4"), "use all 8 GPUs of lambda_8x_h100; omit launch.nproc"),
    ],
)
def test_an_invalid_option_is_a_one_line_error(words: tuple[str, ...], line: str) -> None:
    assert line in refused(*words)


def test_a_loading_bottleneck_has_the_gain_of_ffcv_files() -> None:
    def note(*words: str) -> str:
        notes = output_of(*PLAN, "--on", "8xH100", *words).replace("\n", " ").split("note: ")
        return next((line for line in notes if "dataloader=ffcv would" in line), "")

    slow = ("dataloader=torchvision", "dataloader.workers=1")
    before, after = (
        offered(*PLAN, "--on", "8xH100", *words)[0]["minutes"]["value"] for words in (slow, ("dataloader=ffcv",))
    )
    assert f", {before / after:.1f} times as fast; train prepare dataset.path=FOLDER writes" in note(*slow)
    assert not note("dataloader=ffcv", "dataloader.workers=1")
    assert not note("dataloader=synthetic")


def test_steps_are_those_that_auto_chooses_and_never_slower_than_eager_ones() -> None:
    eager = ("compile=off", "cuda_graphs=off")
    times = {}
    for words in ((), eager):
        out = output_of(*PLAN, "--on", "8xH100", *words)
        assert ("steps are " in out) == (not words)
        times[words] = offered(*PLAN, "--on", "8xH100", *words)[0]["minutes"]["value"]
    assert times[()] <= times[eager]


@pytest.mark.parametrize(
    "words",
    [
        ["recipe=hot", "dataloader=torchvision", "--on", "nd96isr_h100_v5"],
        ["dataloader=ffcv", "--on", "nebius_1x_h200"],
        ["--on", "nebius_1x_h200"],
    ],
)
def test_the_remedy_of_a_loader_that_bounds_steps_follows_the_time(words: list[str]) -> None:
    lines = output_of(*PLAN, *words).splitlines()
    (place,) = [number for number, line in enumerate(lines) if "waits for the loader" in line]
    assert not any("image px" in line or line.startswith("note:") for line in lines[:place])
    sentence = r"note: (\d+)% of training waits for the loader; (.*) would take (.*) instead of (.*?), "
    found = re.match(sentence, lines[place])
    assert found
    share, remedy, after, before = found.groups()
    assert 0 < int(share) <= 100
    assert ("dct_scaling" in remedy) == ("dataloader=ffcv" in words)
    assert before in lines[place - 1]
    changed = output_of(*PLAN, *words, *remedy.split()).splitlines()
    assert any("on demand" in line and after in line for line in changed), changed


def test_a_remedy_without_a_gain_is_not_named() -> None:
    assert "loader" not in output_of(*PLAN, "dataloader=ffcv", "--on", "g2_standard_96")
