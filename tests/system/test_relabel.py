"""`train relabel`: a file of a teacher's labels, killed and resumed, and runs that train on it."""

import json
import shutil
import tarfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from launcher.config.compose import compose
from launcher.config.resolved import read
from launcher.data.batch import Moment
from launcher.data.inspection import inspect_data
from launcher.data.loading import build_loaders
from launcher.data.stored_crops import Described, LabelsFile
from launcher.errors import TERMINATED
from launcher.plan.plan import plan_for
from launcher.rank.group import single_rank
from launcher.training.networks import teacher_of
from launcher.weights.relabel import Relabelling, describe
from launcher.weights.teacher import find_named
from tests import trainers
from tests.images import write_images
from tests.networks import tiny
from tests.runs import Here, Train, draw_nothing, killed_and_resumed, results, same, use_tiny, wait_for

WORDS = [
    *("recipe=mild", "epochs=3", "batch_size=12", "eval_batch_size=12", "schedule.warmup=1ep", "model=resnet18"),
    *("dataset=image_folder", "dataset.native_size=32", "dataset.path=images", "launch=cpu", "launch.nproc=1"),
    *("dataloader.workers=0", "logger.interval=1ba", "logger.tensorboard=false"),
]
CLASSES = ("cat", "dog", "eel", "fox", "gnu", "hen")
ON = ["algorithms.label_smoothing=off", "algorithms.stored_labels=on", "algorithms.stored_labels.path=labels"]
ONE_EPOCH = ["epochs=1", "schedule.warmup=0ba"]
VIT = [*trainers.VIT, "algorithms.blurpool=off", "algorithms.progressive_resizing.size_multiple=8"]
RELABEL = ["relabel", "runs/teacher", *WORDS, "--crops", "30", "--top", "3"]


def slow() -> None:
    """Make each batch of labels take a tenth of a second."""
    filled = Relabelling._filled

    def slowly(*arguments: Any) -> Any:
        time.sleep(0.1)
        return filled(*arguments)

    Relabelling._filled = slowly  # type: ignore[method-assign]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with images, the run `teacher`, and its `labels` of them."""
    path = tmp_path_factory.mktemp("relabelled")
    write_images(path / "images", {"train": 12, "val": 3}, CLASSES)
    train = Here(path)
    train(*WORDS, "run_name=teacher", "epochs=2")
    assert "72 images, 30 crops each" in train(*RELABEL).stdout
    return path


def test_a_killed_command_resumes_to_the_same_bytes(folder: Path) -> None:
    train, part = Train(folder), folder / ".other.part"
    process = replace(train, before=(use_tiny, draw_nothing, slow)).start(*RELABEL, "-o", "other")
    wait_for(lambda: part.exists() and part.stat().st_size > 12_000)
    process.kill()
    process.communicate()
    done = part.stat().st_size
    # note: a kill can leave a part of a row
    part.write_bytes(part.read_bytes()[:-5])
    written = json.loads(train(*RELABEL, "-o", "other", "--json").stdout)
    assert 0 < done < written["bytes"]
    assert not part.exists()
    assert (folder / "other").read_bytes() == (folder / "labels").read_bytes()
    assert written["images"] == 72


def test_several_devices_write_the_bytes_of_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices compute whole batches in turn: here nine of eight images on three copies of the teacher."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr("launcher.models.resnet.library_network", tiny)
    prepared = inspect_data(compose(WORDS).config, must_exist=True)
    assert prepared.splits
    plan = plan_for(prepared.config, 1)
    images = prepared.splits[0]
    described = describe(plan.config, images, images.classes, "runs/teacher", 30, 3)
    used, outputs = list[nn.Module](), Relabelling._outputs

    def noted(self: Relabelling, network: nn.Module, *others: Any) -> torch.Tensor:
        used.append(network)
        return outputs(self, network, *others)

    monkeypatch.setattr(Relabelling, "_outputs", noted)
    done: list[int] = []
    relabelling = Relabelling(plan, images, *described, folder / "three")
    relabelling.run("cpu", 3, lambda images, _: done.append(images))
    assert (folder / "three").read_bytes() == (folder / "labels").read_bytes()
    assert done == [8, 16, 24, 32, 40, 48, 56, 64, 72]
    assert len({*map(id, used)}) == 3


