"""`train eval` of other images and by class, and each image with its label, predictions and loss in a CSV file."""

import csv
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import cross_entropy
from torchvision.transforms._presets import ImageClassification
from torchvision.transforms.functional import center_crop, five_crop, resize

from launcher.config import resolved
from launcher.config.compose import compose
from launcher.data.builtin._figures import FIGURES, draw_figure
from launcher.data.identity import identity
from launcher.data.unreadable import write_skipped
from launcher.records.run_folder import RunFolder, checkpoint_name, note_dataset
from launcher.tasks import build_task
from launcher.training import checkpoint
from launcher.weights.evaluated_images import ImageRows
from tests.commands import execute, output_of, refused, values_of
from tests.html import Page
from tests.images import write_images
from tests.saved_runs import finished, network_of, prepared, state_of
from tests.trainers import TASKS

VIEWS = "image.eval_views="
SMALLER = ("image.eval_size=168", "image.eval_flip_average=true")

pytestmark = pytest.mark.usefixtures("tiny_networks")


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return finished(tmp_path / "runs", "loss=cross_entropy")


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Three of the run's ten classes, in another order, and a folder of no class of the run."""
    folder = tmp_path / "other"
    for name, count in {"star": 5, "aaa": 2, "circle": 4, "ring": 3}.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            draw_figure(name if name in FIGURES else "cross", 40, "other", number).save(folder / name / f"{number}.png")
    return folder


def expected(run: RunFolder, folder: Path, *, only_present: bool = False) -> np.ndarray:
    """Return the confusion matrix by torchvision's preset, one image at a time; of a run with ten classes."""
    network, names, counts = network_of(run), state_of(run)["classes"], np.zeros((10, 10), int)
    for file in folder.glob("*/*.png"):
        if file.parent.name in names:
            with torch.inference_mode():
                outputs = network(prepared(run, Image.open(file)))
            classes = [names.index(name) for name in names if (folder / name).is_dir() or not only_present]
            predicted = classes[outputs[0, classes].argmax().item()]
            counts[names.index(file.parent.name), predicted] += 1
    return counts


def test_classes_of_another_folder_are_matched_by_name(run: RunFolder, other: Path, tmp_path: Path) -> None:
    files = ["--by-class", "-o", str(tmp_path / "new" / "classes")]
    code, output, errors = execute("eval", str(run.path), f"dataset.path={other}", *files, "--json")
    assert code == 0, errors
    counts, result = expected(run, other), json.loads(output)
    assert result["confusion"] == counts.tolist()
    assert (result["samples"], result["metrics"]["top1"]) == (12, counts.trace() / 12)
    assert {row["name"]: row["images"] for row in result["by_class"][:3]} == {"star": 5, "circle": 4, "ring": 3}
    assert "note: skipping 1 class that the run does not have: aaa (2 images)" in errors
    assert "note: no images of 7 of the run's 10 classes: arrow, bow_tie, crescent, cross, l_shape" in errors
    assert Image.open(tmp_path / "new" / "classes" / "confusion.png").format == "PNG"
    (other / "val").mkdir()
    for name in ("star", "aaa"):
        (other / name).rename(other / "val" / name)
    assert values_of("eval", str(run.path), f"dataset.path={other}")["samples"] == 5


@pytest.mark.parametrize(("loss", "numbered"), [("cross_entropy", False), ("bce", True)])
def test_predictions_can_be_among_the_classes_of_the_images_alone(
    other: Path, tmp_path: Path, loss: str, numbered: bool
) -> None:
    """As ImageNet-R and -A are scored; also with numbers as names, as ImageNet-v2's, which as texts sort 0, 1, 10."""
    run = finished(tmp_path / "runs", f"loss={loss}")
    restricted, every = expected(run, other, only_present=True), expected(run, other)
    names = state_of(run)["classes"]
    if numbered:
        shutil.rmtree(other / "aaa")
        for name in ("star", "circle", "ring"):
            (other / name).rename(other / str(names.index(name)))
    words = ["eval", str(run.path), f"dataset.path={other}", "--by-class", "-o", str(tmp_path)]
    code, output, errors = execute(*words, "--only-present", "--json")
    assert code == 0, errors
    result = json.loads(output)
    assert result["confusion"] == restricted.tolist() != every.tolist()
    assert result["metrics"]["top1"] == restricted.trace() / 12
    assert np.isfinite(result["loss"])
    assert "note: predictions are among the 3 of 10 classes that the images have" in errors
    assert values_of(*words)["confusion"] == every.tolist()


