"""`train calibrate RUN`: what it writes, and how predictions, evaluations and exports use it."""

import csv
import json
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy
from torchmetrics.functional.classification import binary_f1_score

from launcher.data.figures import draw_figure
from launcher.records.run_folder import RunFolder, checkpoint_name
from launcher.training import checkpoint
from tests.commands import execute, output_of, refused
from tests.saved_runs import finished

pytestmark = [pytest.mark.usefixtures("tiny_networks", "forked_checks"), pytest.mark.slow]


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return finished(tmp_path / "runs", "loss=cross_entropy")


@pytest.fixture
def image(tmp_path: Path) -> str:
    draw_figure("star", 40, "other", 0).save(tmp_path / "a.png")
    return str(tmp_path / "a.png")


def probabilities(*words: str) -> list[float]:
    rows = json.loads(output_of("predict", *words, "--top", "10", "--json"))["classes"]
    return [row["probability"] for row in sorted(rows, key=lambda row: row["class"])]


def logits_of(run: RunFolder, table: Path) -> tuple[torch.Tensor, torch.Tensor, list[str]]:
    """Return the logarithms of the probabilities of all validation images, which are logits, and their classes."""
    output_of("eval", str(run.path), "--csv", str(table), "--top", "10")
    rows = [*csv.DictReader(table.open())]
    names = sorted({row["class"] for row in rows})
    scores = {(row["file"], row["class"]): float(row["probability"]) for row in rows}
    labels = {row["file"]: row["label"] for row in rows}
    logits = torch.tensor([[scores[file, name] for name in names] for file in labels], dtype=torch.float64).log()
    return logits, torch.tensor([names.index(label) for label in labels.values()]), names


def test_predictions_evaluations_and_exports_use_the_temperature(run: RunFolder, image: str, tmp_path: Path) -> None:
    path, table = str(run.path), tmp_path / "all.csv"
    before, plain = json.loads(output_of("eval", path, "--json")), probabilities(path, image)
    output_of("export", path, "-o", str(tmp_path / "plain"))
    logits, targets, _ = logits_of(run, table)
    code, output, errors = execute("calibrate", path, "--json")
    assert code == 0, errors
    fitted = json.loads(output)
    temperature = fitted["temperature"]
    grid = torch.logspace(-2, 2, 4001, dtype=torch.float64)
    losses = torch.stack([cross_entropy(logits / one, targets) for one in grid])
    assert temperature == pytest.approx(grid[losses.argmin()].item(), rel=5e-3)
    assert (fitted["step"], fitted["samples"], fitted["before"]["ece"]) == (0, 20, pytest.approx(before["ece"]))

    code, output, errors = execute("eval", path, "--json")
    after = json.loads(output)
    assert f"note: calibrated: predictions divide the logits by {temperature:.4g}" in errors
    assert after["metrics"] == before["metrics"]
    assert (after["loss"], after["ece"]) == (pytest.approx(losses.min().item(), rel=1e-4), fitted["after"]["ece"])
    expected = (torch.tensor(plain, dtype=torch.float64).log() / temperature).softmax(0)
    assert probabilities(path, image) == pytest.approx(expected.tolist(), rel=1e-5)
    assert "note: calibrated" in execute("predict", path, image)[2]

    export = tmp_path / "export"
    assert "note: calibrated" in execute("export", path, "-o", str(export))[2]
    assert probabilities(str(export), image) == pytest.approx(expected.tolist(), rel=1e-5)
    card = json.loads((export / "model_card.json").read_text())
    assert card["task"] == {"temperature": temperature}
    assert "divides them by `temperature`" in card["note"]
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (export, tmp_path / "plain"))
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())
    run.calibration.unlink()
    assert json.loads(output_of("eval", path, "--json")) == before
    assert probabilities(path, image) == plain


