"""`recipe=auto` chooses by images, devices and words; typed words stay, and the printed command sets the same."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from launcher import paths
from launcher.cli import main as cli
from launcher.cli.recipe_choice import Facts, choose
from launcher.config.compose import Composition, compose
from launcher.config.resolved import as_mapping
from launcher.config.schema import RunConfig
from launcher.config.yaml_file import read_mapping
from launcher.launch import devices
from launcher_lab.cli.training import Training
from tests.commands import execute, output_of, refused
from tests.images import write_images

IMAGENET = {"images": 1281167, "labels": "1,000 classes"}
OTHER_TASKS = read_mapping(paths.CONF / "auto.yaml")["from_scratch"]


def facts(**changes: Any) -> Facts:
    few = {
        **{"task": "classification", "images": 2200, "labels": "10 classes", "size": 300, "processes": 1},
        **{"on_gpus": False, "weights": False},
    }
    return Facts(**{**few, "epochs": None, **changes})


@pytest.mark.parametrize(
    ("changes", "recipe", "values"),
    [
        ({}, "small", {}),
        ({"size": 145}, "small", {"dataset.native_size": 144}),
        ({"size": 28}, "small", {"dataset.native_size": 28}),
        ({"images": 100}, "small", {"epochs": 200, "batch_size": 8}),
        ({"images": 20}, "small", {"epochs": 200, "batch_size": 8}),
        ({"images": 7}, "small", {"epochs": 200, "batch_size": 4}),
        ({"images": 2, "processes": 2}, "small", {"epochs": 200, "batch_size": 2}),
        ({"images": 1}, "small", {"epochs": 200, "batch_size": 1}),
        ({"images": 400}, "small", {"epochs": 110, "batch_size": 32}),
        ({"images": 400, "is_timed": True}, "small", {"epochs": 200, "batch_size": 32}),
        ({"images": 20000}, "small", {"epochs": 10}),
        ({"processes": 3}, "small", {"batch_size": 63}),
        ({"images": 50000, "on_gpus": True}, "small", {"epochs": 10}),
        ({"weights": True}, "finetune", {}),
        ({"weights": True, "on_gpus": True, "processes": 8, **IMAGENET}, "finetune", {"epochs": 10}),
        (IMAGENET, "small", {"epochs": 10}),
        ({"on_gpus": True, "processes": 8, **IMAGENET}, "mild", {}),
        ({"on_gpus": True, "processes": 1, **IMAGENET}, "mild", {"device_batch_size": 256}),
        ({"on_gpus": True, "processes": 4, **IMAGENET}, "mild", {"device_batch_size": 256}),
        ({"on_gpus": True, "processes": 3, **IMAGENET}, "mild", {"batch_size": 2043, "device_batch_size": 227}),
        ({"on_gpus": True, "processes": 8, "images": 100000}, "mild", {"batch_size": 512}),
        ({"on_gpus": True, "processes": 8, "epochs": 59, **IMAGENET}, "mild", {}),
        ({"on_gpus": True, "processes": 8, "epochs": 60, **IMAGENET}, "medium", {}),
        ({"on_gpus": True, "processes": 8, "epochs": 239, **IMAGENET}, "medium", {}),
        ({"on_gpus": True, "processes": 8, "epochs": 240, **IMAGENET}, "hot", {}),
        ({"task": "multilabel", "on_gpus": True, **IMAGENET}, "small", {"epochs": 10, "loss": "bce", **OTHER_TASKS}),
        ({"task": "multilabel", "weights": True}, "finetune", {"loss": "bce"}),
        ({"architecture": "vit_small_patch16_224"}, "small_muon", {"algorithms.blurpool": "off"}),
        (
            {"architecture": "convnext_tiny", "images": 20000},
            "small_muon",
            {"algorithms.blurpool": "off", "epochs": 10},
        ),
        ({"architecture": "deit3_small", **IMAGENET}, "vit_s16", {"schedule.fit": "on", "device_batch_size": 256}),
        ({"architecture": "vit", "processes": 8, **IMAGENET}, "vit_s16", {"schedule.fit": "on"}),
        ({"architecture": "vit", "weights": True, **IMAGENET}, "finetune", {"epochs": 10}),
        ({"task": "language", "images": 0}, "small_gpt", {}),
        ({"task": "segmentation", "images": 120}, "small_segmentation", {"epochs": 200, "batch_size": 8}),
        # note: which has no whitening to turn off
        ({"task": "regression", "weights": True}, "finetune", {"loss": "mse", "algorithms.label_smoothing": "off"}),
    ],
)
def test_a_recipe_is_chosen_by_images_devices_weights_and_length(
    changes: dict[str, Any], recipe: str, values: dict[str, int]
) -> None:
    assert choose(facts(**changes)) == (recipe, values)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return write_images(tmp_path / "images", {"train": 60, "val": 5}, size=(48, 50))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], {"recipe": "small", "epochs": 200, "batch_size": 8, "dataset.native_size": 48}),
        (["recipe=auto", "epochs=3", "batch_size=12"], {"recipe": "small", "epochs": 3, "batch_size": 12}),
        (["auto", "dataset.native_size=32"], {"recipe": "small", "dataset.native_size": 32}),
        (["recipe=auto", "dataset=imagenet", "optimizer.lr=0.5"], {"dataset.name": "imagenet", "optimizer.lr": 0.5}),
        (["model=resnet50", "model.weights=torchvision"], {"recipe": "finetune", "model.name": "resnet50"}),
        (["recipe=none", "optimizer.lr=0.5"], {"recipe": None, "batch_size": 64}),
        (["recipe=baseline"], {"recipe": "baseline"}),
        (["image.train_size=32"], {"recipe": "small", "dataset.native_size": 224, "image.train_size": 32}),
        (["model=vit"], {"recipe": "small_muon", "dataset.native_size": 224, "optimizer.name": "muon"}),
        (["model=timm", "model.weights=timm"], {"recipe": "finetune", "dataset.native_size": 224}),
        (["optimizer=adamw", "model=vit"], {"recipe": "small_muon", "optimizer.name": "adamw"}),
        (
            ["optimizer.lr=0.5", "loss.class_weights=auto", "image.scale=[0.2,1.0]", "fidelity=published"],
            {"optimizer.lr": 0.5, "loss.class_weights": "auto", "image.scale": [0.2, 1.0], "fidelity": "published"},
        ),
        (["algorithms.mixup.alpha=0.3", "schedule=linear"], {"algorithms.mixup.alpha": 0.3, "schedule.name": "linear"}),
    ],
)
def test_typed_words_stay_and_the_printed_command_sets_the_same_config(
    words: list[str], expected: dict[str, Any], images: Path
) -> None:
    if "dataset=imagenet" in words:
        # note: of 2 classes, where the option has 1,000
        words = [*words, "dataset.classes=2", "dataset.train_samples=null", "dataset.val_samples=null"]
    typed = [*words, f"dataset.path={images}", "launch=cpu"]
    code, shown, errors = execute("show", *typed)
    assert code == 0, errors
    if expected.get("recipe", "small") in (None, "baseline"):
        assert errors == ""
        command = ["train", "show", *typed]
    else:
        lines = execute("plan", *typed)[2].splitlines()
        assert errors.splitlines() == lines[:1]
        assert len(lines) >= 3
        assert "120 training images of 2 classes" in lines[0]
        assert "()" not in lines[1]
        command = shlex.split(lines[2].removeprefix("auto: the same: "))
        assert command[:2] == ["train", "plan"]
        assert output_of("show", *command[2:]) == shown
    config: Any = as_mapping(compose(command[2:]).config)
    for key, value in expected.items():
        found = config
        for part in key.split("."):
            found = found[part]
        assert found == value


@pytest.mark.parametrize(
    "words", [["plan", "--json"], ["plan", "--json", "dataset.skip_bad=true"], ["show", "--origin"]]
)
def test_the_printed_command_shows_the_same_counts_notes_and_origins(words: list[str], images: Path) -> None:
    (next(images.glob("train/*/")) / "broken.png").write_text("")
    code, shown, errors = execute(*words, f"dataset.path={images}", "launch=cpu")
    assert code == 0, errors
    planned = execute("plan", *words[2:], f"dataset.path={images}", "launch=cpu")[2]
    command = shlex.split(planned.splitlines()[2].removeprefix("auto: the same: "))
    same_code, same, _ = execute(words[0], *command[2:], *words[1:2])
    free = re.compile(r'"host_available": \d+')
    assert (code, free.sub("", shown)) == (same_code, free.sub("", same))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["task=multilabel"], {"loss": "bce", "optimizer": OTHER_TASKS["optimizer"]}),
        (["task=regression", "dataset.columns.label=x"], {"loss": "mse", "optimizer": OTHER_TASKS["optimizer"]}),
        (["task=regression", "loss=huber", "dataset.columns.label=x"], {"loss": "huber"}),
        (["recipe=auto", "task=regression", "dataset.columns.label=x", "optimizer=lamb"], {"optimizer": "lamb"}),
    ],
)
def test_a_table_and_a_task_are_enough_for_a_plan(words: list[str], expected: dict[str, str], tmp_path: Path) -> None:
    lines = ["image,label,x,split"]
    for number in range(60):
        Image.new("RGB", (40, 40)).save(tmp_path / f"{number}.png")
        lines.append(f"{number}.png,{'a|b'[: number % 3 + 1]},{number},{'val' if number > 50 else 'train'}")
    (tmp_path / "table.csv").write_text("\n".join(lines))
    code, _, errors = execute("plan", *words, f"dataset.path={tmp_path}/table.csv", "launch=cpu")
    assert code == 0, errors
    config = compose(shlex.split(errors.splitlines()[2].removeprefix("auto: the same: "))[2:]).config
    assert {group: getattr(config, group).name for group in expected} == expected
    assert (config.algorithms.get("whitening") is not None) == ("task=multilabel" in words)
    if "lamb" in expected.values():
        assert config.optimizer.lr != OTHER_TASKS["optimizer.lr"]


@pytest.mark.parametrize("images", [1, 2, 3])
def test_the_advice_to_divide_a_few_images_leads_to_a_plan_or_one_line(images: int, tmp_path: Path) -> None:
    write_images(tmp_path, {".": images}, size=(48, 50))
    words = ["plan", f"dataset.path={tmp_path}", "launch=cpu"]
    assert "set dataset.val_split=0.1" in refused(*words)
    if images == 1:
        assert "one image of each class, so none is left to validate on" in refused(*words, "dataset.val_split=0.1")
        return
    code, _, errors = execute(*words, "dataset.val_split=0.1")
    assert (code, f"batch_size={2 * (images - 1)}" in errors) == (0, True)


def test_a_job_chooses_for_its_hardware(images: Path) -> None:
    job = ["submit", "--slurm", f"dataset.path={images}", "recipe=auto", "submit.time=01:00:00"]
    assert "hardware=this_machine: has no number of GPUs" in refused(*job)
    code, script, errors = execute(*job, "hardware=p4d_24xlarge")
    assert (code, "8 GPUs" in errors) == (0, True)
    assert "recipe=small" in script
    assert "recipe=auto" not in script


def test_many_images_on_gpus_get_another_recipe_than_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "visible_gpus", lambda: 2)
    words = ["recipe=auto", "dataset=imagenet", "dataset.path=/nowhere"]
    code, shown, errors = execute("show", *words, "--origin")
    assert (code, "recipe=mild device_batch_size=256: 1,281,167 training images" in errors) == (0, True)
    command = shlex.split(execute("plan", *words)[2].splitlines()[2].removeprefix("auto: the same: "))
    assert shown == output_of("show", *command[2:], "--origin")
    assert re.search(r"^device_batch_size=256 +command line$", shown, re.MULTILINE)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plan", "recipe=auto"], "recipe=auto: needs images; set dataset.path=FOLDER, or dataset=shapes"),
        (["recipe=auto", "dataset.path=/nowhere"], "dataset.path=/nowhere: not a folder"),
        (["curve", "recipe=auto,mild", "dataset.path=/nowhere"], "dataset.path=/nowhere: not a folder"),
        (["plan", "recipe=auto", "dataset=shapes", "epoch=3"], "epoch=3 (command line): no such key"),
    ],
)
def test_auto_refuses_in_one_line(words: list[str], message: str) -> None:
    assert message in refused(*words)


@pytest.mark.parametrize(
    "verb",
    [
        *("run", "plan", "show", "estimate", "submit --slurm", "doctor", "look"),
        *("curve", "ablate --grid algorithms=[ema]", "curve optimizer.lr=interval(0.1,1) trials=1"),
    ],
)
def test_every_verb_chooses_alike(verb: str, images: Path, here: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(here.folder)
    composed, seen = Composition.composed, list[RunConfig]()
    monkeypatch.setattr(Composition, "composed", lambda self: (one := composed(self), seen.append(one.config))[0])
    name = verb.split()[0]
    if name in ("curve", "ablate"):
        monkeypatch.setattr("launcher_lab.cli.training.check_all", lambda *_, **__: [])
        monkeypatch.setattr(Training, "run", lambda self: 0)
    else:
        monkeypatch.setattr(cli.module_of(name), "main", lambda arguments: 0)
    words = [f"dataset.path={images}", "launch=cpu", "image.scale=[0.2,1.0]"]
    code, _, errors = execute(*verb.split(), *words, *["hardware=p4d_24xlarge"] * (name == "submit"))
    assert (code, errors.count("auto: recipe=small ")) == (0, 1), errors
    config = seen[-1]
    length = round(config.epochs * config.schedule.dilate)
    values = (config.recipe, length, config.batch_size, config.image.scale, config.dataset.native_size)
    assert values == ("small", 200, 8, [0.2, 1.0], 48)


def test_auto_chooses_for_the_built_in_images_only_if_they_are_typed() -> None:
    assert "recipe=small epochs=11: 4,000 training images of 10 classes" in execute("plan", "auto", "dataset=shapes")[2]


@pytest.mark.system
def test_a_folder_alone_trains(images: Path, here: Any) -> None:
    done = here(f"dataset.path={images}", "epochs=1", "launch=cpu", "dataloader.workers=0", "run_name=run")
    chosen = "auto: recipe=small dataset=image_folder batch_size=8 dataset.native_size=48: 120 training images"
    assert chosen in done.stderr
    assert "recipe: small" in (here.folder / "runs" / "run" / "config.yaml").read_text()
