"""Every command that a message of the source suggests is read and composed without an error."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.cli import main as cli
from launcher.config.resolved import continued, read
from tests.commands import execute
from tests.images import write_images
from tests.messages import messages

from .pages import ROOT

COMMAND = re.compile(rf"\btrain (?:{'|'.join(cli.VERBS)})\b[^;,:`)<\n]*")
# The words after the verb, as they stand in the source, and words in their place; an empty text needs none.
FILLED = {
    "compare": "runs",
    "compare ...": "runs",
    "compare runs": "runs",
    "curve": "recipe=mild,hot dataset=shapes epochs=3",
    "diagnose": "recipe=mild dataset=shapes model=resnet18 launch=cpu batch_size=64 --seconds 0.1",
    "diff RUN RUN": "mild hot",
    "doctor": "dataset=shapes",
    "doctor or nvidia-smi": "dataset=shapes",
    "estimate": "recipe=mild dataset=shapes",
    "export": "runs/a --output out",
    "export RUN": "runs/a --output out",
    "help ...": "image.scale",
    "help ...?": "image.scale",
    "ls": "",
    "ls ablations": "ablations",
    "ls hardware": "hardware",
    "ls metrics": "metrics",
    "ls runs takes a metric": "runs",
    "ls runs": "runs",
    "ls runs FOLDER": "runs runs",
    "plan": "dataset.path=images launch=cpu",
    "plan recipe=...": "recipe=hot",
    "prepare": "dataset=image_folder dataset.path=images",
    "prepare again": "dataset=image_folder dataset.path=images",
    "prepare dataloader.folder=FOLDER": "dataset=image_folder dataset.path=images dataloader.folder=ffcv",
    "prepare dataset.path=FOLDER": "dataset.path=images",
    "prepare dataset=...": "dataset=image_folder dataset.path=images",
    "replay ... step=...": "runs/a step=3",
    "resume": "runs/a",
    "resume ...": "runs/a",
    "resume ... ...": "runs/a epochs=4",
    "resume ... from_step=...": "runs/a from_step=3",
    "resume ... from_step=0": "runs/a from_step=0",
    "resume NEW_PATH": "runs/a",
    "resume RUN": "runs/a",
    "show": "",
    "tune space.yaml": "adamw_narrow recipe=mild dataset=shapes --list",
    "speedrun": "track=shapes recipe=small dataset=shapes dataset.native_size=32 launch=cpu",
}
# Those that other tests run: test_calibrate, test_card, test_callbacks, test_budget, test_watch, test_look,
# test_formats, test_segmentation_runs, test_relabel, test_verify.
ELSEWHERE = {
    *(
        "resume ... callbacks....=off",
        "plan ... --on ...",
        "plan --budget 25usd",
        "watch runs/mild-imagenet-1120-1",
        "look",
    ),
    *(
        "speedrun --verify ...",
        "calibrate ...",
        "eval ......",
        "export ...",
        "predict ... ...",
        "predict ... IMAGES",
        "relabel",
        "relabel TEACHER",
        "report ...",
        "eval RUN dataset.path=FOLDER",
    ),
}
# Words that follow a command in a sentence.
PROSE = re.compile(
    r" (?:to write it|for (?:a run|those)|takes a folder|lists all|compares all|counts it|does not count|writes|checks"
    r"|continues|measures).*"
)


class Started(Exception):
    """Raised where a verb would start its work."""


def start(*_: Any, **__: Any) -> Any:
    raise Started


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder with images and a run, where nothing trains or measures."""
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path / "images", {"train": 4, "val": 2})
    shutil.copytree(ROOT / "tests" / "records" / "format1" / "run", tmp_path / "runs" / "a")
    for name in ("launch.start.replay", "measure.launch.measure_steps", "cli.prepare._prepare"):
        monkeypatch.setattr(f"launcher.{name}", start)
    monkeypatch.setattr("launcher_lab.cli.training.Training.run", start)
    monkeypatch.setattr("launcher.weights.export.export_run", start)
    monkeypatch.setattr("launcher.cli.doctor.examine", lambda config, report: [])
    monkeypatch.setattr(
        "launcher.launch.start.resume", lambda run, words, step: continued(read(run.config), words) and start()
    )
    return tmp_path


def suggested() -> Iterator[str]:
    """Yield the verb and the words of each command in a text of the source, but not in examples and docstrings."""
    for _, text in messages():
        for command in COMMAND.findall(text):
            yield PROSE.sub("", command.removeprefix("train ")).strip()


def test_every_suggested_command_is_listed_here() -> None:
    assert {*suggested()} - ELSEWHERE == {*FILLED}


@pytest.mark.parametrize("command", FILLED)
@pytest.mark.usefixtures("folder")
def test_each_suggested_command_works(command: str) -> None:
    words = [command.split()[0], *FILLED[command].split()]
    try:
        code, _, errors = execute(*words)
    except Started:
        return
    assert code == 0, errors
