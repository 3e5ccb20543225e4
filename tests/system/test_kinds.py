"""Each kind of run by one list of checks: killed and resumed, trained, evaluated, exported, predicted, looked at."""

import csv
import json
import shutil
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from PIL import Image

import launcher
from launcher.records.metrics import read_metrics
from tests.forked import CARD_LINES, python
from tests.runs import Here, Train, draw_nothing, results, resumed_after_kill, same
from tests.system.kinds import KILLED, LANGUAGES, LIKE, STOPPED, USED, Kind

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], Path]:
    """Return an uninterrupted run of a kind on some ranks."""

    @cache
    def run_of(name: str, ranks: int) -> Path:
        train = Train(tmp_path_factory.mktemp("whole"), before=(draw_nothing,))
        KILLED[name].write(train)
        train(*KILLED[name].words.split(), f"launch.nproc={ranks}", "run_name=whole")
        return train.folder / "runs" / "whole"

    return run_of


ON_RANKS = [(name, 3) for name in KILLED if name not in ("smp", "own_code")]
ON_RANKS += [("jsonl", 1), ("modded", 2), ("colours", 1), ("npy", 2), ("smp", 1), ("own_code", 2)]
ON_RANKS += [(name, ranks) for name in ("lines", "slices") for ranks in (1, 2)]


@pytest.mark.parametrize(("name", "ranks"), ON_RANKS)
def test_a_killed_run_resumes_to_the_same_bits(
    name: str, ranks: int, whole: Callable[[str, int], Path], tmp_path: Path
) -> None:
    random, train, kind = Random(f"{name} {ranks}"), Train(tmp_path, before=(draw_nothing,)), KILLED[name]
    kind.write(train)
    words = [*kind.words.split(), f"launch.nproc={ranks}"]
    run = resumed_after_kill(train, words, random.randrange(1, 9), later=random.uniform(0, 0.2))
    uninterrupted = whole(LIKE.get(name, name), ranks)
    assert same(train.decided(run), train.decided(uninterrupted))
    assert results(run)[-4:] == results(uninterrupted)[-4:]
    assert len({row[6] for row in results(run) if row[0] == "train"}) >= kind.views
    assert train.decided(run)["step"] == (18 if name == "own_code" else 12)