def test_an_onnx_file_divides_by_the_temperature(run: RunFolder, tmp_path: Path) -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    # note: export compares the logits of model.py with those of the calibrated run
    run.calibration.write_text('{"step": 0, "temperature": 50.0}')
    output_of("export", str(run.path), "--onnx", "-o", str(tmp_path / "onnx"))
    assert "temperature" in (tmp_path / "onnx" / "model_card.json").read_text()


def test_a_reliability_picture_is_beside_the_confusion_matrix(run: RunFolder) -> None:
    code, output, errors = execute("eval", str(run.path), "--by-class")
    assert code == 0
    assert str(run.path / "reliability.png") in errors
    assert "  ECE " in output.splitlines()[0]
    assert Image.open(run.path / "reliability.png").format == "PNG"


def test_a_temperature_of_another_step_is_not_used(run: RunFolder, image: str) -> None:
    path = str(run.path)
    plain = probabilities(path, image)
    run.calibration.write_text('{"step": 8, "temperature": 2.0}')
    code, _, errors = execute("predict", path, image)
    assert code == 0
    assert f"note: not calibrated: {run.calibration} is of step 8, and these weights of step 0" in errors
    assert probabilities(path, image) == plain
    for damaged in ("", "[1]", '{"step": 0, "temperature": -1}', '{"step": 0, "temperature": NaN}'):
        run.calibration.write_text(damaged)
        assert "calibration.json cannot be read; remove it, or type train calibrate" in refused("predict", path, image)
    assert execute("calibrate", path)[0] == 0
    assert execute("predict", path, image)[0] == 0


def test_predictions_below_the_confidence_of_a_precision_have_no_class(run: RunFolder, tmp_path: Path) -> None:
    path, table = str(run.path), tmp_path / "images.csv"
    logits, targets, _ = logits_of(run, table)
    temperature = json.loads(output_of("calibrate", path, "--json"))["temperature"]
    best, classes = (logits / temperature).softmax(1).max(1)
    # note: the precision of the two most confident images and of all images more confident than any other
    order = best.argsort(descending=True)
    hits = (classes == targets)[order].double()
    precisions = hits.cumsum(0) / torch.arange(1, 21)
    wanted = precisions.max().item()
    fitted = json.loads(output_of("calibrate", path, "--json", "--precision", f"{wanted:.9f}"[:-1]))
    count = int((precisions >= wanted - 1e-6).nonzero().max()) + 1
    assert (fitted["precision"], fitted["coverage"]) == (pytest.approx(wanted), pytest.approx(count / 20))
    assert best[order[count - 1]] > fitted["confidence"] > best[order[count]]
    files = [tmp_path / f"{number}.png" for number in range(20)]
    for number, file in enumerate(files):
        draw_figure("star", 40, "other", number).save(file)
    rows = [json.loads(line) for line in output_of("predict", path, *map(str, files), "--json").splitlines()]
    run.calibration.write_text(json.dumps({"step": 0, "temperature": temperature}))
    plain = [json.loads(line) for line in output_of("predict", path, *map(str, files), "--json").splitlines()]
    for one, other in zip(rows, plain, strict=True):
        is_sure = other["classes"][0]["probability"] >= fitted["confidence"]
        assert one["classes"] == (other["classes"] if is_sure else [])
    least = sum(sorted(row["classes"][0]["probability"] for row in plain)[9:11]) / 2
    run.calibration.write_text(json.dumps({"step": 0, "temperature": temperature, "confidence": least}))
    output_of("export", path, "-o", str(tmp_path / "export"))
    for command in (path, str(tmp_path / "export")):
        lines = output_of("predict", command, *map(str, files)).splitlines()
        assert sum(line.endswith(": no class") for line in lines) == 10
    predicted = runpy.run_path(str(tmp_path / "export" / "model.py"))["predicted"]
    assert predicted(np.array([0.1] * 9 + [least + 1e-6])) == [9, 0, 1, 2, 3]
    assert predicted(np.array([0.0] * 9 + [least - 1e-6])) == []
    assert "must be above 0 and at most 1" in refused("calibrate", path, "--precision", "1.5")
    if wanted < 1:
        assert "no confidence has this precision on 20 validation images" in refused(
            "calibrate", path, "--precision", "1"
        )


