"""Every example that a help text shows is a command that works."""

from __future__ import annotations

import importlib
import json
import os
import shlex
import signal
import subprocess
import sys

import pytest

from launcher.cli import main as cli
from launcher.cli.words import read
from launcher.config.compose import compose
from launcher.config.groups import options

EXAMPLES = [line.split("  ")[0] for line in map(str.strip, cli._EXAMPLES.splitlines()[1:])]
OF_VERBS = [(verb, line) for verb in cli.VERBS for line in cli.module_of(verb).EXAMPLES]


@pytest.mark.parametrize("line", [*EXAMPLES, *(line for _, line in OF_VERBS)])
def test_examples_compose(line: str) -> None:
    words = shlex.split(line)
    assert words[0] == "train"
    if words[1:2] == ["help"]:
        words = ["train", words[2]]
    verb = words[1] if len(words) > 1 and words[1] in cli.VERBS else "run"
    rest = words[1:] if verb == "run" else words[2:]
    parser = cli.parser_of(verb, importlib.import_module(cli.module_of(verb).__name__))
    arguments = read(parser, verb, rest, list(cli.VERBS))
    if verb in ("run", "show", "plan"):
        compose(arguments.overrides)


@pytest.mark.parametrize("verb", cli.VERBS)
def test_each_verbs_help_ends_with_its_examples(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main([verb, "--help"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out.rstrip().endswith(cli.module_of(verb).EXAMPLES[-1])


def test_plan_and_show_say_what_was_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "recipe=mild", "epochs=36", "batch_size=1024"]) == 0
    shown = capsys.readouterr().out
    assert "36 epochs x 1,251 steps = 45,036 steps" in shown
    assert "it is scaled to 1.024" in shown
    assert "blurpool" in shown
    assert cli.main(["show", "recipe=mild", "epochs=40", "--origin"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert lines["epochs=40"].endswith("command line")
    assert lines["optimizer.momentum=0.875"].endswith("recipe mild")
    assert lines["deterministic=false"].endswith("defaults")


def test_ls_shows_every_recipe_and_refuses_unknown_sections(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ls"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("mild", "medium", "hot", "baseline", "timm_a3", "ffcv_rn50", "decoupled_sgd"))
    assert cli.main(["ls", "algoritms"]) == 2
    assert "did you mean algorithms?" in capsys.readouterr().err


def test_ls_says_what_each_method_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ls", "algorithms"]) == 0
    rows = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()[1:])
    assert sorted(rows) == options("algorithms")
    assert all(about == f"{about[0].upper()}{about[1:].rstrip('. ')}." for about in map(str.rstrip, rows.values()))


def test_origins_name_the_base_of_a_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["show", "recipe=hot_cutmix", "--origin"]) == 0
    lines = {line.split("=")[0]: line for line in capsys.readouterr().out.splitlines()}
    assert lines["epochs"].endswith(" recipe hot_cutmix")
    assert lines["optimizer.momentum"].endswith(" recipe hot, base of hot_cutmix")
    assert lines["algorithms.sam.interval"].endswith(" recipe hot, base of hot_cutmix")


def test_ls_and_plan_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ls", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["optimizer"] == options("optimizer")
    mild = next(row for row in listed["recipes"] if row["name"] == "mild")
    assert (mild["epochs"], mild["published"][0]["top1"]) == ([1, 59], 76.6)
    assert cli.main(["ls", "schedule", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == ["schedule"]
    assert cli.main(["plan", "recipe=mild", "epochs=36", "batch_size=1024", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["total_steps"], plan["steps_per_epoch"], plan["peak_lr"]) == (45036, 1251, 1.024)
    assert [row["image_size"] for row in plan["timetable"]][:: len(plan["timetable"]) - 1] == [88, 176]
    assert plan["order"]["after_step"] == ["ema"]
    assert any("scaled to 1.024" in note for note in plan["notes"])


def test_plan_shows_a_schedule_of_whole_epochs_and_the_published_sides(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "recipe=nvidia_v1_5"]) == 0
    shown = capsys.readouterr().out
    assert "2.048 after 5,000 steps of warmup, then cosine, by whole epochs" in shown
    assert "0.25600" in shown  # 2.048 / 8 in the first epoch
    assert cli.main(["plan", "recipe=hot", "fidelity=published", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert [row["image_size"] for row in plan["timetable"]][:: len(plan["timetable"]) - 1] == [98, 167]
    names = plan["order"]["change_batch"]
    assert names.index("colout") == names.index("progressive_resizing") + 1


def test_options_may_stand_between_the_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "recipe=mild", "--json", "epochs=20"]) == 0
    assert json.loads(capsys.readouterr().out)["epochs"] == 20


@pytest.mark.parametrize(("given", "taken"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_waiting_threads_sleep_unless_the_user_says_otherwise(
    given: str | None, taken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", given or "")
    if given is None:
        monkeypatch.delenv("OMP_WAIT_POLICY")
    assert cli.main(["ls", "fidelity"]) in (0, 2)
    assert os.environ["OMP_WAIT_POLICY"] == taken


@pytest.mark.parametrize("module", ["launcher.cli.main", "launcher.cli.plan", "launcher.plan.checks"])
@pytest.mark.parametrize(("asked", "code"), [(signal.SIGINT, 130), (signal.SIGUSR1, 143), (signal.SIGTERM, 143)])
def test_a_stop_signal_in_the_first_moments_ends_with_a_line(module: str, asked: signal.Signals, code: int) -> None:
    interrupts = f"""
import os, runpy, signal, sys
class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), {int(asked)})
sys.meta_path.insert(0, Interrupts())
sys.argv[1:] = ["plan"]
runpy.run_module("launcher", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", interrupts], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", f"stopped by {asked.name}\n")
