"""`train predict`: what it says of images, and of what are none."""

from __future__ import annotations

import csv
import io
import json
import os
import pickle
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torchvision.transforms._presets import ImageClassification

from launcher.cli.main import main
from launcher.config import resolved
from launcher.data.workers import worker_count
from launcher.plan.plan import plan_for
from launcher.records.folder import RunFolder, checkpoint_name
from launcher.training import checkpoint
from launcher.weights import classifier as predict_module
from launcher.weights.classifier import model_card, trained_network
from launcher.weights.export_files import write_export
from tests.commands import execute, refused
from tests.saved_runs import finished

pytestmark = pytest.mark.usefixtures("tiny_networks")

SIDE = 32


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return finished(tmp_path / "runs", "loss=cross_entropy")


@pytest.fixture
def export(run: RunFolder, tmp_path: Path) -> Path:
    """The run's three files, less the check of them, which needs torchvision's own networks."""
    config = resolved.read(run.config)
    state = checkpoint.load(run.checkpoints / checkpoint_name(0))
    plan = plan_for(config, 1)
    _, surgeries = trained_network(plan, state)
    assert list(surgeries) == ["blurpool"]
    folder = tmp_path / "export"
    folder.mkdir()
    write_export(state["weights"], folder, model_card(plan, state, surgeries, None), surgeries)
    return folder


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Five images at three depths, one lying on its side, and two files that are none."""
    random = np.random.default_rng(3)
    folder = tmp_path / "images"
    (folder / "b" / "deep").mkdir(parents=True)
    names = ["a.png", "c.jpg", "b/d.PNG", "b/deep/e.webp", "b/deep/f.png"]
    for name, shape in zip(names, [(50, 40, 3), (33, 90, 3), (64, 64), (40, 41, 3), (200, 35, 4)], strict=True):
        picture = Image.fromarray(random.integers(0, 256, shape, dtype=np.uint8))
        exif = Image.Exif()
        exif[0x0112] = 6 if name == "c.jpg" else 1
        picture.save(folder / name, exif=exif)
    (folder / "broken.jpg").write_bytes((folder / "c.jpg").read_bytes()[:200])
    (folder / "notes.txt").write_text("none")
    return folder


def expected(run: RunFolder, file: Path) -> list[tuple[str, float]]:
    """By torchvision's own preset, one image at a time."""
    config = resolved.read(run.config)
    plan = plan_for(config, 1)
    state = checkpoint.load(run.checkpoints / checkpoint_name(0))
    network, _ = trained_network(plan, state)
    preset = ImageClassification(crop_size=SIDE, resize_size=plan.scaled_size(config.image.eval_resize))
    with torch.inference_mode():
        image = preset(ImageOps.exif_transpose(Image.open(file)).convert("RGB"))
        scores = network.eval()(image[None])[0].softmax(0)
    best = scores.argsort(descending=True)
    return [(state["classes"][number], scores[number].item()) for number in best]


def answers(*words: str, code: int = 0) -> list[dict[str, object]]:
    found, output, errors = execute("predict", *words, "--json")
    assert found == code, errors
    return [json.loads(line) for line in output.splitlines()]


def close(row: dict[str, object], file: Path, run: RunFolder, top: int = 5) -> bool:
    classes = [(c["class"], c["probability"]) for c in row["classes"]]  # type: ignore[attr-defined]
    wanted = expected(run, file)[:top]
    assert [name for name, _ in classes] == [name for name, _ in wanted]
    assert [score for _, score in classes] == pytest.approx([score for _, score in wanted], abs=1e-5)
    return row["file"] == str(file)


