"""`train eval RUN --csv FILE`: every image with its label, predictions and loss, compared with torchvision's preset."""

import csv
import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch.nn.functional import cross_entropy
from torchvision.transforms._presets import ImageClassification

from launcher.config import resolved
from launcher.config.compose import compose
from launcher.data.unreadable import write_skipped
from launcher.plan.plan import plan_for
from launcher.records.run_folder import RunFolder, checkpoint_name
from launcher.tasks import build_task
from launcher.training import checkpoint
from launcher.weights.evaluated_images import ImageRows
from launcher.weights.trained_model import trained_network
from tests.commands import execute, refused
from tests.images import write_images
from tests.saved_runs import finished

pytestmark = pytest.mark.usefixtures("tiny_networks")


def expected(run: RunFolder, folder: Path) -> dict[str, tuple[float, list[str], list[float]]]:
    """Return loss, classes and probabilities, likeliest first, of each image alone."""
    config = resolved.read(run.config)
    state = checkpoint.load(run.checkpoints / checkpoint_name(0))
    network, _ = trained_network(plan_for(config, 1), state)
    resize = plan_for(config, 1).config.scaled_size(config.image.eval_resize)
    preset, names = ImageClassification(crop_size=32, resize_size=resize), state["classes"]
    rows = {}
    for file in {*folder.glob("*/*.jpg")} - {folder / "dog" / "4.jpg"}:
        with torch.inference_mode():
            logits = network.eval()(preset(Image.open(file).convert("RGB"))[None])
        loss = cross_entropy(logits, torch.tensor([names.index(file.parent.name)])).item()
        values, places = logits[0].softmax(0).sort(descending=True)
        rows[f"{file.parent.name}/{file.name}"] = loss, [names[place] for place in places], values.tolist()
    return rows


def test_every_image_has_its_label_predictions_and_loss(tmp_path: Path) -> None:
    images = write_images(tmp_path / "images", {"train": 6, "val": 5}, size=(40, 40))
    own = ["dataset=image_folder", f"dataset.path={images}", "dataset.native_size=32", "dataset.skip_bad=true"]
    counts = ["dataset.train_samples=null", "dataset.val_samples=null", "batch_size=2", "loss=cross_entropy"]
    run = finished(tmp_path / "runs", *own, *counts)
    (images / "val" / "dog" / "4.jpg").write_bytes(b"none")
    write_skipped(run.skipped, {"train/cat/9.jpg": "not listed here", "val/dog/4.jpg": "truncated"})
    table = tmp_path / "all.csv"
    code, output, errors = execute("eval", str(run.path), "--csv", str(table), "--worst-first", "--json")
    assert (code, errors.splitlines()[-1]) == (0, str(table)), errors
    rows, of_torchvision = [*csv.DictReader(table.open())], expected(run, images / "val")
    assert rows[-1] == dict.fromkeys(rows[0], "") | {"file": "dog/4.jpg", "error": "truncated"}
    losses = [float(row["loss"]) for row in rows[:-1:2]]
    assert losses == sorted(losses, reverse=True)
    assert sum(losses) / 9 == pytest.approx(json.loads(output)["loss"], rel=1e-6)
    assert len(rows) == 2 * 9 + 1
    for first, second in zip(rows[:-1:2], rows[1:-1:2], strict=True):
        loss, classes, probabilities = of_torchvision.pop(first["file"])
        assert [float(row["loss"]) for row in (first, second)] == pytest.approx([loss] * 2, rel=2e-2)
        assert [row["class"] for row in (first, second)] == classes
        assert [float(row["probability"]) for row in (first, second)] == pytest.approx(probabilities, abs=2e-2)
        assert {first["label"], second["label"]} == {first["file"].split("/")[0]}
        assert (first["rank"], second["rank"]) == ("1", "2")
    assert not of_torchvision
    images.rename(tmp_path / "moved")
    words = [f"dataset.path={tmp_path}/moved", "--csv", str(table), "--top", "1"]
    assert execute("eval", str(run.path), *words)[0] == 0
    rows = [*csv.DictReader(table.open())]
    assert [row["file"] for row in rows[:2]] == ["cat/0.jpg", "cat/1.jpg"]
    assert (len(rows), rows[-1]["file"]) == (10, "dog/4.jpg")
    assert rows[-1]["error"].startswith("not a JPEG")


def test_labels_of_several_classes_and_of_numbers_are_those_of_the_table() -> None:
    of_several = build_task(compose(["task=multilabel", "loss=bce", "dataset.classes=3"]).config)
    rows = ImageRows(of_several, ["a", "b", "c"], 5)
    rows.add(torch.zeros(2, 3), torch.tensor([[1.0, 0, 1], [0, 0, 0]]))
    of_numbers = build_task(compose(["task=regression", "loss=mse"]).config, facts={"shift": [10.0], "scale": [2.0]})
    numbers = ImageRows(of_numbers, ["age"], 5)
    numbers.add(torch.tensor([[1.0]]), torch.tensor([[3.0]]))

    class Names:
        place = ""

        def name(self, number: int) -> str:
            return str(number)

    assert [row.label for row in rows.of(Names(), {})] == ["a|c", ""]
    assert [(row.label, row.loss, row.predictions) for row in numbers.of(Names(), {})] == [("16", 4.0, [("age", 12.0)])]


def test_errors_are_one_line(tmp_path: Path) -> None:
    run = str(finished(tmp_path / "runs").path)
    assert "--worst-first is for the file of all images; add --csv FILE" in refused("eval", run, "--worst-first")
    assert "--csv=" in refused("eval", run, "--csv", str(tmp_path / "no" / "a.csv"))
    assert "--top=0: must be at least 1" in refused("eval", run, "--csv", str(tmp_path / "a.csv"), "--top", "0")
