"""`train plan --on`: its output and errors, on steps made by hand."""

import json
import re
from pathlib import Path

import pytest

from launcher.config.groups import machines
from launcher.prediction.machines import rented
from tests.commands import execute, output_of, refused
from tests.counted_steps import made_up

PLAN = ("plan", "recipe=mild", "epochs=36", "dataset=imagenet")


@pytest.fixture(autouse=True)
def _by_hand(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("launcher.prediction.prediction.counted_steps", made_up)
    monkeypatch.chdir(tmp_path)


def offered(*words: str) -> list[dict[str, object]]:
    code, out, errors = execute(*words, "--json")
    assert code == 0, errors
    return list(json.loads(out)["offers"])


def test_a_machine_has_minutes_money_and_bottlenecks() -> None:
    code, out, _ = execute(*PLAN, "--on", "8xH100")
    assert code == 0
    assert "lambda_8x_h100" in out
    assert "source: published rates of other programs" in out
    (offer,) = offered(*PLAN, "--on", "8xH100")
    hours = offer["minutes"]["value"] / 60  # type: ignore[index]
    assert offer["cost"]["value"] == pytest.approx(hours * machines()["lambda_8x_h100"].price_per_hour)  # type: ignore[index]
    assert {phase["bound"] for phase in offer["phases"]} <= {"arithmetic", "memory", "loader"}  # type: ignore[attr-defined]


def test_only_on_asks_for_time_and_cost() -> None:
    steps = json.loads(output_of(*PLAN, "hardware=p4d_24xlarge", "--json"))
    assert (steps["processes"], "offers" in steps) == (8, False)
    one = offered(*PLAN, "--on", "p4d_24xlarge")
    assert [offer["spot"] for offer in one] == [True, False]
    assert one[0]["minutes"]["value"] > one[1]["minutes"]["value"]  # type: ignore[index]


@pytest.mark.parametrize("words", [("--on", "2x p4d_24xlarge"), ("--on", "p4d_24xlarge", "launch.nnodes=2")])
def test_several_machines_share_the_batch_and_each_has_its_price(words: tuple[str, ...]) -> None:
    code, out, errors = execute(*PLAN, *words)
    assert code == 0, errors
    assert "2 x p4d_24xlarge" in out
    _, one = offered(*PLAN, "dataloader=torchvision", "--on", "p4d_24xlarge")
    _, two = offered(*PLAN, "dataloader=torchvision", *words)
    assert (one["nodes"], two["nodes"]) == (1, 2)
    assert two["memory_gigabytes"] == pytest.approx(one["memory_gigabytes"] / 2)  # type: ignore[operator]
    minutes = two["minutes"]["value"]  # type: ignore[index]
    assert two["cost"]["value"] == pytest.approx(2 * machines()["p4d_24xlarge"].price_per_hour * minutes / 60)  # type: ignore[index]
    assert 1.6 < two["samples_per_second"] / one["samples_per_second"] < 2.0  # type: ignore[operator]


def test_a_budget_is_spent_on_several_machines() -> None:
    words = ("plan", "recipe=mild", "--budget", "100usd", "--on", "2x p4d_24xlarge")
    code, out, errors = execute(*words)
    assert code == 0, errors
    assert "2 x p4d_24xlarge" in out
    assert "launch.nnodes=2" in out
    assert {choice["nodes"] for choice in json.loads(execute(*words, "--json")[1])["choices"]} == {2}


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
    able = [(o["minutes"]["value"], o["cost"]["value"], o["front"]) for o in offers if not o["problem"]]  # type: ignore[index]
    for minutes, cost, front in able:
        beaten = any(m <= minutes and c <= cost and (m, c) != (minutes, cost) for m, c, _ in able)
        assert front == (not beaten)
    assert {o["machine"] for o in offers} == machines().keys() - {"this_machine"}
    assert any(o["problem"] and "device_batch_size=" in str(o["problem"]) for o in offers)
    old = [o for o in offers if "V100" in str(o["gpu"])]
    assert old
    assert all("torch has no kernels for V100" in str(o["problem"]) for o in old)


def test_the_list_of_all_machines_fits_a_terminal_and_gives_reasons_below() -> None:
    code, out, errors = execute(*PLAN, "--on", "all")
    assert code == 0, errors
    rows, notes = out.split("*: no other machine")
    assert max(map(len, rows.splitlines())) <= 100
    assert "runpod_8x_rtx4090" in rows
    assert "1 x T4" not in rows
    assert "device_batch_size=256 fits: g4dn_8xlarge\n" in notes
    assert "note: not possible: torch has no kernels for V100 16GB" in notes
    assert "note: price: unknown date: " in notes


def test_a_quality_gives_the_length_of_its_curve() -> None:
    code, out, _ = execute("plan", "recipe=hot", "dataset=imagenet", "--quality", "80.78", "--on", "8xH100")
    assert code == 0
    assert "note: 450 epochs for 80.78 %: Mosaic ResNet deep dive, 2022: hot on 8x A100 80GB" in out
    code, out, _ = execute("plan", "recipe=mild", "--quality", "76.6", "--on", "8xH100")
    assert "its minutes at the throughput predicted there" in out


def test_a_machine_without_a_price_gives_a_note() -> None:
    code, out, _ = execute(*PLAN, "--on", "8xH100", "hardware.price_per_hour=null")
    assert code == 0
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
        _, out, _ = execute(*PLAN, "--on", "8xH100", *words)
        return next((line for line in out.replace("\n", " ").split("note: ") if "dataloader=ffcv would" in line), "")

    slow = ("dataloader=torchvision", "dataloader.workers=1")
    minutes = [
        offered(*PLAN, "--on", "8xH100", *words)[0]["minutes"]["value"] for words in (slow, ("dataloader=ffcv",))
    ]  # type: ignore[index]
    assert f", {minutes[0] / minutes[1]:.1f} times as fast; train prepare dataset.path=FOLDER writes" in note(*slow)
    assert not note("dataloader=ffcv", "dataloader.workers=1")
    assert not note("dataloader=synthetic")


def test_steps_are_those_that_auto_chooses_and_never_slower_than_eager_ones() -> None:
    eager = ("compile=off", "cuda_graphs=off")
    times = {}
    for words in ((), eager):
        code, out, _ = execute(*PLAN, "--on", "8xH100", *words)
        assert code == 0
        assert ("steps are " in out) == (not words)
        times[words] = offered(*PLAN, "--on", "8xH100", *words)[0]["minutes"]["value"]  # type: ignore[index]
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
    code, out, _ = execute(*PLAN, *words)
    assert code == 0
    lines = out.splitlines()
    (place,) = [number for number, line in enumerate(lines) if "waits for the loader" in line]
    assert not any("image px" in line or line.startswith("note:") for line in lines[:place])
    found = re.match(
        r"note: (\d+)% of training waits for the loader; (.*) would take (.*) instead of (.*?), ", lines[place]
    )
    assert found
    share, remedy, after, before = found.groups()
    assert 0 < int(share) <= 100
    assert ("dct_scaling" in remedy) == ("dataloader=ffcv" in words)
    assert before in lines[place - 1]
    changed = execute(*PLAN, *words, *remedy.split())[1].splitlines()
    assert any("on demand" in line and after in line for line in changed), changed


def test_a_remedy_without_a_gain_is_not_named() -> None:
    out = execute(*PLAN, "dataloader=ffcv", "--on", "g2_standard_96")[1]
    assert "loader" not in out
