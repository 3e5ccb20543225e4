"""Help texts and lists: every example is a command that works."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.cli import main as cli
from launcher.config.groups import options
from tests.commands import output_of, refused
from tests.examples import HELP, train


@pytest.mark.parametrize("line", HELP)
def test_examples_work(line: str) -> None:
    program, *words = shlex.split(line.partition(" | ")[0])
    assert program == "train"
    train(words)


@pytest.mark.parametrize("verb", cli.VERBS)
def test_each_verbs_help_ends_with_its_examples(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main([verb, "--help"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out.rstrip().endswith(cli.module_of(verb).EXAMPLES[-1])


def test_train_alone_explains_itself_and_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert output_of() == output_of("--help")
    assert not [*tmp_path.iterdir()]


def test_plan_and_show_print_the_values_of_the_command_line() -> None:
    shown = output_of("plan", "recipe=mild", "epochs=36", "batch_size=1024")
    assert "36 epochs x 1,251 steps = 45,036 steps" in shown
    assert "it is scaled to 1.024" in shown
    assert "blurpool" in shown
    lines = {line.split()[0]: line for line in output_of("show", "recipe=mild", "epochs=40", "--origin").splitlines()}
    assert lines["epochs=40"].endswith("command line")
    assert lines["optimizer.momentum=0.875"].endswith("recipe mild")
    assert lines["deterministic=false"].endswith("defaults")


def test_ls_shows_every_recipe_and_refuses_unknown_sections() -> None:
    shown = output_of("ls")
    assert all(name in shown for name in ("mild", "medium", "hot", "baseline", "timm_a3", "ffcv_rn50", "decoupled_sgd"))
    assert "did you mean algorithms?" in refused("ls", "algoritms")


def test_ls_describes_each_algorithm() -> None:
    rows = dict(line.split(maxsplit=1) for line in output_of("ls", "algorithms").splitlines()[1:])
    assert sorted(rows) == options("algorithms")
    assert all(about == f"{about[0].upper()}{about[1:].rstrip('. ')}." for about in map(str.rstrip, rows.values()))


def test_ls_and_plan_can_print_json() -> None:
    listed = json.loads(output_of("ls", "--json"))
    assert listed["optimizer"] == options("optimizer")
    mild = next(row for row in listed["recipes"] if row["name"] == "mild")
    assert (mild["epochs"], mild["published"][0]["top1"]) == ([1, 59], 76.6)
    assert re.search(r"gpt2_125m_mosaic .* perplexity 24.11 at 1 ep +270 +p4d", output_of("ls", "recipes"))
    assert list(json.loads(output_of("ls", "schedule", "--json"))) == ["schedule"]
    plan = json.loads(output_of("plan", "recipe=mild", "epochs=36", "batch_size=1024", "--json"))
    assert (plan["total_steps"], plan["steps_per_epoch"], plan["peak_lr"]) == (45036, 1251, 1.024)
    assert [row["view"] for row in plan["timetable"]][:: len(plan["timetable"]) - 1] == [88, 176]
    assert plan["order"]["after_step"] == ["ema"]
    assert any("scaled to 1.024" in note for note in plan["notes"])


def test_plan_shows_a_schedule_of_whole_epochs_and_the_published_sizes() -> None:
    shown = output_of("plan", "recipe=nvidia_v1_5")
    assert re.search("published +top-1 77.12 % after 90 epochs on 8x A100 80GB", shown)
    assert "top-1 78.43 % after 250 epochs" in output_of("plan", "recipe=nvidia_v1_5", "epochs=250")
    assert "published" not in output_of("plan", "recipe=nvidia_v1_5", "dataset=shapes", "batch_size=64")
    plan = output_of("plan", "recipe=gpt2_125m_mosaic")
    assert re.search("published +perplexity 24.11 after 1 epoch in 270 min on p4d.24xlarge", plan)
    assert "2.048 after 5,000 steps of warmup, then cosine, by whole epochs" in shown
    assert "0.25600" in shown  # 2.048 / 8 in the first epoch
    plan = json.loads(output_of("plan", "recipe=hot", "fidelity=published", "--json"))
    names = plan["order"]["change_batch"]
    assert names.index("colout") == names.index("progressive_resizing") + 1


@pytest.mark.parametrize(
    ("name", "typed", "expected"),
    [
        ("OMP_WAIT_POLICY", None, "passive"),
        ("OMP_WAIT_POLICY", "ACTIVE", "ACTIVE"),
        ("TORCH_CPP_LOG_LEVEL", None, "FATAL"),
    ],
)
def test_idle_threads_sleep_and_stack_frames_of_torch_are_not_printed_unless_the_user_sets_others(
    name: str, typed: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, typed or "")
    if typed is None:
        monkeypatch.delenv(name)
    assert cli.main(["ls", "recipes"]) == 0
    assert os.environ[name] == expected


@pytest.mark.slow
@pytest.mark.parametrize("module", ["launcher.cli.main", "launcher.cli.plan", "launcher.plan.checks"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGUSR1, 143), (signal.SIGTERM, 143)])
def test_a_stop_signal_during_imports_ends_with_one_line(module: str, number: signal.Signals, code: int) -> None:
    interrupts = f"""
import os, runpy, signal, sys
class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), {int(number)})
sys.meta_path.insert(0, Interrupts())
sys.argv[1:] = ["plan"]
runpy.run_module("launcher", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", interrupts], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", f"stopped by {number.name}\n")


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("image.scale", ["list of 2 numbers, at least 0, at most 1", "[0.08, 1.0]", "smallest and largest"]),
        ("image", ["image.reference", "image.eval_views"]),
        ("optimizer=sgd", ["optimizer.nesterov", "true or false"]),
        ("mixup", ["algorithms.mixup=on", "Blends each image", "algorithms.mixup.alpha"]),
        ("channels_last", ["algorithms.channels_last=on", "channels-last order"]),
        ("imgsz", ["image.train_size"]),
        ("lr", ["optimizer.lr", "decoupled_sgd", "2.048"]),
        ("crop", ["image.train_size", "of the crops", "image.eval_size"]),
        ("submit", ["usage: train submit", "--slurm", "submit.partition", "--kubernetes", "submit.namespace"]),
        ("plan", ["usage: train plan"]),
    ],
)
def test_help_prints_the_usage_of_a_verb_and_the_keys_of_a_word(word: str, expected: list[str]) -> None:
    shown = output_of("help", word)
    assert all(text in shown for text in expected), shown


@pytest.mark.parametrize(
    ("word", "remedy"),
    [
        ("plann", "did you mean train help plan?"),
        ("imag.scale", "did you mean train help image.scale?"),
        ("hotter", "is a recipe; type train plan recipe=hotter"),
        ("zzzqqq", "no such verb or key; `train --help` lists the verbs"),
    ],
)
def test_help_refuses_a_word_that_means_nothing(word: str, remedy: str) -> None:
    assert remedy in refused("help", word)


def test_help_agents_prints_the_page_for_agents_with_whole_addresses() -> None:
    shown = output_of("help", "agents")
    assert shown.startswith("# For agents and scripts")
    assert "](docs/" not in shown
    assert "/docs/configuration.md#exit-codes)" in shown