@pytest.mark.parametrize("workers", [False, True])
def test_images_are_classified_by_the_network_in_the_given_order(
    run: RunFolder, pictures: Path, workers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if workers:
        monkeypatch.setattr(predict_module, "_FEW", 0)
        monkeypatch.setattr(predict_module, "_BATCH", 2)
        assert worker_count(predict_module._LOADER, 1) > 0
    rows = answers(str(run.path), f"{pictures}/b/deep", f"{pictures}/c.jpg", f"{pictures}", code=1)
    names = ["b/deep/e.webp", "b/deep/f.png", "c.jpg", "a.png", "broken.jpg", "c.jpg", "b/d.PNG"]
    names += ["b/deep/e.webp", "b/deep/f.png"]
    assert [row["file"] for row in rows] == [f"{pictures}/{name}" for name in names]
    assert "runcated" in str(rows.pop(4)["error"])
    names.pop(4)
    assert all(close(row, pictures / name, run) for row, name in zip(rows, names, strict=True))


def test_an_unreadable_file_is_one_error_and_the_others_are_classified(run: RunFolder, pictures: Path) -> None:
    bad = [f"{pictures}/{name}" for name in ("broken.jpg", "notes.txt", "missing.jpg", "pipe.jpg")]
    os.mkfifo(bad[3])
    code, output, errors = execute("predict", str(run.path), bad[0], f"{pictures}/a.png", *bad[1:], "--top", "1")
    assert code == 1
    (best, score) = expected(run, pictures / "a.png")[0]
    assert output == f"{pictures}/a.png: {best} {score:.2%}\n"
    assert [line.split(" cannot be read as an image (")[0] for line in errors.splitlines()] == [
        f"error: {name}" for name in bad
    ]


def test_csv_and_json_have_the_same_values(
    run: RunFolder, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{pictures}/c.jpg", f"{pictures}/a.png"]
    (tmp_path / "list").write_text("\n".join(names) + "\n\n")
    rows = answers(str(run.path), "--list", str(tmp_path / "list"), "--top", "99")
    assert [row["file"] for row in rows] == names
    assert all(close(row, Path(name), run, 10) for row, name in zip(rows, names, strict=True))
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(names)))
    code, output, _ = execute("predict", str(run.path), "--list", "-", "--csv", "--top", "99")
    assert code == 0
    table = list(csv.DictReader(io.StringIO(output)))
    flat = [
        [row["file"], str(rank), c["class"], f"{c['probability']:.6f}"]
        for row in rows
        for rank, c in enumerate(row["classes"], 1)  # type: ignore[arg-type, var-annotated]
    ]
    assert [[row[name] for name in ("file", "rank", "class", "probability")] for row in table] == flat


def test_csv_rows_contain_no_formulas_and_no_escape_sequences(
    run: RunFolder, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["=HYPERLINK(1).png", "@a.png", "\x1b[2J.png", os.fsdecode(b"\xff.png")]
    for name in names:
        shutil.copy(pictures / "a.png", tmp_path / name)
    monkeypatch.chdir(tmp_path)
    code, output, errors = execute("predict", str(run.path), *names, "--csv", "--top", "1")
    assert (code, errors) == (0, "")
    shown = [row["file"] for row in csv.DictReader(io.StringIO(output))]
    assert shown == ["'=HYPERLINK(1).png", "'@a.png", r"\x1b[2J.png", r"\udcff.png"]


@pytest.mark.parametrize("words", [[], ["--csv"]])
def test_names_that_the_terminal_cannot_print_are_escaped(
    words: list[str], run: RunFolder, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(pictures / "a.png", tmp_path / "\u00e4.png")
    monkeypatch.chdir(tmp_path)
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", terminal)
    assert main(["predict", str(run.path), "\u00e4.png", *words]) == 0
    terminal.flush()
    assert b"\\xe4.png" in terminal.buffer.getvalue()


def test_an_export_predicts_the_same_as_its_run(run: RunFolder, export: Path, pictures: Path) -> None:
    files = [f"{pictures}/b", f"{pictures}/a.png"]
    assert answers(str(run.path), *files) == answers(str(export), *files)
    assert answers(str(export / "model.safetensors"), *files) == answers(str(export), *files)


def test_a_run_predicts_without_its_training_images(tmp_path: Path, pictures: Path) -> None:
    run = finished(tmp_path / "runs")
    run.config.write_text(run.config.read_text().replace("path: null", "path: /nowhere/images"))
    (row,) = answers(str(run.path), f"{pictures}/a.png", "--top", "10")
    # each class alone, since that is what binary cross-entropy has taught
    assert sum(c["probability"] for c in row["classes"]) != pytest.approx(1, abs=0.05)  # type: ignore[attr-defined]


def test_errors_are_one_line(run: RunFolder, pictures: Path, tmp_path: Path) -> None:
    other = run.path.with_name("smoll")
    assert f"is not a run folder: it has no config.yaml; type the path of one; did you mean {run.path}?" in refused(
        "predict", str(other), "a"
    )
    assert "no images; pass files" in refused("predict", str(run.path))
    assert "contains no images" in refused("predict", str(run.path), str(run.checkpoints))
    assert "--top=0: must be at least 1" in refused("predict", str(run.path), "a.jpg", "--top", "0")
    assert "--list=/nowhere: cannot be read" in refused("predict", str(run.path), "--list", "/nowhere")
    assert "is a file; pass a run folder" in refused("predict", f"{pictures}/a.png", f"{pictures}/a.png")


class Executed:
    """Unpickled, it makes a folder."""

    def __init__(self, path: Path):
        self._path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self._path),)


