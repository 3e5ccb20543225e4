"""Tasks, each done by a script that reads only the JSON of the command."""

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import TERMINATED
from tests.commands import execute
from tests.images import write_images
from tests.runs import SMALL, Here

pytestmark = pytest.mark.system


class Script:
    """A script in a folder with runs: `document` returns what a command prints."""

    def __init__(self, folder: Path):
        self._train, self.folder = Here(folder), folder

    def document(self, *words: str) -> Any:
        return json.loads(self._train(*words, "--json").stdout)

    def stop_after(self, step: int, *words: str) -> Any:
        return json.loads(self._train(*words, "--json", code=TERMINATED, stop_after=step).stdout)

    def offers(self, *words: str) -> Any:
        """Return the offers of a plan; none of a recipe without a curve."""
        code, output, _ = execute(*words, "--json")
        return [] if code == 2 else json.loads(output)["offers"]

    def new(self, name: str, *words: str) -> Any:
        return self.document(*SMALL, f"run_name={name}", *words)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    script = Script(tmp_path_factory.mktemp("tasks"))
    write_images(script.folder / "images", {"train": 8, "val": 4}, size=(32, 32))
    script.new("first")
    script.new("second", "seed=1")
    return script.folder


@pytest.fixture
def script(runs: Path, tmp_path: Path) -> Script:
    """Return a script in a folder of its own, with images and two runs."""
    return Script(shutil.copytree(runs, tmp_path, dirs_exist_ok=True))


def resume_the_newest_run_with_twice_the_epochs(script: Script) -> None:
    script.new("short", "epochs=2")
    newest = script.document("ls", "runs")["runs"][-1]
    longer = script.document("resume", newest["path"], f"epochs={2 * newest['epochs']}")
    assert (longer["state"], longer["epochs_done"]) == ("finished", 4)


def find_the_recipe_that_reaches_78_percent_for_the_least_money_on_spot(script: Script) -> None:
    costs = {}
    for recipe in script.document("ls", "recipes")["recipes"]:
        reached = [point["top1"] for point in recipe["published"] if point["top1"] is not None]
        if reached and min(reached) <= 78 <= max(reached):
            plan = ["plan", f"recipe={recipe['name']}", "--on", "all", "--quality", "78"]
            offers = [one for one in script.offers(*plan) if one["spot"] and one["cost"] and not one["problem"]]
            costs |= {(recipe["name"], one["machine"]): one["cost"]["value"] for one in offers}
    recipe, machine = min(costs, key=costs.__getitem__)
    assert len({name for name, _ in costs}) > 1
    offers = script.document("plan", f"recipe={recipe}", "--on", machine, "--quality", "78")["offers"]
    (offer,) = (one for one in offers if one["spot"])
    assert offer["cost"]["value"] == pytest.approx(min(costs.values()))


def finish_every_unfinished_run(script: Script) -> None:
    stopped = script.stop_after(7, *SMALL, "run_name=stopped")
    assert stopped["state"] == "stopped"
    for run in script.document("ls", "runs")["runs"]:
        if run["resume"]:
            script.document(*shlex.split(run["resume"])[1:])
    assert {run["state"] for run in script.document("ls", "runs")["runs"]} == {"finished"}


def find_the_best_run_and_evaluate_it(script: Script) -> None:
    best = max(script.document("ls", "runs")["runs"], key=lambda run: run["best"])
    evaluated = script.document("eval", best["path"], "--best")
    assert evaluated["metrics"]["top1"] == pytest.approx(best["best"])


def write_the_data_sets_files_and_count_their_images(script: Script) -> None:
    files = script.document("prepare", "dataset=image_folder", "dataset.path=images", "dataloader.workers=1")["files"]
    assert {file["split"]: file["samples"] for file in files} == {"train": 16, "val": 8}
    assert all((script.folder / file["path"]).stat().st_size == file["bytes"] for file in files)


def export_a_run_and_find_the_file(script: Script) -> None:
    exported = script.document("export", "runs/first", "-o", "model")
    assert (script.folder / exported["file"]).is_file()
    assert exported["checked"]["images"] == 50


def find_which_algorithm_to_leave_out(script: Script) -> None:
    rows = script.document("ablate", *SMALL, "--grid")["grid"]
    command = next(row["command"] for row in rows if row["algorithm"] == "ema" and "without" in row["name"])
    assert "ema" not in str(script.document("plan", *command[1:])["order"])


def find_the_cheapest_machine_with_eight_gpus(script: Script) -> None:
    eight = [one for one in script.document("ls", "hardware")["hardware"] if one["gpus"] == 8 and one["spot_per_hour"]]
    cheapest = min(eight, key=lambda one: one["spot_per_hour"])
    offers = script.document("plan", "recipe=mild", "--on", cheapest["name"])["offers"]
    assert all(offer["gpu"].startswith("8x") for offer in offers)


def search_a_learning_rate_and_train_the_best(script: Script) -> None:
    search = ["curve", *SMALL, "optimizer.lr=interval(0.1,1)", "trials=2", "epochs=1", "runs=search"]
    runs = script.document(*search)["runs"]
    assert runs[0]["top1"] >= runs[1]["top1"]
    script.document(*(word for word in runs[0]["words"] if not word.startswith(("run_name=", "runs="))))


TASKS: list[Callable[[Script], None]] = [
    resume_the_newest_run_with_twice_the_epochs,
    find_the_recipe_that_reaches_78_percent_for_the_least_money_on_spot,
    finish_every_unfinished_run,
    find_the_best_run_and_evaluate_it,
    write_the_data_sets_files_and_count_their_images,
    export_a_run_and_find_the_file,
    find_which_algorithm_to_leave_out,
    find_the_cheapest_machine_with_eight_gpus,
    search_a_learning_rate_and_train_the_best,
]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: str(task.__name__))
def test_a_script_does_the_task(script: Script, task: Callable[[Script], None], tiny_networks: None) -> None:
    task(script)
