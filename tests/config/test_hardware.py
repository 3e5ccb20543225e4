import datetime
import json
from dataclasses import replace

import pytest

from launcher.cli.estimate import hardware
from launcher.config.gpus import gpus, unsupported
from launcher.config.groups import machines, options, price_age
from launcher.submit.job import read_values
from launcher.submit.sky import Sky
from tests.commands import output_of


def test_every_machine_has_a_known_gpu_and_the_source_of_its_figures() -> None:
    rented = [machine for name, machine in machines().items() if name != "this_machine"]
    assert machines().keys() == set(options("hardware"))
    assert {machine.gpu for machine in rented} == set(gpus())
    assert len(rented) >= 50
    for machine in rented:
        assert None not in (machine.gpus, machine.cores, machine.memory, machine.source), machine.name
        assert machine.price_source is not None, machine.name
        assert machine.price_per_hour is not None, machine.name
        assert (machine.spot_per_hour or 0) < machine.price_per_hour, machine.name
    assert all(gpu.source for gpu in gpus().values())
    assert read_values(Sky, []).gpus.keys() == {name for name in gpus() if not unsupported(name)}


def test_newer_gpus_are_faster() -> None:
    # note: by NVIDIA data sheets an A100 of 80 GB reads 1.31 times as fast as one of 40 GB, an H200 1.43 times an H100
    known = gpus()
    assert known["A100 80GB"].bandwidth / known["A100 40GB"].bandwidth == pytest.approx(1.31, abs=0.01)
    assert known["H200 141GB"].bandwidth / known["H100 80GB"].bandwidth == pytest.approx(1.43, abs=0.01)
    assert known["H200 141GB"].matrix_rate == known["H100 80GB"].matrix_rate
    # note: multiprocessors and clocks of NVIDIA's white papers
    assert known["A100 80GB"].cycles == pytest.approx(108 * 1.41e9, rel=0.01)
    assert known["H100 80GB"].cycles == pytest.approx(132 * 1.98e9, rel=0.01)
    # note: L4's clock falls at 72 W; consumer cards run above the clock of their specification
    assert all(0.45 < gpu.product_rate / gpu.matrix_rate < 1.15 for gpu in known.values())


@pytest.mark.parametrize(
    ("date", "text"),
    [
        ("2026-09-18", "2026-09-18"),
        ("2025-11", "2025-11, over a year old"),
        ("2022", "2022, over a year old"),
        ("last week", "last week"),
        (None, "unknown date"),
    ],
)
def test_an_old_price_is_marked(date: str | None, text: str) -> None:
    machine = replace(machines()["p4d_24xlarge"], price_date=date)
    assert price_age(machine, datetime.date(2026, 11, 22)) == text


def test_the_table_of_machines_shows_every_machine() -> None:
    shown = output_of("ls", "hardware")
    assert all(name in shown for name in machines())
    listed = {row["name"]: row for row in json.loads(output_of("ls", "hardware", "--json"))["hardware"]}
    assert (listed["bm_gpu4_8"]["gpu"], listed["bm_gpu4_8"]["gpus"]) == ("A100 40GB", 8)


def test_an_estimate_prices_the_machines_with_the_gpu_chosen_or_measured() -> None:
    chosen = replace(machines()["p4d_24xlarge"], price_per_hour=1.0)
    offers = hardware(chosen, "NVIDIA H200")
    assert offers[0] is chosen
    assert {machine.gpu for machine in offers} == {"A100 40GB", "H200 141GB"}
    assert [machine.name for machine in offers].count("p4d_24xlarge") == 1
    assert hardware(machines()["this_machine"], "cpu") == [machines()["this_machine"]]
