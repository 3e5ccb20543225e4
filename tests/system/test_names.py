"""Names of files, classes and runs that contain escape sequences, in all output of the command."""

import io
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from tests import commands
from tests.runs import SMALL, Here

# sets the title of the terminal, its colour, and the direction of text
HOSTILE = "a\x1b]0;owned\x07\x1b[31mred\u202eb"
SHOWN = r"a\x1b]0;owned\x07\x1b[31mred\u202eb"


pytestmark = pytest.mark.filterwarnings("ignore:Glyph")  # of the figure of confusions


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def run(here: Here, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Train on a terminal without colours on images, and in a run folder, of hostile names."""
    monkeypatch.setattr(commands, "io", SimpleNamespace(StringIO=Terminal))
    here.environment |= {"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "200"}
    data = here.folder / f"data{HOSTILE}"
    for split in ("train", "val"):
        for name in (HOSTILE, "b"):
            (data / split / name).mkdir(parents=True)
            for number in range(8):
                Image.new("RGB", (32, 32), (number * 30, 9, 9)).save(data / split / name / f"{HOSTILE}{number}.png")
    (data / "train" / "b" / f"{HOSTILE}.jpg").write_bytes(b"no image")
    small = [word for word in SMALL if not word.startswith(("dataset", "epochs", "batch_size", "schedule"))]
    words = [f"dataset.path={data}", "dataset=image_folder", "dataset.skip_bad=true", "epochs=1", "batch_size=8"]
    words.append("schedule.warmup=1ba")
    done = here(*small, *words, "run_name=first")
    check(done.stdout + done.stderr, shows=False)
    check(here("plan", *small, *words).stdout, shows=False)
    return Path(shutil.move(here.folder / "runs" / "first", here.folder / "runs" / HOSTILE))


def check(text: str, *, shows: bool = True) -> None:
    assert not {one for one in text if not one.isprintable()} - {"\n"}
    assert not shows or SHOWN in text


def test_escape_sequences_in_names_do_not_reach_the_terminal_but_programs_get_them(here: Here, run: Path) -> None:
    runs, image = str(run.parent), str(next((here.folder / f"data{HOSTILE}").rglob("*0.png")))
    of_run = [["eval", str(run), "--by-class"], ["predict", str(run), image], ["predict", str(run), image, "--csv"]]
    for words in (["ls", "runs", runs], *of_run, ["compare", runs], ["resume", str(run)]):
        done = here(*words)
        check(done.stdout + done.stderr, shows=words[0] != "compare")
    data = f"dataset.path={here.folder / f'data{HOSTILE}'}"
    doctor = here("doctor", data, "dataset=image_folder", "launch=cpu", code=2)
    check(doctor.stdout + doctor.stderr)
    for words in ([HOSTILE], [f"epochs={HOSTILE}"], [f"dataset.path={HOSTILE}", "dataset=imagenet", "recipe=none"]):
        done = here(*words, code=2)
        assert done.stderr.count("\n") == 1
        check(done.stderr, shows=len(words) == 1)
    assert HOSTILE in next(here.folder.rglob("*.csv")).read_text()
    assert json.loads(here("predict", str(run), image, "--json").stdout)["file"] == image