def test_only_present_is_for_one_class_an_image(tmp_path: Path) -> None:
    run = finished(tmp_path / "runs", *TASKS["multilabel"])
    assert "--only-present is for task=classification, and" in refused("eval", str(run.path), "--only-present")


def test_the_table_by_class_is_printed_and_written_to_files(run: RunFolder) -> None:
    lines = output_of("eval", str(run.path), "--by-class").splitlines()
    assert lines[1] == "20 images on 1 process on the CPU"
    assert lines[2].split() == ["class", "images", "recall", "(top-1)", "precision", "most", "confused", "with"]
    rows = list(csv.DictReader((run.path / "by_class.csv").open()))
    assert [line.split()[0] for line in lines[3:]] == [row["name"] for row in rows]
    assert sum(int(row["images"]) for row in rows) == sum(int(row["predicted"]) for row in rows) == 20
    assert (run.path / "confusion.png").is_file()
    page = Page(run.path / "gallery.html")
    assert page.tags.count("img") == 20
    right = round(sum(float(row["top1"]) * int(row["images"]) for row in rows))
    text = "\n".join(page.texts)
    assert f"{20 - right} of 20 images are predicted as another class" in text
    assert "train/" not in text
    assert sum(file in text for file in ("arrow/000000.jpg", "bow_tie/000001.jpg")) == 2
    recorded = json.loads(run.metrics.read_text().splitlines()[-1])
    right = sum(float(row["top1"]) * int(row["images"]) for row in rows)
    assert right / 20 == pytest.approx(recorded["metrics"]["top1"])


def test_a_class_name_that_is_not_text_has_a_row_in_every_format(run: RunFolder, tmp_path: Path) -> None:
    """So has a name that a spreadsheet would read as a formula."""
    path = run.checkpoints / checkpoint_name(0)
    state = checkpoint.load(path)
    state["classes"][0], state["classes"][1] = os.fsdecode(b"\xff"), "=1+1"
    path.unlink()
    checkpoint.save(state, path)
    (tmp_path / "other" / os.fsdecode(b"\xff")).mkdir(parents=True)
    draw_figure("star", 40, "other", 0).save(tmp_path / "other" / os.fsdecode(b"\xff") / "0.png")
    words = ["eval", str(run.path), f"dataset.path={tmp_path}/other", "--by-class", "-o", str(tmp_path)]
    assert r"\udcff" in output_of(*words)
    page = Page(tmp_path / "gallery.html")
    assert r"\udcff/0.png" in "".join(page.texts)
    (tmp_path / "gallery.html").write_text("my own")
    assert "exists and is no output of this version of train" in refused(*words)
    names = [row["name"] for row in csv.DictReader((tmp_path / "by_class.csv").open())]
    assert names[0] == r"\udcff"
    assert "'=1+1" in names
    (tmp_path / "gallery.html").unlink()
    assert values_of(*words)["classes"][:2] == [os.fsdecode(b"\xff"), "=1+1"]


def test_a_new_evaluation_equals_the_recorded_one(run: RunFolder) -> None:
    recorded = json.loads(run.metrics.read_text().splitlines()[-1])
    result = values_of("eval", str(run.path), "eval_batch_size=256")
    assert result["loss"] == pytest.approx(recorded["loss"], rel=1e-6)
    assert [result[name] for name in ("metrics", "samples")] == [recorded[name] for name in ("metrics", "samples")]


