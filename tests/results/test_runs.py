"""Reading run folders: states and times, and no error for any content."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher.errors import UserError
from launcher.records.metrics import EndRecord, EvalRecord, ResumeRecord
from launcher.records.run_folder import RunFolder
from launcher.results.curves import build_curves
from launcher.results.runs import find_runs, read_run
from launcher_lab.study.results import Results
from launcher_lab.study.tables import not_counted
from tests.made_runs import MakeRun, append, machine

EVALUATED = EvalRecord(20, 5065.0, 2, {"top1": 0.7, "top5": 1.0}, 1.0, 100, 5.0, 130.0)


def test_a_finished_run_has_quality_and_both_times(make_run: MakeRun) -> None:
    run = read_run(make_run("a", top1=(0.4, 0.5, 0.6), seconds=(90.0, 60.0, 60.0)))
    assert (run.state, run.problem, run.epochs, run.seed) == ("finished", None, 3, 0)
    assert run.top1 == pytest.approx(60.0)
    # note: 90 + 60 + 60 s on the clock; the time of the second epoch replaces that of the first
    assert (run.times.counted, run.times.wall) == (180.0, 225.0)
    assert [e.clock_minutes for e in run.evaluations] == [1.5, 2.5, 3.5]
    assert run.command == ("train", "recipe=mild", "run_name=a")


def test_a_run_of_one_epoch_keeps_its_time(make_run: MakeRun) -> None:
    run = read_run(make_run("a", top1=(0.4,), seconds=(90.0,)))
    assert run.times.counted == 90.0


def test_a_slow_second_epoch_adds_no_time(make_run: MakeRun) -> None:
    run = read_run(make_run("a", top1=(0.4, 0.5), seconds=(60.0, 900.0)))
    assert run.times.counted == 960.0 <= run.times.wall


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"epochs": -2}, "epochs=-2: must be at least 1"),
        ({"batch_size": "many"}, "batch_size=many: must be a whole number"),
        ({"schedule": {"name": "cosine", "dilate": 0.0}}, "schedule.dilate=0.0: must be above 0"),
        ({"optimizer": {"name": "sdg"}}, "optimizer.name=sdg: must be one of"),
        ({"sede": 3}, "sede=3: no such key; did you mean seed?"),
    ],
)
def test_a_run_with_an_invalid_config_is_not_counted(make_run: MakeRun, changes: Any, problem: str) -> None:
    run = read_run(make_run("a", **changes))
    assert (run.state, run.top1) == ("damaged", None)
    assert f"config.yaml: {problem}" in str(run.problem)
    assert not build_curves([run])


def test_wall_clock_excludes_interruptions_and_includes_repeated_steps(make_run: MakeRun) -> None:
    folder = make_run("a", finished=None)  # 1000 s to 1140 s
    append(folder / "metrics.jsonl", ResumeRecord(10, 5000.0, 1), EVALUATED)
    run = read_run(folder)
    assert run.times.wall == 140 + 65
    assert [e.top1 for e in run.evaluations] == [50.0, 70.0]


@pytest.mark.parametrize(("finished", "state"), [(True, "finished"), (False, "stopped"), (None, "unfinished")])
def test_states(make_run: MakeRun, finished: bool | None, state: str) -> None:
    folder = make_run("a", finished=finished)
    with RunFolder(folder).locked():
        assert read_run(folder).state == ("finished" if finished else "running")
    run = read_run(folder)
    assert run.state == state
    assert (run.top1 is not None) == (state == "finished")


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.yaml", b"{", "config.yaml:2: did not find"),
        ("config.yaml", b"- 1", "config.yaml:1: must be a mapping of keys to values"),
        ("metrics.jsonl", b'{"kind":"start","step":0,"time":1}', "a record has a wrong value: 'epochs'"),
    ],
)
def test_a_damaged_folder_has_the_reason(make_run: MakeRun, file: str, content: bytes, message: str) -> None:
    folder = make_run("a")
    (folder / file).write_bytes(content)
    run = read_run(folder)
    assert run.state == "damaged"
    assert message in str(run.problem)


def test_without_config_or_start_record_a_run_is_damaged(make_run: MakeRun) -> None:
    folder = make_run("a")
    lines = (folder / "metrics.jsonl").read_bytes().splitlines()
    (folder / "metrics.jsonl").write_bytes(lines[-1])
    assert "no record of the start" in str(read_run(folder).problem)
    (folder / "config.yaml").unlink()
    assert read_run(folder).state == "damaged"
    assert find_runs([str(folder)]) == [folder]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(file=st.sampled_from(["config.yaml", "metrics.jsonl", "environment.json"]), content=st.binary(max_size=80))
def test_no_content_raises(make_run: MakeRun, tmp_path: Path, file: str, content: bytes) -> None:
    folder = tmp_path / "a"
    if not folder.exists():
        make_run("a")
    (folder / file).write_bytes(content)
    run = read_run(folder)
    assert run.state in ("finished", "stopped", "running", "unfinished", "damaged")
    assert all(isinstance(text, str) for text in (run.hardware, run.recipe, run.model))


def test_each_run_folder_below_a_path_is_returned_once(make_run: MakeRun, tmp_path: Path) -> None:
    first, second = make_run("grid/a"), make_run("grid/deeper/b")
    assert find_runs([str(tmp_path / "grid"), str(first)]) == [first, second]
    with pytest.raises(UserError, match="contains no run folder"):
        find_runs([str(first / "logs")])
    with pytest.raises(UserError, match="is not a folder"):
        find_runs(["nowhere"])


def test_a_run_with_a_length_changed_by_a_resume_is_excluded(make_run: MakeRun) -> None:
    run = read_run(make_run("longer", epochs=4))
    assert (run.state, run.mixed) == (
        "finished",
        "a resume changed the length, and so the schedule, from 2 to 4 epochs",
    )
    assert read_run(make_run("same")).mixed is None
    assert read_run(make_run("dilated", epochs=4, schedule={"dilate": 0.5})).mixed is None
    assert read_run(make_run("absurd", epochs=10**400, schedule={"dilate": 1e308})).mixed is None
    assert build_curves([run]) == []
    assert not_counted(Results([run], [], [])) == [(str(run.path), "mixed", run.mixed)]


def test_a_run_on_several_numbers_of_processes_is_excluded(make_run: MakeRun) -> None:
    folder = make_run("a", finished=None)
    ended = EndRecord(20, 5066.0, True, 130.0, 10.0, 0.0)
    append(folder / "metrics.jsonl", ResumeRecord(10, 5000.0, 4), EVALUATED, ended)
    assert read_run(folder).mixed == "a resume changed the number of processes: 1 and 4"


P4D = machine("p4d", 30.0, "A100 40GB", 8)


@pytest.mark.parametrize(
    ("device", "ranks", "hardware", "nodes", "money"),
    [
        ("NVIDIA A100-SXM4-40GB", 8, P4D, 1, 1.0),
        ("NVIDIA A100-SXM4-40GB", 16, P4D, 2, 2.0),
        ("NVIDIA A100-SXM4-40GB", 16, P4D, 1, None),
        ("NVIDIA A100-SXM4-40GB", 8, {**P4D, "gpu": "A10 24GB"}, 1, None),
        ("cpu", 1, machine("box", 3.0), 1, 0.1),
    ],
)
def test_money_needs_the_devices_of_the_priced_machine(
    make_run: MakeRun, device: str, ranks: int, hardware: dict[str, object], nodes: int, money: float | None
) -> None:
    folder = make_run("a", seconds=(60.0, 60.0), hardware=hardware, launch={"nnodes": nodes})
    path = folder / "metrics.jsonl"
    path.write_text(
        path.read_text().replace('"cpu"', f'"{device}"').replace('"world_size": 1', f'"world_size": {ranks}')
    )
    assert read_run(folder).money == (None if money is None else pytest.approx(money))
