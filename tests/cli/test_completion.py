"""Completion of a command line, as a shell requests it through argcomplete."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.cli.main import VERBS
from launcher.config.groups import options


def completed(line: str, folder: Path) -> list[str]:
    """Return the words that complete the end of a line, as bash receives them."""
    output = folder / "output"
    request = {"COMP_LINE": line, "COMP_POINT": str(len(line)), "COMP_TYPE": "9", "_ARGCOMPLETE": "1"}
    shell = {"_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_SHELL": "bash", "_ARGCOMPLETE_STDOUT_FILENAME": str(output)}
    breaks = {"_ARGCOMPLETE_COMP_WORDBREAKS": " \t\n\"'@><=;|&(:"}
    environment = {**os.environ, **request, **shell, **breaks}
    subprocess.run([sys.executable, "-m", "launcher"], cwd=folder, env=environment, check=True)
    return [word.strip() for word in output.read_text().splitlines()]


def test_the_first_word_is_a_verb_a_key_or_a_recipe(tmp_path: Path) -> None:
    assert {*VERBS, "recipe=", "epochs=", "optimizer=", "optimizer.", "algorithms."} <= {*completed("train ", tmp_path)}
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "mine.yaml").touch()
    assert completed("train min", tmp_path) == ["mine"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("train pl", ["plan"]),
        ("train plan recipe=mil", ["mild", "mild_mixup", "mild_mixup_smoothing", "mild_smoothing"]),
        ("train optimizer=", options("optimizer")),
        ("train algorithms.mi", ["algorithms.mixup=", "algorithms.mixup."]),
        ("train algorithms.mixup=", ["on", "off"]),
        ("train plan hot algorithms.sam.batchnorm=o", ["once"]),
        ("train show --o", ["--origin"]),
        ("train ls abl", ["ablations"]),
        ("train completion z", ["zsh"]),
        ("train diff medium_b", ["medium_bce_default", "medium_bce_log_classes"]),
        ("train resume runs/a precision=b", ["bf16"]),
        ("train nonsense", []),
    ],
)
def test_the_last_word_is_completed(line: str, expected: list[str], tmp_path: Path) -> None:
    assert completed(line, tmp_path) == expected
