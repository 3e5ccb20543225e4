"""`train doctor` on this machine, and its exit codes."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.cli import doctor
from launcher.cli import main as cli
from launcher.config.compose import compose
from launcher.doctor.machine import Finding, ok, problem, warning
from tests.commands import output_of

WARNED = [ok("Python", "3.11"), warning("GPUs", "none", "trains on the CPU [slowly]")]


def finding(monkeypatch: pytest.MonkeyPatch, found: list[Finding]) -> None:
    monkeypatch.setattr(doctor, "examine", lambda config, report: iter(found))


def test_warnings_are_printed_and_exit_with_code_0(monkeypatch: pytest.MonkeyPatch) -> None:
    finding(monkeypatch, WARNED)
    lines = output_of("doctor").splitlines()
    assert [line.split() for line in lines] == [
        ["ok", "Python", "3.11"],
        ["warning", "GPUs", "none;", "trains", "on", "the", "CPU", "[slowly]"],
    ]


def test_a_problem_ends_with_code_2(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    finding(monkeypatch, [*WARNED, problem("FFCV", "not installed", "install it")])
    assert cli.main(["doctor", "--json"]) == 2
    shown = json.loads(capsys.readouterr().out)
    assert [row["status"] for row in shown] == ["ok", "warning", "problem"]
    assert shown[2] == {"name": "FFCV", "status": "problem", "observation": "not installed", "advice": "install it"}


def test_findings_are_printed_immediately(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def slowly(config: object, report: object) -> Iterator[Finding]:
        yield WARNED[0]
        assert "Python" in capsys.readouterr().out

    monkeypatch.setattr(doctor, "examine", slowly)
    assert cli.main(["doctor"]) == 0


def test_the_mirror_is_reached_and_not_written(tmp_path: Path) -> None:
    mirror, words = tmp_path / "bucket", ["dataset=shapes", "run_name=first"]

    def of(url: str) -> Finding:
        (one,) = doctor.examine_mirror(compose([*words, f"checkpoint.mirror={url}"]).config)
        return one

    assert list(doctor.examine_mirror(compose(words).config)) == []
    assert (of(f"file://{mirror}").status, list(tmp_path.iterdir())) == ("ok", [])
    (mirror / "first").mkdir(parents=True)
    (mirror / "first" / "config.yaml").touch()
    assert "/first has this run" in of(f"file://{mirror}").observation
    assert "Protocol not known" in (lost := of("nowhere://x")).advice
    assert lost.status == "problem"


@pytest.mark.system
def test_this_machine_can_run_the_demo() -> None:
    found = {row["name"]: row for row in json.loads(output_of("doctor", "launch=cpu", "--json"))}
    assert set(found) >= {"GPUs", "cores", "memory", "shared memory", "disk", "data set", "torch", "Pillow", "decoder"}
    assert found["torch"]["status"] == "ok"
    assert found["data set"]["observation"] == "shapes, built in"
    assert cli.main(["doctor", "launch=cpu", "dataset=imagenet", "dataset.path=/nowhere", "--json"]) == 2