@torch.no_grad()
def test_the_loader_takes_the_crops_that_the_teacher_saw(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr("launcher.models.resnet.library_network", tiny)
    config = inspect_data(compose([*WORDS, *ON, "algorithms.progressive_resizing=off"]).config, must_exist=True).config
    stored, plan = LabelsFile("labels"), plan_for(config, 1)
    assert plan.full_view == stored.described.view
    source = find_named("runs/teacher", "TEACHER", config)
    assert source.config
    teacher = teacher_of(source.config, source.tensors)
    mean, std = (torch.tensor(one).view(1, 3, 1, 1) for one in (teacher.mean, teacher.std))
    loaders = build_loaders(plan, single_rank(torch.device("cpu")))
    for epoch in range(2):
        for images, _, indices in loaders.train.epoch(epoch):
            classes, probabilities = stored.labels(config.seed, epoch, indices)
            outputs = teacher.network((images / 255 - mean) / std).softmax(1)
            ours = outputs.topk(3, 1)
            # note: half precision has eleven bits
            np.testing.assert_allclose(ours.values, probabilities, atol=6e-4)
            np.testing.assert_allclose(outputs.gather(1, torch.from_numpy(classes)), probabilities, atol=6e-4)
    loaders.close()


def test_a_crop_of_the_file_is_that_of_the_loader_in_each_pixel(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from launcher.weights.relabel import ManyCrops

    monkeypatch.chdir(folder)
    config = inspect_data(compose([*WORDS, *ON]).config, must_exist=True)
    decoder = ManyCrops(config.config, 30)
    ours = config.config.task.decoder(config.config, None)
    stored, indices = LabelsFile("labels"), np.arange(72)
    _, chosen = stored._places(42, 1, indices)
    records = config.config.task.records(config.splits[0], decoder)
    drawn = ours.draws(Moment(42, 1, 0, 10), indices)
    many = decoder.draws(Moment(0, 0, 0, 1), indices)
    for index in range(72):
        record = records.record(index)
        pixels, places = decoder.decode(record, 24, many[index])
        loaded, _ = ours.decode(record, 24, drawn[index])
        assert np.array_equal(pixels[chosen[index]], loaded)
        assert (places[chosen[index], :4] == stored._rows["box"][index, chosen[index]]).all()


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_killed_run_resumes_to_the_same_bits(ranks: int, folder: Path) -> None:
    train = Train(folder, before=(draw_nothing,))
    words = [*WORDS, *ON, *VIT, f"launch.nproc={ranks}", "checkpoint.every=4ba"]
    whole, run = killed_and_resumed(train, words, 7)
    assert same(train.decided(run), train.decided(whole))
    assert results(run)[-8:] == results(whole)[-8:]
    assert read(run / "config.yaml").algorithms.crops_file == str(folder / "labels")


def test_a_run_does_not_resume_with_the_labels_of_another_teacher(folder: Path) -> None:
    train, run = Here(folder), folder / "runs" / "replaced"
    shutil.copy(folder / "labels", folder / "replaced")
    words = [*WORDS, *ON, *VIT, "algorithms.stored_labels.path=replaced", "checkpoint.every=1ep"]
    train(*words, "run_name=replaced", stop_after=2, code=TERMINATED)
    head, _, rows = (folder / "labels").read_bytes().partition(b"\n")
    described = json.loads(head) | {"teacher": "another", "teacher_sha256": "0" * 64}
    (folder / "replaced").write_bytes(Described(**described).line() + rows)
    errors = train("resume", str(run), code=2).stderr
    assert "replaced: is not the run's first file, of the teacher runs/teacher; put that back" in errors
    shutil.copy(folder / "labels", folder / "replaced")
    train("resume", str(run))


def test_two_ranks_have_the_losses_of_one(folder: Path) -> None:
    losses = []
    for ranks in (1, 2):
        run = folder / "runs" / f"ranks{ranks}"
        # note: batch norm has other statistics on two ranks, a vision transformer has none
        words = [*WORDS, *ON, *VIT, f"launch.nproc={ranks}", *ONE_EPOCH]
        Train(folder)(*words, f"run_name={run.name}")
        losses.append([row[2] for row in results(run) if row[0] == "train"])
    assert len(losses[0]) == 6
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_ffcv_files_of_the_same_images_train_too(folder: Path) -> None:
    train = Here(folder)
    words = [*(word for word in WORDS if "dataloader" not in word), "dataloader.workers=1"]
    train("prepare", *words, "dataloader=ffcv")
    train(*words, *ON, "dataloader=ffcv", "run_name=ffcv", *ONE_EPOCH)
    own = train("relabel", "runs/teacher", *words, "dataloader=ffcv", code=2).stderr
    assert own == "error: dataloader=ffcv: labels are of the data set's own files; set torchvision\n"


def write_table(images: Path, to: Path) -> None:
    """Write tables of the splits with the paths of the images, in another order than the folders."""
    for split in ("train", "val"):
        rows = [f"{path},{path.parent.name}" for path in sorted((images / split).glob("*/*"), reverse=True)]
        (to / f"{split}.csv").write_text("\n".join(["path,label", *rows]) + "\n")


def write_tars(images: Path, to: Path) -> None:
    for split in ("train", "val"):
        with tarfile.open(to / f"{split}-000.tar", "w") as tar:
            for path in sorted((images / split).glob("*/*")):
                tar.add(path, path.relative_to(images / split))


@pytest.mark.parametrize("write", [write_table, write_tars])
def test_labels_of_a_folder_are_those_of_its_images_in_tables_and_archives(
    write: Any, folder: Path, tmp_path: Path
) -> None:
    write(folder / "images", tmp_path)
    train, runs = Here(folder), (f"{write.__name__}_folder", write.__name__)
    for name, words in zip(runs, (WORDS, [*WORDS, f"dataset.path={tmp_path}"]), strict=True):
        train(*words, *ON, f"run_name={name}", *ONE_EPOCH)
    losses = [[row[2] for row in results(folder / "runs" / name) if row[0] == "train"] for name in runs]
    assert len(losses[0]) == 6
    assert losses[0] == losses[1]
    output = train("relabel", "runs/teacher", *words, "--crops", "30", "--top", "3", "-o", f"{tmp_path}/labels").stdout
    assert "72 images, 30 crops each" in output
    assert (tmp_path / "labels").read_bytes() == (folder / "labels").read_bytes()


def test_other_images_classes_and_teachers_are_refused_in_one_line(folder: Path) -> None:
    train = Here(folder)
    other = folder / "others"
    shutil.copytree(folder / "images", other)
    (other / "train" / "cat" / "0.jpg").rename(other / "train" / "cat" / "zero.jpg")
    words = [*WORDS, *ON, "dataset.path=others"]
    for verb in ((), ("plan",)):
        refused = train(*verb, *words, code=2).stderr
        assert refused.count("\n") == 1
        assert f"algorithms.stored_labels.path={folder / 'labels'}: is of other training images than {other}" in refused
    shutil.rmtree(other / "train" / "cat")
    shutil.rmtree(other / "val" / "cat")
    assert "has dataset.classes=6, the run 5" in train("plan", *words, code=2).stderr
    fewer = train("relabel", "runs/teacher", *WORDS, "dataset.path=others", code=2).stderr
    assert "TEACHER=runs/teacher: has 6 outputs of task=classification, and the run 5" in fewer
    assert "has labels of other images" in train(*RELABEL, "--crops", "4", code=2).stderr
    assert "--crops=1001: must be at most 1000: all crops" in train(*RELABEL, "--crops", "1001", code=2).stderr
    for taken in ("images", "empty"):
        (folder / "empty").touch()
        errors = train(*RELABEL, "-o", taken, code=2).stderr
        assert errors == f"error: --output={folder / taken}: is no whole file of stored labels; set another\n"
    assert "--crops=0: must be at least 1" in train(*RELABEL, "--crops", "0", code=2).stderr
    assert "did you mean stored_labels?" in train("plan", "algorithms.fkd=on", code=2).stderr
    assert "algorithms.stored_labels" in train("fkd=on", code=2).stderr


def test_the_plan_has_no_teacher(folder: Path) -> None:
    planned = Here(folder)("plan", *WORDS, *ON).stdout
    assert "labels has 30 crops an image with labels by runs/teacher; no teacher runs" in planned
    assert "adds" not in planned