def test_invalid_weights_are_one_error_and_never_executed(
    run: RunFolder, export: Path, pictures: Path, tmp_path: Path
) -> None:
    def answer() -> str:
        return refused("predict", str(export), f"{pictures}/a.png")

    weights, card, trap = export / "model.safetensors", export / "model_card.json", tmp_path / "executed"
    (export / "model.py").write_text(f"import os; os.mkdir({str(trap)!r})")
    kept, said_of_it = weights.read_bytes(), json.loads(card.read_text())
    for content in (b"", b"no weights", kept[:5000], pickle.dumps(Executed(trap)), b"\xff" * 64):
        weights.write_bytes(content)
        assert "model.safetensors is not a complete safetensors file" in answer()
    weights.write_bytes(kept)
    torch.save({"format": 1, "state": Executed(trap)}, weights)
    assert "is not a complete safetensors file" in answer()
    weights.unlink()
    assert "is not a complete safetensors file" in answer()
    weights.write_bytes(kept)
    config, two = said_of_it["config"], {"classes": ["a", "b"]}
    changes = {
        "does not list the classes of its config": two,
        "does not match this run": two | {"config": config | {"dataset": config["dataset"] | {"classes": 2}}},
        "does not belong to the network in model_card.json": {"config": config | {"algorithms": {}}},
        "has no valid config": {"config": config | {"algorithms": {"../model": {}}}},
    }
    for reason, values in changes.items():
        card.write_text(json.dumps(said_of_it | values))
        assert reason in answer()
    for text in ("{", "[]", "\x00"):
        card.write_text(text)
        assert "model_card.json" in answer()
    card.unlink()
    assert "model_card.json is missing" in refused("predict", str(weights), f"{pictures}/a.png")
    assert not trap.exists()


def test_a_checkpoint_with_a_pickle_is_one_error_and_never_executed(
    run: RunFolder, pictures: Path, tmp_path: Path
) -> None:
    trap, file = tmp_path / "executed", run.checkpoints / checkpoint_name(0)
    good = file.read_bytes()
    for content in (good[:9000], b"none", pickle.dumps(Executed(trap))):
        file.write_bytes(content)
        code, _, errors = execute("predict", str(run.path), f"{pictures}/a.png")
        assert (code, errors.count("\n")) == (2, 1)
        assert "has no valid checkpoint" in errors
    assert not trap.exists()
    shutil.rmtree(run.checkpoints)
    assert "has no checkpoint yet" in refused("predict", str(run.path), f"{pictures}/a.png")
