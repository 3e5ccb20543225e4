"""Untrusted run folders: nothing is written elsewhere, and an invalid config is refused with its path."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from launcher.cli.resume import newest_unfinished
from launcher.config import resolved
from launcher.config.compose import compose
from launcher.errors import UserError
from launcher.launch import start
from launcher.records.learning_curve import draw_curve
from launcher.records.metrics import ResumeRecord, StartRecord, TrainRecord, read_metrics
from launcher.records.run_folder import RunFolder, checkpoint_name, create, existing
from launcher.records.sinks import AttemptsWriter, MetricsWriter
from launcher.training import checkpoint
from tests.commands import execute, output_of, refused
from tests.made_runs import MakeRun, append, records


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = create(tmp_path / "runs", "odd", unique=False)
    resolved.write(compose([]).config, folder.config)
    return folder


@pytest.mark.parametrize("verb", ["resume", "eval", "export"])
@pytest.mark.parametrize("name", ["lock", "metrics.jsonl", "logs/rank-0.log", "config.yaml.tmp", "checkpoints/.a.tmp"])
def test_a_run_folder_does_not_write_through_links(run: RunFolder, tmp_path: Path, verb: str, name: str) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (run.path / name).symlink_to(precious)
    assert f"{name} is a symbolic link" in refused(verb, str(run.path))
    assert precious.read_text() == "mine"


@pytest.mark.parametrize("verb", ["eval", "export"])
def test_a_checkpoint_without_weights_is_refused(run: RunFolder, verb: str) -> None:
    checkpoint.save({"step": 3}, run.checkpoints / checkpoint_name(3))
    assert "the checkpoint has no weights" in refused(verb, str(run.path))


def test_a_run_folder_may_be_a_link_and_contain_linked_folders(run: RunFolder, tmp_path: Path) -> None:
    run.checkpoints.rmdir()
    (tmp_path / "elsewhere").mkdir()
    run.checkpoints.symlink_to(tmp_path / "elsewhere")
    (tmp_path / "short").symlink_to(run.path)
    assert existing(str(tmp_path / "short")).config.is_file()


@pytest.mark.parametrize("path", ["a" * 5000, "", "/dev/null", "nowhere", "a\0b", "[/x]", "new\nline"])
def test_a_path_that_is_not_a_run_folder_is_refused(path: str) -> None:
    for verb in ("resume", "eval", "export"):
        assert "is not a run folder" in refused(verb, path)


def test_the_bytes_of_a_lock_file_are_escaped(run: RunFolder) -> None:
    with run.locked():
        (run.path / "lock").write_bytes(b"\xff\x1b[2J\n\n")
        with pytest.raises(UserError, match=r"in use by \ufffd\\x1b\[2J; wait"), run.locked():
            pass


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (lambda text: text.replace("seed: 42", "seed: !!python/object/apply:os.mkdir [trace]"), "tags such as"),
        (lambda text: text[: len(text) // 2], "."),
        (lambda text: text.encode("utf-16").decode("latin-1"), "characters are not allowed|UTF-8"),
    ],
)
def test_an_invalid_edited_config_is_refused_with_its_path(
    run: RunFolder, edit: Callable[[str], str], expected: str
) -> None:
    run.config.write_text(edit(run.config.read_text()), encoding="utf-8")
    code, _, errors = execute("resume", str(run.path))
    assert code == 2
    assert all(line.startswith("error: ") and str(run.config) in line for line in errors.splitlines())
    assert any(word in errors for word in expected.split("|"))
    assert not (run.path / "trace").exists()


# -- one bad run beside others


NAMES = ("config.yaml", "metrics.jsonl", "attempts.jsonl", "environment.json", "failure.txt", "lock")


@pytest.fixture
def bad_runs(make_run: MakeRun) -> list[Path]:
    """Return finished runs, each with a folder in place of another file, beside a `good` one."""
    runs = []
    resolved.write(compose(["epochs=2"]).config, config := make_run("good") / "config.yaml")
    for name in NAMES:
        runs.append(make_run(f"bad-{name.partition('.')[0]}"))
        shutil.copy(config, runs[-1])
        (runs[-1] / name).unlink(missing_ok=True)
        (runs[-1] / name).mkdir()
    config.write_text(config.read_text().replace("seed: 42", "seed: 1"))
    return runs


def test_a_run_with_a_bad_file_is_named_and_hides_no_other(bad_runs: list[Path], tmp_path: Path) -> None:
    listed = {
        Path(run["path"]).name: run for run in json.loads(output_of("ls", "runs", str(tmp_path), "--json"))["runs"]
    }
    compared = json.loads(output_of("compare", str(tmp_path), "--json"))
    report = tmp_path / "report.html"
    output_of("report", str(tmp_path), "--output", str(report))
    assert "good" in report.read_text()
    unread = {run.name for run in bad_runs if run.name.endswith(("-config", "-metrics"))}
    damaged = {Path(run["run"]).name for run in compared["not_counted"] if run["state"] == "damaged"}
    assert damaged == unread
    assert set(listed) == {"good", *(run.name for run in bad_runs)}
    assert {name for name, run in listed.items() if run["state"] == "damaged"} == unread
    assert not any("\n" in (run["problem"] or "") for run in listed.values())


# -- a million records


@dataclass
class Cost:
    """What a block of this process reads, in bytes, and its highest memory above that at its start."""

    read: int = 0
    memory: int = 0

    def __enter__(self) -> "Cost":
        Path("/proc/self/clear_refs").write_text("5")
        self._before = _io(), _memory("VmRSS")
        return self

    def __exit__(self, *error: object) -> None:
        read, memory = self._before
        self.read, self.memory = _io() - read, _memory("VmHWM") - memory


def _io() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


def _memory(name: str) -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{name}:"))
    return 1024 * int(line.split()[1])


@pytest.fixture
def long_run(make_run: MakeRun) -> Path:
    """Return a run that was killed after a million records."""
    run = make_run("long", finished=None)
    config = compose(["launch=cpu", "dataset=shapes"]).config
    resolved.write(config, run / "config.yaml")
    first, *rest = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    lines = bytearray()
    for number in range(10_000):
        step = TrainRecord(7, 1001.0, number / 20_000, 1 + number % 7, 0.1, 32, 9.0, 0.1, 0.0, None, 60.0)
        lines += json.dumps(step.row() | {"padding": "x" * 30}).encode() + b"\n"
    with (run / "metrics.jsonl").open("wb") as file:
        file.write(first)
        for _ in range(100):
            file.write(lines)
        file.writelines(rest)
    return run


@pytest.mark.slow
def test_a_million_records_take_little_memory(long_run: Path, tmp_path: Path, make_run: MakeRun) -> None:
    for words in (["ls", "runs", str(tmp_path)], ["compare", str(tmp_path)]):
        output_of(*words)
        with Cost() as cost:
            output_of(*words)
        assert cost.memory < 50e6
    with Cost() as cost:
        rows = read_metrics(long_run / "metrics.jsonl")
    assert cost.memory < 150e6
    task = resolved.read(long_run / "config.yaml").task
    draw_curve(RunFolder(make_run("short")), task, "short")
    with Cost() as cost:
        draw_curve(RunFolder(long_run), task, "long")
    assert cost.memory < 150e6
    assert 15_000 < len(rows) < 40_000
    assert [row["kind"] for row in rows[-4:]] == ["eval", "epoch"] * 2
    assert rows[-5]["kind"] == "train"


def test_a_resume_reads_the_ends_of_a_million_records(
    long_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(long_run)
    attempts = [record for record in records([0.5], [1.0], None) if isinstance(record, StartRecord)]
    append(folder.attempts, *attempts, ResumeRecord(3, 1e9, 4))
    folder.checkpoints.mkdir(exist_ok=True)
    (folder.checkpoints / checkpoint_name(3)).touch()
    notes: list[str] = []

    def write(self: Any, *words: Any, **_: Any) -> None:
        notes.append(" ".join(map(str, words)))

    monkeypatch.setattr("rich.console.Console.print", write)
    monkeypatch.setattr(start, "_train", lambda folder, *_: start.Ended(folder, 0))
    execute("resume", str(long_run))
    with Cost() as cost:
        assert newest_unfinished(tmp_path) == long_run
        assert execute("resume", str(long_run))[0] == 0
        for writer in (MetricsWriter(folder.metrics), AttemptsWriter(folder.attempts)):
            writer.close()
    assert any("the run had 4 processes and resumes with 1" in note for note in notes)
    assert cost.read < 2e6
    assert cost.memory < 50e6
