"""`recipe=auto` chooses by images, devices and words; typed words stay, and the printed command sets the same."""

import re
import shlex
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from launcher import paths
from launcher.cli import within
from launcher.cli.auto import with_recipe
from launcher.cli.recipe_choice import Facts, choose
from launcher.config.compose import compose
from launcher.config.resolved import as_mapping, read
from launcher.config.yaml_file import read_mapping
from launcher.launch import devices
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
        ({"on_gpus": True, "processes": 3, **IMAGENET}, "mild", {"batch_size": 2043, "device_batch_size": 227}),
        ({"on_gpus": True, "processes": 8, "images": 100000}, "mild", {"batch_size": 512}),
        ({"on_gpus": True, "processes": 8, "epochs": 59, **IMAGENET}, "mild", {}),
        ({"on_gpus": True, "processes": 8, "epochs": 60, **IMAGENET}, "medium", {}),
        ({"on_gpus": True, "processes": 8, "epochs": 239, **IMAGENET}, "medium", {}),
        ({"on_gpus": True, "processes": 8, "epochs": 240, **IMAGENET}, "hot", {}),
        ({"task": "multilabel", "on_gpus": True, **IMAGENET}, "small", {"epochs": 10, "loss": "bce", **OTHER_TASKS}),
        ({"task": "multilabel", "weights": True}, "finetune", {"loss": "bce"}),
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
        # words that a recipe fixes mean the defaults, as before
        (["optimizer.lr=0.5"], {"recipe": None, "batch_size": 64}),
        (["recipe=baseline"], {"recipe": "baseline"}),
    ],
)
def test_typed_words_stay_and_the_printed_command_sets_the_same_config(
    words: list[str], expected: dict[str, Any], images: Path
) -> None:
    if "dataset=imagenet" in words:
        # note: of 2 classes, where the option has 1,000
        words = [*words, "dataset.classes=2", "dataset.train_samples=null", "dataset.val_samples=null"]
    code, shown, errors = execute("show", *words, f"dataset.path={images}", "launch=cpu")
    assert code == 0, errors
    lines = [line for line in errors.splitlines() if line.startswith("auto: ")]
    if expected["recipe" if "recipe" in expected else "dataset.name"] in (None, "baseline"):
        assert lines == []
        command = ["train", "show", *words, f"dataset.path={images}", "launch=cpu"]
    else:
        assert len(lines) == 3
        assert "120 training images of 2 classes" in lines[0]
        assert "()" not in lines[1]
        command = shlex.split(lines[2].removeprefix("auto: the same: "))
        assert command[:2] == ["train", "show"]
        assert output_of(*command[1:]) == shown
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
    command = shlex.split(errors.splitlines()[2].removeprefix("auto: the same: "))
    assert (code, shown) == execute(*command[1:], *words[1:2])[:2]


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


@pytest.mark.parametrize("gpus", [0, 2])
def test_plan_and_run_choose_alike(gpus: int, images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "visible_gpus", lambda: gpus)
    chosen = [execute(verb, f"dataset.path={images}")[2].splitlines()[:2] for verb in ("plan", "show")]
    assert chosen[0] == chosen[1]
    assert ("2 GPUs" if gpus else "the CPU") in chosen[0][0]
    job = ["submit", "--slurm", f"dataset.path={images}", "recipe=auto", "submit.time=01:00:00"]
    assert "hardware=this_machine: has no number of GPUs" in refused(*job)
    code, script, errors = execute(*job, "hardware=p4d_24xlarge")
    assert (code, "8 GPUs" in errors) == (0, True)
    assert "recipe=small" in script
    assert "recipe=auto" not in script


def test_many_images_on_gpus_get_another_recipe_than_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "visible_gpus", lambda: 2)
    words = ["show", "recipe=auto", "dataset=imagenet", "dataset.path=/nowhere", "--origin"]
    code, shown, errors = execute(*words)
    assert (code, "recipe=mild: 1,281,167 training images" in errors) == (0, True)
    command = shlex.split(errors.splitlines()[2].removeprefix("auto: the same: "))
    assert shown == output_of(*command[1:], "--origin")
    assert re.search(r"^device_batch_size=256 +command line$", shown, re.MULTILINE)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plan", "recipe=auto"], "recipe=auto: needs images; set dataset.path=FOLDER, or dataset=shapes"),
        (["recipe=auto", "dataset.path=/nowhere"], "dataset.path=/nowhere: not a folder"),
        (["curve", "recipe=auto", "dataset.path=/nowhere", "seed=0,1"], "recipe=auto: is for one run"),
        (["plan", "recipe=auto", "dataset=shapes", "epoch=3"], "epoch=3 (command line): no such key"),
        (["recipe=auto", "dataset=shapes", "budget=25usd"], "budget=25usd: this machine has no price; set a time"),
        (["recipe=auto", "dataset=shapes", "budget=5"], "budget=5: must be money such as 25usd, or a time such as 2h"),
        (["recipe=auto", "dataset=shapes", "budget=5min", "stop.minutes=3"], "limits the time as stop.minutes does"),
        (["recipe=mild", "dataset=shapes", "budget=5min"], "no such key; did you mean stop.minutes?"),
    ],
)
def test_auto_refuses_in_one_line(words: list[str], message: str) -> None:
    assert message in refused(*words)