def six_views(images: torch.Tensor) -> list[torch.Tensor]:
    """Return views of images whose mean, with their mirror images, has airbench's weights: twice each image itself."""
    after = [abs(place) for place in range(-1, images.shape[3] - 1)]
    before = [images.shape[3] - 1 - place for place in reversed(after)]
    return [images, images, images[:, :, after][..., after], images[:, :, before][..., before]]


def test_shifted_views_have_the_weights_of_airbench() -> None:
    words = ["image.eval_views=shifts", "image.eval_flip_average=true", "precision=fp32"]
    task, images = build_task(compose(words).config), torch.randn(5, 3, 32, 32)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 10, 5), torch.nn.Tanh(), torch.nn.MaxPool2d(28), torch.nn.Flatten()
    )
    with torch.inference_mode():
        outputs = [network(one) for view in six_views(images) for one in (view, view.flip(3))]
        torch.testing.assert_close(task.forward(network, images), torch.stack(outputs).mean(0))
        half = images.bfloat16()
        assert [view.dtype for view in task.views(half)] == [torch.bfloat16] * 3


@pytest.mark.parametrize("kind", ["5crop", "scales", "shifts"])
def test_views_are_averaged_by_evaluations_predictions_and_exports(kind: str, tmp_path: Path) -> None:
    run = finished(tmp_path / "runs", "loss=cross_entropy", "image.eval_resize=256", *SMALLER)
    draw_figure("star", 60, "other", 0).crop((0, 0, 60, 44)).save(tmp_path / "a.png")
    network, names = network_of(run), state_of(run)["classes"]
    square = ImageClassification(crop_size=36, resize_size=36)(Image.open(tmp_path / "a.png").convert("RGB"))[None]
    crops = five_crop(square, [24, 24])
    if kind == "scales":
        crops = [resize(centre, [24, 24]) for centre in (center_crop(square, [edge]) for edge in (24, 30, 36))]
    if kind == "shifts":
        crops = six_views(center_crop(square, [24]))
    with torch.inference_mode():
        outputs = [network(one) for crop in crops for one in (crop, crop.flip(3))]
    expected = torch.stack(outputs).mean(0).softmax(1)[0].tolist()

    def probabilities(*words: str) -> list[float]:
        rows = values_of("predict", *words, str(tmp_path / "a.png"), "--top", "10")["classes"]
        scores = {row["class"]: row["probability"] for row in rows}
        return [scores[name] for name in names]

    plain = probabilities(str(run.path))
    assert probabilities(str(run.path), "--views", kind) == pytest.approx(expected, rel=1e-3)
    assert expected != pytest.approx(plain, rel=1e-2)
    losses = [values_of("eval", str(run.path), *words)["loss"] for words in ([], [VIEWS + kind])]
    assert losses[0] != losses[1]

    run.config.write_text(run.config.read_text().replace("eval_views: centre", f"eval_views: {kind}"))
    assert values_of("eval", str(run.path))["loss"] == losses[1]
    output_of("export", str(run.path), "-o", str(tmp_path / "export"))
    assert probabilities(str(tmp_path / "export")) == pytest.approx(expected, rel=1e-3)
    assert probabilities(str(tmp_path / "export"), "--views", "centre") == pytest.approx(plain, rel=1e-6)
    card = json.loads((tmp_path / "export" / "model_card.json").read_text())
    assert card["views"] == {"kind": kind, "size": 24}
    assert "average the logits of all `views`" in card["note"]


def test_nested_classes_have_the_accuracy_of_their_parents(tmp_path: Path) -> None:
    folder = tmp_path / "nested"
    for split in ("train", "val"):
        for number, name in enumerate(("round/circle", "round/ring", "sharp/star", "sharp/cross") * 3):
            (folder / split / name).mkdir(parents=True, exist_ok=True)
            draw_figure(name.split("/")[1], 40, split, number).save(folder / split / name / f"{number}.png")
    run = finished(
        tmp_path / "runs", "dataset=image_folder", f"dataset.path={folder}", "dataset.class_level=path", "batch_size=4",
        *("dataset.native_size=32", "dataset.train_samples=null", "dataset.val_samples=null", "loss=cross_entropy"),
    )  # fmt: skip
    result = values_of("eval", str(run.path), "--csv", str(tmp_path / "a.csv"), "--top", "1")
    rows = [*csv.DictReader((tmp_path / "a.csv").open())]
    parents = [(row["label"].split("/")[0], row["class"].split("/")[0]) for row in rows]
    assert result["parents"] == [sum(one == other for one, other in parents) / 12]
    assert f"level 1: {result['parents'][0]:.2%}" in output_of("eval", str(run.path))


