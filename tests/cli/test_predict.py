"""`train predict` on images, on other files, and with invalid weights."""

import csv
import io
import json
import os
import pickle
import shutil
import sys
from pathlib import Path

import numpy as np
import PIL
import pytest
import torch
from PIL import Image, ImageOps

from launcher.cli.main import main
from launcher.config import resolved
from launcher.console import csv_cell
from launcher.plan.plan import plan_for
from launcher.records.run_folder import RunFolder
from launcher.weights import trained_model as predict_module
from launcher.weights.card import network_changes
from launcher.weights.export_files import write_weights
from launcher.weights.trained_model import model_card
from tests.commands import execute, output_of, refused
from tests.saved_runs import finished, network_of, prepared, state_of

pytestmark = pytest.mark.usefixtures("tiny_networks")

# note: torch resizes to Pillow-SIMD's pixels, plain Pillow rounds differently
ROUNDING = 1e-5 if ".post" in PIL.__version__ else 1e-3


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return finished(tmp_path / "runs", "loss=cross_entropy")


@pytest.fixture
def export(run: RunFolder, tmp_path: Path) -> Path:
    """Return an export of the run, without its check, which needs torchvision's own networks."""
    config, state = resolved.read(run.config), state_of(run)
    assert list(network_changes(config)) == ["blurpool"]
    folder = tmp_path / "export"
    folder.mkdir()
    write_weights(state["weights"], folder, model_card(plan_for(config, 1), state, None))
    return folder


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Five images at three depths, one with a rotation in its EXIF data, and two files that are no images."""
    random = np.random.default_rng(3)
    folder = tmp_path / "images"
    (folder / "b" / "deep").mkdir(parents=True)
    names = ["a.png", "c.jpg", "b/d.PNG", "b/deep/e.webp", "b/deep/f.png"]
    for name, shape in zip(names, [(50, 40, 3), (33, 90, 3), (64, 64), (40, 41, 3), (200, 35, 4)], strict=True):
        image = Image.fromarray(random.integers(0, 256, shape, dtype=np.uint8))
        exif = Image.Exif()
        exif[0x0112] = 6 if name == "c.jpg" else 1
        image.save(folder / name, exif=exif)
    (folder / "broken.jpg").write_bytes((folder / "c.jpg").read_bytes()[:200])
    (folder / "notes.txt").write_text("none")
    return folder


def expected(run: RunFolder, file: Path) -> list[tuple[str, float]]:
    """Return classes and probabilities by torchvision's own preset, one image at a time."""
    with torch.inference_mode():
        scores = network_of(run)(prepared(run, ImageOps.exif_transpose(Image.open(file))))[0].softmax(0)
    names = state_of(run)["classes"]
    return [(names[number], scores[number].item()) for number in scores.argsort(descending=True)]


def predictions(*words: str, code: int = 0) -> list[dict[str, object]]:
    actual, output, errors = execute("predict", *words, "--json")
    assert actual == code, errors
    return [json.loads(line) for line in output.splitlines()]


def close(row: dict[str, object], file: Path, run: RunFolder, top: int = 5) -> bool:
    classes = [(c["class"], c["probability"]) for c in row["classes"]]  # type: ignore[attr-defined]
    best = expected(run, file)[:top]
    assert [name for name, _ in classes] == [name for name, _ in best]
    assert [score for _, score in classes] == pytest.approx([score for _, score in best], abs=ROUNDING)
    return row["file"] == str(file)