def test_several_runs_of_images_without_a_recipe_get_a_note(tmp_path: Path) -> None:
    for words, count in ((["epochs=1,2"], 1), (["epochs=1,2", "recipe=small"], 0)):
        _, _, errors = execute("curve", f"dataset.path={tmp_path / 'my images'}", *words)
        assert errors.count("no recipe, so the defaults of every key") == count
        assert errors.count(f"`train plan 'dataset.path={tmp_path / 'my images'}'` prints one") == count


def test_auto_chooses_for_the_built_in_images_only_if_they_are_typed() -> None:
    assert "recipe=small: 4,000 training images of 10 classes" in execute("plan", "auto", "dataset=shapes")[2]


def test_a_budget_is_the_time_of_the_longest_run_that_the_images_are_worth(images: Path, here: Any) -> None:
    code, shown, errors = execute("show", f"dataset.path={images}", "launch=cpu", "budget=90s", f"runs={here.folder}")
    assert (code, "budget=90s: no finished run of these images in so short a time" in errors) == (0, True)
    assert re.search(r"minutes: 1\.5\b", shown)


def test_money_is_the_time_that_it_pays_for_on_a_machine_with_a_price() -> None:
    words = ["show", "auto", "dataset=shapes", "launch=cpu", "hardware.price_per_hour=2.5"]
    code, shown, errors = execute(*words, "budget=1usd")
    assert code == 0, errors
    assert re.search(r"minutes: 24\b", shown)
    assert "budget=1eur: its price is in USD" in refused(*words, "budget=1eur")


@pytest.mark.system
def test_a_budget_of_a_job_pays_its_start_too_and_the_printed_command_submits(images: Path) -> None:
    words = ["submit", "--slurm", f"dataset.path={images}", "launch=cpu", "hardware.price_per_hour=2.5"]
    code, job, errors = execute(*words, "budget=1usd")
    assert (code, "stop.minutes=22.5 " in job) == (0, True), errors
    assert "budget=1usd: 24 min, 1.5 of them assumed for the job's start" in errors
    command = next(line.partition("the same: ")[2] for line in errors.splitlines() if "the same: " in line)
    assert execute(*shlex.split(command)[1:])[:2] == (0, job)
    assert "budget=5s: a job takes 1.5 min to start; set more, such as 3min" in refused(*words, "budget=5s")


@pytest.mark.system
def test_a_budget_shows_the_finished_runs_that_ended_in_it(images: Path, here: Any) -> None:
    words = ["auto", f"dataset.path={images}", "model=resnet18", "dataset.native_size=32", "launch=cpu"]
    words += ["launch.nproc=1", "dataloader.workers=0", "budget=10min"]
    first = here(*words, "epochs=1", "run_name=first", "batch_size=20")
    assert "1 of 1 epoch fit by the time of measured steps" in first.stdout
    config = read(here.folder / "runs" / "first" / "config.yaml")
    assert 5 < (config.stop.minutes or 0) < 10
    known = here(*words, "epochs=1", "run_name=second", "seed=1")
    assert re.search(
        r"auto: budget=10min: top-1 [\d.]+ % \(one run\) in \d+ s: train recipe=small .*epochs=1", known.stderr
    )
    second = read(here.folder / "runs" / "second" / "config.yaml")
    assert (second.epochs, second.batch_size, second.seed) == (1, 8, 1)


@pytest.mark.parametrize(("seconds", "words"), [(61.0, ["recipe=hot", "epochs=3"]), (59.0, [])])
def test_a_known_run_is_repeated_if_it_took_half_of_the_time(
    seconds: float, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = SimpleNamespace(words=("recipe=hot", "epochs=3", "seed=1"), line="", seconds=seconds)
    monkeypatch.setattr(within, "_known", lambda *_: [known])
    typed = {"recipe": "auto", "seed": 2, "budget": "2min"}
    chosen, _ = within.best_within("run", ["recipe=auto", "seed=2", "budget=2min"], typed, "shapes")
    assert chosen == [*(words or ["recipe=auto"]), "seed=2", "stop.minutes=2"]


@pytest.mark.system
def test_a_folder_alone_trains(images: Path, here: Any) -> None:
    words = [f"dataset.path={images}", "epochs=1", "launch=cpu", "dataloader.workers=0", "run_name=run"]
    done = here(*words)
    assert "auto: recipe=small: 120 training images" in done.stderr
    assert "recipe: small" in (here.folder / "runs" / "run" / "config.yaml").read_text()


@pytest.mark.parametrize(
    ("words", "may_shrink"),
    [
        ([], True),
        (["dataset.native_size=64"], False),
        (["epochs=3"], False),
        (["model=resnet18", "recipe=auto"], False),
    ],
)
def test_images_become_smaller_for_a_budget_unless_their_size_or_length_is_typed(
    words: list[str], may_shrink: bool, images: Path, here: Any
) -> None:
    plan = ["plan", f"dataset.path={images}", "launch=cpu", "budget=5min", f"runs={here.folder}", *words]
    assert ("stop.minutes=5 and their image size" in output_of(*plan)) == may_shrink
    submit, run = (with_recipe(verb, plan[1:])[1] for verb in ("submit", "run"))
    assert submit is not None
    assert run is not None
    # note: a job has less time, after its start
    assert replace(submit.config, stop=run.config.stop) == run.config
    assert (submit.may_shrink, run.may_shrink, submit.ends) == (may_shrink, may_shrink, None)
