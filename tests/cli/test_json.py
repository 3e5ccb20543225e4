"""Each verb with `--json` prints one JSON document alone on standard output, with the fields that the page lists."""

import json
import re
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from launcher.cli import main as cli
from tests.commands import execute
from tests.docs.pages import ROOT
from tests.grids import train_by
from tests.images import write_images
from tests.runs import SHAPES, SMALL, Here

_PAGE = (ROOT / "docs" / "configuration.md").read_text().partition("## Output for programs")[2].partition("\n## ")[0]
_ROW = r"^\| %s`train ([^`|]+)` \| (.+) \|$"
# Fields of a document by its command, and of what is in it, as the page has them.
FIELDS = {row[1]: set(re.findall(r"`(\w+)`", row[2])) for row in re.finditer(_ROW % "", _PAGE, re.M)}
INSIDE = {
    (row[2], row[1]): set(re.findall(r"`(\w+)`", row[3])) for row in re.finditer(_ROW % r"`(\w+)` of ", _PAGE, re.M)
}
# What to type for each command of the page, in a folder with the run `runs/a`.
TYPED = {
    "KEY=VALUE ...": [*SMALL, "run_name=c"],
    "resume RUN": ["resume", "runs/b", "epochs=4"],
    "ls recipes": ["ls", "recipes"],
    "ls hardware": ["ls", "hardware"],
    "ls runs": ["ls", "runs"],
    "show": ["show", "recipe=mild"],
    "plan": ["plan", *SMALL],
    "plan --on MACHINE": ["plan", "recipe=mild", "--on", "p4d_24xlarge"],
    "estimate": ["estimate", *SMALL, "--seconds", "0.1"],
    "diff A B": ["diff", "mild", "hot"],
    "eval RUN": ["eval", "runs/a"],
    "predict RUN IMAGES": ["predict", "runs/a", "images/train/cat/0.jpg"],
    "prepare": ["prepare", "dataset=image_folder", "dataset.path=images", "dataloader.workers=1"],
    "export RUN": ["export", "runs/a"],
    "submit --slurm": ["submit", "--slurm", *SMALL],
    "doctor": ["doctor", *SMALL],
    "help WORD": ["help", "submit"],
    "look": ["look", *SMALL],
    "ablate": ["ablate", "recipe=mild", "algorithms=[ema]", *SHAPES, "--grid"],
    "curve": ["curve", *SMALL, "seed=0", "epochs=1", "runs=grid"],
    "compare RUNS": ["compare", "runs"],
    "report RUNS": ["report", "runs", "-o", "report.html"],
    "export RUN hub:NAME/MODEL": ["export", "runs/a", "hub:me/a", "--dry-run"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Here]:
    path = tmp_path_factory.mktemp("json")
    here = Here(path)
    here.small("a")
    here.small("b")
    write_images(path / "images", {"train": 4, "val": 2}, size=(32, 32))
    yield here
    shutil.rmtree(path)


def test_the_page_lists_every_verb() -> None:
    # note: their own tests read these documents: one serves until it is stopped, one predicts for minutes
    assert set(FIELDS) == {*TYPED, "watch RUN", "plan --budget 25usd"}
    assert {command for command, _ in INSIDE} <= set(FIELDS)
    verbs = {words[0] if words[0] in cli.VERBS else "run" for words in TYPED.values()}
    assert verbs == {*cli.VERBS} - {"completion", "schema", "watch"}
    assert all("--json" in cli.parser_of(verb, cli.module_of(verb))._option_string_actions for verb in verbs)


def _fields(document: Any) -> set[str]:
    return {name for row in document for name in row} if isinstance(document, list) else {*document}


@pytest.mark.parametrize("command", TYPED)
def test_the_output_is_one_document_with_the_fields_of_the_page(
    folder: Here,
    command: str,
    capfd: pytest.CaptureFixture[str],
    tiny_networks: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    train_by(lambda words: 0, monkeypatch)
    done = folder(*TYPED[command], "--json")
    document = json.loads(done.stdout)
    assert _fields(document) == FIELDS[command]
    for (_, name), expected in ((key, fields) for key, fields in INSIDE.items() if key[0] == command and fields):
        assert _fields(document[name]) == expected, name
    # note: programs that the command starts write to the descriptor
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("verb", ["show", "submit --slurm", "look", "curve", "plan", "run"])
def test_an_error_is_one_line_and_no_document(verb: str) -> None:
    code, output, errors = execute(*verb.split(), "epoch=3", "--json")
    assert (code, output, errors.count("\n")) == (2, "", 1)
    assert errors.startswith("error: epoch=3")