@pytest.mark.parametrize("workers", [False, True])
def test_images_are_classified_in_the_order_of_the_command_line(
    run: RunFolder, images: Path, workers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if workers:
        monkeypatch.setattr(predict_module, "_FEW", 0)
        monkeypatch.setattr(predict_module, "_BATCH", 2)
    rows = predictions(str(run.path), f"{images}/b/deep", f"{images}/c.jpg", f"{images}", code=1)
    names = ["b/deep/e.webp", "b/deep/f.png", "c.jpg", "a.png", "b/d.PNG", "b/deep/e.webp", "b/deep/f.png"]
    names += ["broken.jpg", "c.jpg"]
    assert [row["file"] for row in rows] == [f"{images}/{name}" for name in names]
    assert "runcated" in str(rows.pop(7)["error"])
    names.pop(7)
    assert all(close(row, images / name, run) for row, name in zip(rows, names, strict=True))


def test_an_unreadable_file_is_one_error_and_the_others_are_classified(run: RunFolder, images: Path) -> None:
    bad = [f"{images}/{name}" for name in ("broken.jpg", "notes.txt", "missing.jpg", "pipe.jpg")]
    os.mkfifo(bad[3])
    code, output, errors = execute("predict", str(run.path), bad[0], f"{images}/a.png", *bad[1:], "--top", "1")
    assert code == 1
    (best, score) = expected(run, images / "a.png")[0]
    assert output == f"{images}/a.png: {best} {score:.2%}\n"
    *lines, last = errors.splitlines()
    assert [line.split(" cannot be read as an image (")[0] for line in lines] == [f"error: {name}" for name in bad]
    assert last == "error: 4 of 5 files cannot be read"


def test_csv_and_json_have_the_same_values(
    run: RunFolder, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{images}/c.jpg", f"{images}/a.png"]
    (tmp_path / "list").write_text("\n".join(names) + "\n\n")
    rows = predictions(str(run.path), "--list", str(tmp_path / "list"), "--top", "99")
    assert [row["file"] for row in rows] == names
    assert all(close(row, Path(name), run, 10) for row, name in zip(rows, names, strict=True))
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(names)))
    output = output_of("predict", str(run.path), "--list", "-", "--csv", "--top", "99")
    table = csv.DictReader(io.StringIO(output))
    flat = [
        [row["file"], str(rank), c["class"], f"{c['probability']:.6f}"]
        for row in rows
        for rank, c in enumerate(row["classes"], 1)  # type: ignore[arg-type, var-annotated]
    ]
    assert [[row[name] for name in ("file", "rank", "class", "probability")] for row in table] == flat