def test_each_of_several_classes_has_the_threshold_of_its_best_f1_or_of_a_precision(tmp_path: Path) -> None:
    run = finished(tmp_path / "runs", "dataset=scenes", "task=multilabel", "loss=bce", f"dataset.path={tmp_path}/drawn")
    path, table = str(run.path), tmp_path / "images.csv"
    before = json.loads(output_of("eval", path, "--json"))["metrics"]
    fitted = json.loads(output_of("calibrate", path, "--json"))
    assert fitted["before"]["f1"] == pytest.approx(before["f1"])
    run.calibration.write_text(json.dumps({"step": 0, "threshold": [1e-9] * 10}))
    output_of("eval", path, "--csv", str(table))
    rows = [*csv.DictReader(table.open())]
    names = sorted({row["class"] for row in rows})
    labels = {row["file"]: row["label"].split("|") for row in rows}
    for name, threshold in zip(names, fitted["threshold"], strict=True):
        scores = torch.tensor([float(row["probability"]) for row in rows if row["class"] == name])
        truth = torch.tensor([name in labels[row["file"]] for row in rows if row["class"] == name])
        of_all = [binary_f1_score((scores >= one).int(), truth.int()).item() for one in (*scores.tolist(), threshold)]
        assert of_all[-1] == pytest.approx(max(of_all)), name
    output_of("calibrate", path)
    _, output, errors = execute("eval", path, "--json", "--by-class", "-o", str(tmp_path / "by"))
    after = json.loads(output)
    assert "each class is predicted from a threshold of its own on" in errors
    assert (after["metrics"]["map"], after["metrics"]["f1"]) == (before["map"], pytest.approx(fitted["after"]["f1"]))
    assert after["threshold"] == fitted["threshold"]
    of_classes = [row["f1"] for row in after["by_class"] if row["images"]]
    assert fitted["after"]["macro_f1"] == pytest.approx(sum(of_classes) / len(of_classes))
    assert fitted["after"]["macro_f1"] > fitted["before"]["macro_f1"]

    precise = json.loads(output_of("calibrate", path, "--precision", "0.9", "--json"))
    for row in json.loads(output_of("eval", path, "--json", "--by-class", "-o", str(tmp_path / "by")))["by_class"]:
        if row["images"]:
            assert (row["precision"] is None) == (row["name"] in precise["without"])
            assert row["precision"] is None or row["precision"] >= 0.9
    image = str(next((tmp_path / "drawn").rglob("*.jpg"), None) or next((tmp_path / "drawn").rglob("*.png")))
    thresholds = [0.5 if number % 2 else 1e-3 for number in range(10)]
    run.calibration.write_text(json.dumps({"step": 0, "threshold": thresholds}))
    output_of("export", path, "-o", str(tmp_path / "export"))
    expected = output_of("predict", path, image, "--json")
    assert output_of("predict", str(tmp_path / "export"), image, "--json") == expected
    predicted = runpy.run_path(str(tmp_path / "export" / "model.py"))["predicted"]
    assert predicted(np.array([0.4, 0.45, 0.6, 0.7] + [1e-4] * 6)) == [3, 2, 0]


def test_what_cannot_be_calibrated_is_refused(run: RunFolder) -> None:
    state = checkpoint.load(run.checkpoints / checkpoint_name(0))
    (run.checkpoints / checkpoint_name(0)).unlink()
    state["weights"]["fc.weight"].zero_()
    state["weights"]["fc.bias"].zero_()
    checkpoint.save(state, run.checkpoints / checkpoint_name(0))
    message = "no temperature between 0.01 and 100 minimizes the loss of 20 images"
    assert message in refused("calibrate", str(run.path))
    assert not run.calibration.exists()
    assert "did you mean train calibrate" in refused("calibration", str(run.path))
