"""`train prepare --clean`: what it lists, removes and keeps."""

import fcntl
import json
from pathlib import Path

import pytest

from launcher.config import resolved
from launcher.config.compose import compose
from launcher.data.ffcv.beton import manifest_path
from launcher.launch.files_first import LOCK
from tests.commands import output_of, refused
from tests.images import write_images

from .conftest import words_for, write_files


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return write_images(tmp_path / "images", {"train": 4, "val": 2})


def clean(folder: Path, *words: str, run: str = "max_side=500") -> list[str]:
    """Return the words that clean the files of a folder, where one run reads those of a value."""
    config = compose(words_for(folder, "dataloader=ffcv", f"dataloader.files.{run}")).config
    (folder / "runs" / "one").mkdir(parents=True, exist_ok=True)
    resolved.write(config, folder / "runs" / "one" / "config.yaml")
    return ["prepare", *words_for(folder), f"runs={folder}/runs", "--clean", *words]


def test_files_that_no_run_reads_are_listed_and_removed_on_request(images: Path) -> None:
    read_by_run, others = write_files(images), write_files(images, "dataloader.files.max_side=30")
    parts = [".partial", ".partial.table", ".state.npz", ".stored", ".stored.table"]
    unfinished = [others[0].with_name(f"val-20px-jpeg50-q90.beton{part}") for part in parts]
    own = [images / "ffcv" / name for name in ("mine.beton", "train.beton", "notes.json")]
    for path in (*unfinished, *own):
        path.write_bytes(b"0" * 10)
    unused = {*unfinished, *others, *map(manifest_path, others)}
    before = {*(images / "ffcv").iterdir()}
    output = output_of(*clean(images))
    assert {Path(line.partition(": ")[0]) for line in output.splitlines()[:-1]} == unused
    assert "9 files of" in output
    assert output.endswith("add --yes to remove them\n")
    assert {*(images / "ffcv").iterdir()} == before
    listed = json.loads(output_of(*clean(images, "--yes", "--json")))
    assert (listed["removed"], {Path(one["path"]) for one in listed["files"]}) == (True, unused)
    assert {*(images / "ffcv").iterdir()} == before - unused
    assert {*read_by_run, *map(manifest_path, read_by_run), *own} <= before - unused
    assert "or there are none" in output_of(*clean(images, "--yes"))


@pytest.mark.parametrize("fault", ["unreadable run", "writing process"])
def test_nothing_is_removed_where_a_run_is_unreadable_or_a_process_writes(fault: str, images: Path) -> None:
    files, words = write_files(images), clean(images, "--yes", run="max_side=40")
    with (images / "ffcv" / LOCK).open("a+b") as file:
        if fault == "unreadable run":
            (images / "runs" / "two").mkdir()
            (images / "runs" / "two" / "config.yaml").write_text("{")
        else:
            fcntl.flock(file, fcntl.LOCK_EX)
        assert "nothing is removed" in refused(*words)
    assert all(path.is_file() and manifest_path(path).is_file() for path in files)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--yes"], "--yes=on: confirms --clean"),
        (["--clean", "--check"], "--clean=on: omit it, or --check"),
        (
            ["--clean", "dataloader.train=mine.beton"],
            "dataloader.train=mine.beton: --clean removes files of train prep",
        ),
        (["--clean", "dataloader=tokens", "dataset=text"], "--clean=on: has no meaning for tokens"),
    ],
)
def test_what_cannot_be_cleaned_is_one_line(words: list[str], expected: str, images: Path) -> None:
    assert expected in refused("prepare", *words_for(images)[:2], *words)