def test_csv_rows_contain_no_formulas_and_names_as_they_are(
    run: RunFolder, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["=HYPERLINK(1).png", "@a.png", "\x1b[2J.png", os.fsdecode(b"\xff.png"), "9.41\u202fAM \u3000\u200d.png"]
    for name in names:
        shutil.copy(images / "a.png", tmp_path / name)
    monkeypatch.chdir(tmp_path)
    code, output, errors = execute("predict", str(run.path), *names, "--csv", "--top", "1")
    assert (code, errors) == (0, "")
    shown = [row["file"] for row in csv.DictReader(io.StringIO(output))]
    assert shown == ["'=HYPERLINK(1).png", "'@a.png", names[2], r"\udcff.png", names[4]]


def test_each_file_has_a_row_and_others_are_counted(run: RunFolder, images: Path, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    (folder / "deep").mkdir(parents=True)
    shutil.copy(images / "a.png", folder / "deep" / "a.jfif")
    (folder / "b.jpg").write_text("=no image")
    (folder / "notes.txt").touch()
    code, output, errors = execute("predict", str(run.path), str(folder), "--csv", "--top", "1")
    rows = list(csv.DictReader(io.StringIO(output)))
    assert (code, [row["file"] for row in rows]) == (1, [f"{folder}/b.jpg", f"{folder}/deep/a.jfif"])
    assert [(row["rank"], bool(row["class"]), row["error"]) for row in rows][1:] == [("1", True, "")]
    assert rows[0]["error"].startswith("not a JPEG, PNG")
    assert f"note: skipping 1 file without an image extension, such as {folder}/notes.txt\n" in errors
    assert errors.endswith("error: 1 of 2 files cannot be read\n")


def test_numbers_below_zero_are_no_formulas() -> None:
    assert [csv_cell(text) for text in ("-1", "+2.5", "-1+1", "-a")] == ["-1", "+2.5", "'-1+1", "'-a"]


def test_a_list_may_begin_with_a_mark_and_have_any_character_in_its_names(
    run: RunFolder, images: Path, tmp_path: Path
) -> None:
    name = tmp_path / "a\u2028b.png"
    shutil.copy(images / "a.png", name)
    (tmp_path / "list.txt").write_bytes(f"\ufeff{name}\r\n{images}/a.png\r\n".encode())
    rows = predictions(str(run.path), "--list", str(tmp_path / "list.txt"))
    assert [row["file"] for row in rows] == [str(name), f"{images}/a.png"]


@pytest.mark.parametrize("words", [[], ["--csv"]])
def test_names_that_the_terminal_cannot_print_are_escaped(
    words: list[str], run: RunFolder, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(images / "a.png", tmp_path / "\u00e4.png")
    monkeypatch.chdir(tmp_path)
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", terminal)
    assert main(["predict", str(run.path), "\u00e4.png", *words]) == 0
    terminal.flush()
    assert b"\\xe4.png" in terminal.buffer.getvalue()


def test_an_export_predicts_the_same_as_its_run(run: RunFolder, export: Path, images: Path) -> None:
    files = [f"{images}/b", f"{images}/a.png"]
    assert predictions(str(run.path), *files) == predictions(str(export), *files)
    assert predictions(str(export / "model.safetensors"), *files) == predictions(str(export), *files)


def test_a_run_predicts_without_its_training_images(tmp_path: Path, images: Path) -> None:
    run = finished(tmp_path / "runs")
    run.config.write_text(run.config.read_text().replace("path: null", "path: /nowhere/images"))
    (row,) = predictions(str(run.path), f"{images}/a.png", "--top", "10")
    # a sigmoid per class, since the run has trained with binary cross-entropy
    assert sum(c["probability"] for c in row["classes"]) != pytest.approx(1, abs=0.05)  # type: ignore[attr-defined]


def test_errors_are_one_line(run: RunFolder, images: Path, tmp_path: Path) -> None:
    other = run.path.with_name("smoll")
    assert f"is not a run folder: it has no config.yaml; pass one such as {run.path}" in refused(
        "predict", str(other), "a"
    )
    assert "no images; pass files" in refused("predict", str(run.path))
    assert "no such image: a.jpg, b.jpg; pass files" in refused("predict", str(run.path), "a.jpg", "b.jpg")
    assert "contains no images" in refused("predict", str(run.path), str(run.checkpoints))
    assert "--top=0: must be at least 1" in refused("predict", str(run.path), "a.jpg", "--top", "0")
    written = refused("predict", str(run.path), f"{images}/a.png", "--csv", "predicted.csv")
    assert "--csv=predicted.csv: is printed; type --csv > FILE to write it" in written
    assert "--list=/nowhere: cannot be read" in refused("predict", str(run.path), "--list", "/nowhere")
    assert "is a file; pass a run folder" in refused("predict", f"{images}/a.png", f"{images}/a.png")


def test_an_export_without_weights_names_what_to_type(export: Path, images: Path) -> None:
    weights, onnx = export / "model.safetensors", export / "model.onnx"
    shutil.copy(weights, other := export / "other.safetensors")
    assert "other.safetensors is a file; pass a run folder" in refused("predict", str(other), f"{images}/a.png")
    weights.rename(onnx)
    line = f"{export} has no model.safetensors; type train export RUN to write it, or run the lines of an ONNX"
    assert line in refused("predict", str(export), f"{images}/a.png")
    assert line in refused("predict", str(onnx), f"{images}/a.png")
    (export / "model_card.json").unlink()
    assert line in refused("predict", str(export), f"{images}/a.png")


class Executed:
    """An object that creates a folder when it is unpickled."""

    def __init__(self, path: Path):
        self._path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self._path),)


def test_invalid_weights_are_one_error_and_never_executed(
    run: RunFolder, export: Path, images: Path, tmp_path: Path
) -> None:
    def error() -> str:
        return refused("predict", str(export), f"{images}/a.png")

    weights, card, trap = export / "model.safetensors", export / "model_card.json", tmp_path / "executed"
    (export / "model.py").write_text(f"import os; os.mkdir({str(trap)!r})")
    valid, card_values = weights.read_bytes(), json.loads(card.read_text())
    for content in (b"", b"no weights", valid[:5000], pickle.dumps(Executed(trap)), b"\xff" * 64):
        weights.write_bytes(content)
        assert "model.safetensors is not a complete safetensors file" in error()
    weights.write_bytes(valid)
    torch.save({"format": 1, "state": Executed(trap)}, weights)
    assert "is not a complete safetensors file" in error()
    weights.write_bytes(valid)
    config, two = card_values["config"], {"classes": ["a", "b"]}
    changes = {
        "does not list the classes of its config": two,
        "does not match this run": two | {"config": config | {"dataset": config["dataset"] | {"classes": 2}}},
        "does not belong to the network in model_card.json": {"config": config | {"algorithms": {}}},
        "has no valid config": {"config": config | {"model": {"name": "../model"}}},
    }
    for reason, values in changes.items():
        card.write_text(json.dumps(card_values | values))
        assert reason in error()
    for text in ("{", "[]", "\x00"):
        card.write_text(text)
        assert "model_card.json" in error()
    card.unlink()
    assert "model_card.json is missing" in refused("predict", str(weights), f"{images}/a.png")
    assert not trap.exists()


def test_flags_of_language_models_are_refused(run: RunFolder, images: Path) -> None:
    for words in (["--tokens", "3"], ["--temperature", "0.5"], ["--top-k", "2"], ["--seed", "1"]):
        error = refused("predict", str(run.path), str(images), *words)
        assert error == f"error: {words[0]} is for task=language, and {run.path} has task=classification; remove it\n"
