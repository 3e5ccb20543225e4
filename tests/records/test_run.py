"""One reader of run folders: states, times and prices, the same in every verb, and no error for any content."""

import errno
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import launcher
from launcher.config.compose import compose
from launcher.config.resolved import as_mapping
from launcher.errors import UserError
from launcher.publish.run_page import write_page
from launcher.records.metrics import EndRecord, EvalRecord, ResumeRecord, TrainRecord
from launcher.records.run import find_runs, read_run
from launcher.records.run_folder import RunFolder
from launcher.results.curves import build_curves
from launcher_lab.study.report import content
from launcher_lab.study.results import Results, read_results
from launcher_lab.study.tables import not_counted
from tests.commands import execute, output_of
from tests.made_runs import MakeRun, append, machine

EVALUATED = EvalRecord(20, 5065.0, 2, {"top1": 0.7, "top5": 1.0}, 1.0, 100, 5.0, 130.0)
P4D = machine("p4d", 30.0, "A100 40GB", 8)


def replaced(folder: Path, name: str, before: str, after: str) -> None:
    text = (folder / name).read_text()
    assert before in text
    (folder / name).write_text(text.replace(before, after))


def resumed(folder: Path) -> None:
    trained = TrainRecord(12, 2010.0, 1.2, 1.0, 0.1, 32, 100.0, 0.1, 0.0, None, 80.0)
    append(folder / "metrics.jsonl", ResumeRecord(10, 2000.0, 1), trained)


def elsewhere(folder: Path) -> None:
    replaced(folder, "metrics.jsonl", '"time": 1000.0', f'"time": {time.time()}')
    (folder / "metrics.jsonl").write_text((folder / "metrics.jsonl").read_text().splitlines()[0] + "\n")
    (folder / "lock").write_text("process 7 on node9\n")


def failed(folder: Path) -> None:
    (folder / "failure.txt").write_text("dataset.path=/data: a file is damaged\n")


def newer(folder: Path) -> None:
    (folder / "config.yaml").write_text((folder / "config.yaml").read_text() + "key_of_tomorrow: 3\n")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "tomorrow", "step": 20, "time": 1.0}\n')


# state, cost of training (None: no price; 0.1 USD a second), whether its end is recorded, and what has happened
FAULTS: dict[str, tuple[str, float | None, bool | None, Callable[[Path], object]]] = {
    "finished": ("finished", 12.0, True, lambda run: None),
    "stopped": ("stopped", 12.0, False, lambda run: None),
    "killed": ("interrupted", 12.0, None, lambda run: None),
    "killed_again": ("interrupted", 8.0, True, resumed),
    "failed": ("failed", 12.0, None, failed),
    "running_elsewhere": ("running", 0.0, None, elsewhere),
    "running": ("running", 12.0, None, lambda run: None),
    "newer": ("finished", 12.0, True, newer),
    "older": ("finished", 12.0, True, lambda run: replaced(run, "config.yaml", "  minutes: null\n", "")),
    "unpriced": ("finished", None, True, lambda run: replaced(run, "config.yaml", "_hour: 360.0", "_hour: null")),
    "no_config": ("damaged", None, True, lambda run: (run / "config.yaml").unlink()),
    "half_config": ("damaged", None, True, lambda run: (run / "config.yaml").write_text("epochs: [")),
    "wrong_config": ("damaged", 12.0, True, lambda run: replaced(run, "config.yaml", "epochs: 2", "epochs: -2")),
    "wrong_record": ("damaged", None, True, lambda run: replaced(run, "metrics.jsonl", '"world_size": 1', '"a": 1')),
    "no_start": ("damaged", None, True, lambda run: replaced(run, "metrics.jsonl", '"start"', '"opening"')),
    "unreadable_config": ("unreadable", None, True, lambda run: None),
    "unreadable_metrics": ("unreadable", None, True, lambda run: None),
}