def test_views_that_are_equal_are_refused(run: RunFolder) -> None:
    words = ("loss=cross_entropy", "image.eval_size=256", VIEWS + "5crop")
    message = "cuts 72 px out of 72, so all views are equal; set centre, or a larger image.eval_resize"
    assert message in refused("plan", *words)
    for kind in ("scales", "shifts"):
        assert "all views are equal; set centre" in refused("plan", "recipe=small_segmentation", VIEWS + kind)


def test_moved_images_of_the_run_keep_their_validation_split(tmp_path: Path, other: Path) -> None:
    run = finished(
        tmp_path / "runs", "dataset=image_folder", f"dataset.path={other}", "dataset.val_split=0.4", "batch_size=2",
        *("dataset.native_size=32", "dataset.train_samples=null", "dataset.val_samples=null"),
    )  # fmt: skip
    note_dataset(run, identity(resolved.read(run.config)))
    other.rename(tmp_path / "moved")
    result = values_of("eval", str(run.path), f"dataset.path={tmp_path}/moved")
    recorded = json.loads(run.metrics.read_text().splitlines()[-1])
    assert result["samples"] == recorded["samples"] == 6
    (tmp_path / "moved" / "aaa" / "0.png").unlink()
    assert values_of("eval", str(run.path), f"dataset.path={tmp_path}/moved")["samples"] == 13


def test_errors_are_one_line(run: RunFolder, other: Path, tmp_path: Path) -> None:
    def error(*words: str) -> str:
        return refused("eval", str(run.path), *words)

    assert "not a folder; set a folder that holds CLASS/*.jpg" in error(f"dataset.path={tmp_path}/nowhere")
    assert "contains no class folders" in error(f"dataset.path={other}/star")
    for name in ("star", "circle", "ring"):
        (other / name).rename(other / f"{name}s")
    assert "contains no class of the run; its classes are aaa, circles" in error(f"dataset.path={other}")
    words = ["epochs=50", "batch_size=4", "optimizer=lamb", "algorithms.mixup=on", "checkpoint.keep=1", "run_name=b"]
    lines = execute("eval", str(run.path), *words)[2].splitlines()
    assert len(lines) == len(words)
    for word in words:
        fixed = f"{word} (command line): cannot change in an evaluation; set only eval_batch_size, image.eval_views, "
        assert any(fixed in line for line in lines), word


def expected_rows(run: RunFolder, folder: Path) -> dict[str, tuple[float, list[str], list[float]]]:
    """Return loss, classes and probabilities, likeliest first, of each image alone."""
    network, names, rows = network_of(run), state_of(run)["classes"], {}
    for file in {*folder.glob("*/*.jpg")} - {folder / "dog" / "4.jpg"}:
        with torch.inference_mode():
            logits = network(prepared(run, Image.open(file)))
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
    rows, of_torchvision = [*csv.DictReader(table.open())], expected_rows(run, images / "val")
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


def test_errors_of_the_file_are_one_line(tmp_path: Path) -> None:
    run = str(finished(tmp_path / "runs").path)
    assert "--worst-first is for the file of all images; add --csv FILE" in refused("eval", run, "--worst-first")
    assert "--csv=" in refused("eval", run, "--csv", str(tmp_path / "no" / "a.csv"))
    assert "--top=0: must be at least 1" in refused("eval", run, "--csv", str(tmp_path / "a.csv"), "--top", "0")