@pytest.mark.parametrize("name", STOPPED)
def test_a_stopped_run_resumes_to_the_same_bits(name: str, here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, whole, stopped = STOPPED[name], here.folder / "runs" / "whole", here.folder / "runs" / "stopped"
    for module in ("nets", "formulas", "typed"):
        # note: those of another case have the same names
        monkeypatch.delitem(sys.modules, module, raising=False)
    kind.write(here)
    here(*kind.words.split(), "run_name=whole")
    here(*kind.words.split(), "run_name=stopped", code=143, stop_after=kind.stop)
    assert kind.stop <= here.state(stopped)["step"] < here.state(whole)["step"]  # type: ignore[operator]
    here("resume", str(stopped))
    assert same(here.decided(whole), here.decided(stopped))
    assert same(here.state(whole)["callbacks"], here.state(stopped)["callbacks"])
    assert results(whole) == results(stopped)
    assert name != "archives" or here.state(whole)["classes"] == ["0", "1"]


def rows_of(train: Train) -> list[dict[str, Any]]:
    return read_metrics(train.folder / "runs" / "run" / "metrics.jsonl")


def files_of(train: Train, kind: Kind) -> list[str]:
    files = sorted(train.folder.glob(kind.files)) if kind.files else []
    return [str(file.relative_to(train.folder)) for file in files] or ["tree r"]


def card_of(train: Train, export: str) -> dict[str, Any]:
    card: dict[str, Any] = json.loads((train.folder / export / "model_card.json").read_text())
    return card


def of_several(train: Train, kind: Kind) -> None:
    """The best export is of the step with the best metric; numbers are plotted."""
    choose, metric = (max, "map") if "map" in kind.by.values() else (min, "mae")
    best = choose((row for row in rows_of(train) if row["kind"] == "eval"), key=lambda row: row["metrics"][metric])
    train("export", "runs/run", "--best", "-o", "best")
    assert card_of(train, "best")["step"] == best["step"]
    if metric == "map":
        return
    assert Image.open(train.folder / "by" / "scatter.png").size > (100, 100)


def of_any_size(train: Train, _: Kind) -> None:
    """Masks have the size of their images, shares are those of their pixels here and in Python; none is overwritten."""
    files = [train.folder / "drawn" / "val" / "images" / "000000.jpg", train.folder / "wide.png"]
    with Image.open(files[0]) as image:
        image.resize((70, 48)).save(files[1])
    paths = [str(file) for file in files]
    ours = train("predict", "runs/run", *paths, "--masks", "masks", "--csv", "--top", "11").stdout
    masks = [Image.open(train.folder / "masks" / f"{file.stem}.png") for file in files]
    assert [(mask.mode, mask.size) for mask in masks] == [("P", (32, 32)), ("P", (70, 48))]
    for folder, more in (("masks", 1), (".", 0)):
        before = files[1].read_bytes()
        refused = train("predict", "runs/run", *paths, "--masks", folder, code=2).stderr
        assert "would overwrite" in refused
        assert refused.count("and 1 more") == more
        assert files[1].read_bytes() == before
    rows = [*csv.DictReader(ours.splitlines())]
    images, model = launcher.predict(train.folder / "runs/run", paths, top=11), launcher.load(train.folder / "export")
    of_arrays = model.predict([np.asarray(Image.open(file)) for file in files], top=11)
    for image, of_array in zip(images, of_arrays, strict=True):
        printed = {row["class"]: float(row["share"]) for row in rows if row["file"] == image.file}
        assert dict(image.classes) == pytest.approx(printed, abs=1e-3)
        assert of_array == image.classes
    shares = {row["class"]: float(row["share"]) for row in rows if row["file"] == paths[0]}
    names = card_of(train, "export")["classes"]
    counts = np.bincount(np.asarray(masks[0]).reshape(-1), minlength=11) / 32**2
    assert shares == pytest.approx({name: counts[n] for n, name in enumerate(names) if counts[n]}, abs=1e-6)


def of_brats(train: Train, kind: Kind) -> None:
    """Masks have the values of the classes, and the loss falls."""
    assert "12 training images" in train("plan", *kind.words.split(), "launch.nproc=1").stdout
    losses = [row["loss"] for row in rows_of(train) if row["kind"] == "epoch"]
    assert losses[-1] < losses[0]
    assert {*np.unique(np.asarray(Image.open(train.folder / "ours" / "12.png")))} <= {0, 1, 2, 4}


def of_folders(train: Train, kind: Kind) -> None:
    """A folder of arrays is its files, and algorithms for 8-bit RGB are refused."""
    ours = train("predict", "export", *files_of(train, kind), "--json").stdout
    assert train("predict", "runs/run", "data/val", "--json").stdout == ours
    words = [*kind.words.split(), "launch.nproc=1", "algorithms.randaugment=on"]
    refused = train(*words, code=2).stderr
    assert refused == train("plan", *words, code=2).stderr
    assert "its operations change colours of 8-bit RGB (algorithms.randaugment=off)" in refused


def of_gpt2(train: Train, kind: Kind) -> None:
    """Only GPT-2 has a config of Hugging Face's."""
    assert (train.folder / "export" / "config.json").exists() == (kind is USED["gpt2"])


WHERE = ("runs/run", "export")
ALSO = {
    **dict.fromkeys(("multilabel", "regression"), of_several),
    **{"figures": of_any_size, "slices": of_brats, "uint16": of_folders, "float32": of_folders},
    **dict.fromkeys(LANGUAGES, of_gpt2),
}


def trained(train: Train, kind: Kind) -> None:
    assert kind.prints in train(*kind.words.split(), "launch.nproc=1", "run_name=run").stdout


def evaluated(train: Train, kind: Kind) -> None:
    """The metrics of other samples are those in the records; metrics by class, in a table, have the mean of all."""
    other = json.loads(train("eval", "runs/run", kind.other, "--json").stdout)
    if rows := [row for row in rows_of(train) if row["kind"] == "test"]:
        assert other["metrics"] == pytest.approx(rows[0]["metrics"])
        assert other["samples"] == rows[0]["samples"]
    if kind.by:
        ours = json.loads(train("eval", "runs/run", "--by-class", "--json", "-o", "by").stdout)
        assert rows or other["metrics"] == pytest.approx(ours["metrics"])
        assert other["metrics"].get("threshold") == ours["metrics"].get("threshold")
        table = [*csv.DictReader(next((train.folder / "by").glob("by_*.csv")).open())]
        assert len(table) == kind.rows
        for column, metric in kind.by.items():
            values = [float(row[column]) for row in table if row[column]]
            assert ours["metrics"][metric] == pytest.approx(sum(values) / len(values))
        assert not kind.gallery or kind.gallery in (train.folder / "by" / "gallery.html").read_text()


def exported(train: Train, kind: Kind) -> None:
    for name, flags in {"export": [], "onnx": ["--onnx"]}.items():
        assert f"on {kind.validation}" in train("export", "runs/run", *flags, "-o", name).stderr
    assert not kind.card or set(card_of(train, "export")["task"]) == kind.card


def predicted(train: Train, kind: Kind) -> None:
    """The run, its export by this project, and its program without it predict the same."""
    files = files_of(train, kind)
    flags = {"numbers": ["--json"], "text": [], "masks": ["--csv", "--top", "11", "--masks"]}[kind.predicts]
    last = [[name] * (kind.predicts == "masks") for name in ("ours", "theirs")]
    ours, theirs = (
        train("predict", where, *files, *flags, *name).stdout for where, name in zip(WHERE, last, strict=True)
    )
    assert ours == theirs
    alone = train.folder / "alone"
    shutil.copytree(train.folder / "onnx", alone)
    if kind.predicts == "text":
        assert python(CARD_LINES, *files, folder=alone).rstrip("\n") == ours.rstrip("\n")
        assert ours.startswith("tree r")
        assert len(ours) > 7
        return
    shutil.copy(train.folder / files[0], alone / ("image.npy" if files[0].endswith(".npy") else "image.jpg"))
    lines = [line.split(maxsplit=1) for line in python(CARD_LINES, folder=alone).splitlines()]
    shown = {name: float(number.rstrip("%")) for number, name in lines}
    if kind.predicts == "masks":
        written = [np.asarray(Image.open(train.folder / name[0] / f"{Path(files[0]).stem}.png")) for name in last]
        assert np.array_equal(*written)
        rows = [row for row in csv.DictReader(ours.splitlines()) if row["file"] == files[0]]
        assert shown == pytest.approx({row["class"]: 100 * float(row["share"]) for row in rows}, abs=1)
        return
    rows = json.loads(ours.splitlines()[0])["classes"]
    expected = dict((r["class"], 100 * r["probability"]) if "class" in r else (r["name"], r["value"]) for r in rows)
    # note: printed with two decimals, of pixels that Pillow rounds otherwise
    assert shown == pytest.approx(expected, rel=1e-3, abs=0.02)


def looked_at(train: Train, kind: Kind) -> None:
    if kind.predicts != "text":
        train("look", *kind.words.split(), "launch.nproc=1", "-o", "look.html")


CHECKS = [trained, evaluated, exported, predicted, looked_at]


@pytest.mark.parametrize("name", USED)
def test_a_run_is_evaluated_exported_and_used_without_this_project(name: str, tmp_path: Path) -> None:
    train = Train(tmp_path, before=(draw_nothing,))
    USED[name].write(train)
    for check in (*CHECKS, *([ALSO[name]] if name in ALSO else [])):
        check(train, USED[name])