@pytest.fixture
def faulty(make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    words = ["recipe=mild", "launch=cpu", "dataset=shapes", "epochs=2", "hardware=this_machine"]
    config = as_mapping(compose([*words, "hardware.price_per_hour=360"]).config)
    for seed, (name, (*_, finished, change)) in enumerate(FAULTS.items()):
        folder = make_run(f"runs/{name}", finished=finished, **{**config, "seed": seed})
        change(folder)
    unread = {
        tmp_path / "runs" / f"unreadable_{file.partition('.')[0]}" / file for file in ("config.yaml", "metrics.jsonl")
    }
    for method in ("read_bytes", "open"):
        real = getattr(Path, method)

        def read(path: Path, *arguments: Any, real: Any = real, **named: Any) -> Any:
            if path in unread:
                raise OSError(errno.EACCES, "Permission denied", str(path))
            return real(path, *arguments, **named)

        monkeypatch.setattr(Path, method, read)
    return tmp_path / "runs"


def test_state_and_cost_of_each_fault_are_equal_in_every_verb(faulty: Path) -> None:
    with RunFolder(faulty / "running").locked():
        rows = json.loads(output_of("ls", "runs", str(faulty), "--json"))["runs"]
        listed = {Path(row["path"]).name: (row["state"], row["train_cost"]) for row in rows}
        api = {Path(row.path).name: (row.state, row.train_cost) for row in launcher.list_runs(faulty)}
        compared = dict.fromkeys(FAULTS, "finished")
        for row in json.loads(output_of("compare", str(faulty), "--json"))["not_counted"]:
            compared[Path(row["run"]).name] = row["state"]
        report = content(read_results([str(faulty)], published=False), ".html", title="all").decode()
        cells = [row.partition("\n</")[0].strip().split("<td>")[1:] for row in report.split("<tr data-point=")[1:]]
        names = [one[0].partition("</summary>")[0].rpartition("/")[2] for one in cells]
        reported = {
            name: (one[1].partition(":")[0], float(one[-1]) if one[-1] else None)
            for name, one in zip(names, cells, strict=True)
        }
        carded = {}
        for name in FAULTS:
            file = faulty.parent / f"{name}.md"
            code, _, errors = execute("report", str(faulty / name), "-o", str(file))
            carded[name] = file.read_text() if code == 0 else errors
            if code == 0 and name != "unreadable_config":
                write_page(RunFolder(faulty / name))
    expected = {
        name: (state, None if cost is None else pytest.approx(cost)) for name, (state, cost, *_) in FAULTS.items()
    }
    assert listed == api == reported == expected
    assert compared == {name: state for name, (state, _) in expected.items()}
    for name, (state, cost, *_) in FAULTS.items():
        if state in ("damaged", "unreadable") or name == "running_elsewhere":
            assert state in carded[name] or "has no evaluation" in carded[name] or "config.yaml" in carded[name], name
            continue
        page = (faulty / name / "index.html").read_text()
        assert f"| state | {state} |" in carded[name], name
        assert (f"| cost of training | {cost:,.2f} USD |" if cost else "| state |") in carded[name], name
        assert (f"{cost:,.2f} USD on 1x cpu" if cost else "this machine has no price") in page, name
        assert state in page
    resumable = {row["path"].rpartition("/")[2] for row in rows if row["resume"]}
    assert resumable == {"stopped", "killed", "killed_again", "failed"}
    problems = {Path(row["path"]).name: row["problem"] for row in rows}
    assert problems["wrong_config"] == "config.yaml: epochs=-2: must be at least 1"
    assert problems["failed"] == "dataset.path=/data: a file is damaged"
    assert problems["unreadable_config"].startswith("config.yaml: Permission denied")


def test_a_finished_run_has_quality_and_both_times(make_run: MakeRun) -> None:
    run = read_run(make_run("a", top1=(0.4, 0.5, 0.6), seconds=(90.0, 60.0, 60.0)))
    assert (run.state, run.problem, run.epochs, run.seed) == ("finished", None, 3, 0)
    assert run.top1 == pytest.approx(60.0)
    # note: 90 + 60 + 60 s on the clock; the time of the second epoch replaces that of the first
    assert (run.times.training, run.times.wall) == (180.0, 225.0)
    assert [e.clock_minutes for e in run.evaluations] == [1.5, 2.5, 3.5]
    assert run.command == ("train", "recipe=mild", "run_name=a")


def test_one_epoch_keeps_its_time_and_a_slow_second_one_adds_none(make_run: MakeRun) -> None:
    assert read_run(make_run("one", top1=(0.4,), seconds=(90.0,))).times.training == 90.0
    run = read_run(make_run("two", top1=(0.4, 0.5), seconds=(60.0, 900.0)))
    assert run.times.training == 960.0 <= run.times.wall


def test_wall_clock_excludes_interruptions_and_includes_repeated_steps(make_run: MakeRun) -> None:
    folder = make_run("a", finished=None)  # 1000 s to 1140 s
    append(folder / "metrics.jsonl", ResumeRecord(10, 5000.0, 1), EVALUATED)
    run = read_run(folder)
    assert run.times.wall == 140 + 65
    assert [e.top1 for e in run.evaluations] == [50.0, 70.0]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.yaml", b"{", "config.yaml:2: did not find"),
        ("config.yaml", b"- 1", "config.yaml:1: must be a mapping of keys to values"),
        ("metrics.jsonl", b'{"kind":"start","step":0,"time":1}', "a record has a wrong value: start"),
    ],
)
def test_a_damaged_folder_has_the_reason(make_run: MakeRun, file: str, content: bytes, message: str) -> None:
    folder = make_run("a")
    (folder / file).write_bytes(content)
    run = read_run(folder)
    assert run.state == "damaged"
    assert message in str(run.problem)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(file=st.sampled_from(["config.yaml", "metrics.jsonl", "environment.json"]), content=st.binary(max_size=80))
def test_no_content_raises(make_run: MakeRun, tmp_path: Path, file: str, content: bytes) -> None:
    folder = tmp_path / "a"
    if not folder.exists():
        make_run("a")
    (folder / file).write_bytes(content)
    run = read_run(folder)
    assert run.state in ("finished", "damaged", "interrupted")
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
    assert run.state == "finished"
    assert run.unusable == "a resume changed the length, and so the schedule, from 2 to 4 epochs"
    assert read_run(make_run("same")).unusable is None
    assert read_run(make_run("dilated", epochs=4, schedule={"dilate": 0.5})).unusable is None
    assert read_run(make_run("absurd", epochs=10**400, schedule={"dilate": 1e308})).length is None
    assert build_curves([run]) == []
    assert not_counted(Results([run], [], [])) == [(str(run.path), "finished", run.unusable)]


def test_a_run_on_several_numbers_of_processes_is_excluded(make_run: MakeRun) -> None:
    folder = make_run("a", finished=None)
    ended = EndRecord(20, 5066.0, True, 130.0, 10.0, 0.0)
    append(folder / "metrics.jsonl", ResumeRecord(10, 5000.0, 4), EVALUATED, ended)
    assert read_run(folder).unusable == "a resume changed the number of processes: 1 and 4"


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
    replaced(folder, "metrics.jsonl", '"cpu"', f'"{device}"')
    replaced(folder, "metrics.jsonl", '"world_size": 1', f'"world_size": {ranks}')
    assert read_run(folder).money("training") == (None if money is None else pytest.approx(money))
