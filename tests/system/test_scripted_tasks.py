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

    def document(self, *words: str, code: int = 0) -> Any:
        return json.loads(self._train(*words, "--json", code=code).stdout)

    def stop_after(self, step: int, *words: str) -> Any:
        return json.loads(self._train(*words, "--json", code=TERMINATED, stop_after=step).stdout)

    def offers(self, *words: str) -> Any:
        """Return the offers of a plan; none of a recipe without a curve."""
        code, output, _ = execute(*words, "--json")
        return [] if code == 2 else json.loads(output)["offers"]

    def newest(self) -> Any:
        return self.document("ls", "runs")["runs"][-1]

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
    newest = script.newest()
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
    (offer,) = (
        one
        for one in script.document("plan", f"recipe={recipe}", "--on", machine, "--quality", "78")["offers"]
        if one["spot"]
    )
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


def list_what_differs_between_two_runs(script: Script) -> None:
    differing = {
        row["key"]: (row["first"], row["second"]) for row in script.document("diff", "runs/first", "runs/second")
    }
    assert differing["seed"] == (42, 1)


def find_who_set_a_value(script: Script) -> None:
    shown = script.document("show", "recipe=mild", "optimizer.lr=1")
    assert (shown["config"]["optimizer"]["lr"], shown["origins"]["optimizer.lr"]) == (1.0, "command line")
    assert shown["origins"]["optimizer.momentum"] == "recipe mild"


def check_the_machine_and_the_data_before_a_run(script: Script) -> None:
    words = ["recipe=none", "dataset=image_folder", "dataset.path=nowhere", "model=resnet18", "launch=cpu"]
    problems = [finding for finding in script.document("doctor", *words, code=2) if finding["status"] == "problem"]
    assert any("nowhere" in finding["observation"] for finding in problems)


def estimate_the_time_of_a_run_here(script: Script) -> None:
    estimate = script.document("estimate", *SMALL, "--seconds", "0.1")
    assert estimate["wall"]["low"] <= estimate["wall"]["seconds"] <= estimate["wall"]["high"]


def find_the_bottleneck_and_what_to_change(script: Script) -> None:
    found = script.document("estimate", *SMALL, "--seconds", "0.1")
    assert found["bound"] in found["bounds"] + ["data", "transfer", "step"]


def classify_the_images_of_a_folder(script: Script) -> None:
    words = ["recipe=mild", "dataset=image_folder", "dataset.path=images", "model=resnet18", "launch=cpu", "epochs=3"]
    words += ["batch_size=8", "schedule.warmup=1ep", "image.train_size=32", "image.eval_size=32"]
    script.document(*words, "image.eval_resize=32", "dataloader.workers=0", "run_name=animals")
    predicted = script.document("predict", "runs/animals", "images/val/cat/0.jpg", "--top", "2")
    assert {one["class"] for one in predicted["classes"]} == {"cat", "dog"}


def write_the_data_sets_files_and_count_their_images(script: Script) -> None:
    files = script.document("prepare", "dataset=image_folder", "dataset.path=images", "dataloader.workers=1")["files"]
    assert {file["split"]: file["samples"] for file in files} == {"train": 16, "val": 8}
    assert all((script.folder / file["path"]).stat().st_size == file["bytes"] for file in files)


def export_a_run_and_find_the_file(script: Script) -> None:
    exported = script.document("export", "runs/first", "-o", "model")
    assert (script.folder / exported["file"]).is_file()
    assert exported["checked"]["images"] == 50


def train_a_grid_of_two_seeds_and_compare_them(script: Script) -> None:
    compared = script.document("compare", "runs/first", "runs/second")
    (point,) = compared["points"]
    assert (point["seeds"], point["epochs"]) == (2, 3)
    best = [run["best"] for run in script.document("ls", "runs")["runs"] if run["path"] in point["runs"]]
    assert point["top1_mean"] <= 100 * max(best)


def find_which_algorithm_to_leave_out(script: Script) -> None:
    rows = script.document("ablate", *SMALL, "--grid")["grid"]
    command = next(row["command"] for row in rows if row["algorithm"] == "ema" and "without" in row["name"])
    assert "ema" not in str(script.document("plan", *command[1:])["order"])


def find_the_cheapest_machine_with_eight_gpus(script: Script) -> None:
    eight = [one for one in script.document("ls", "hardware")["hardware"] if one["gpus"] == 8 and one["spot_per_hour"]]
    cheapest = min(eight, key=lambda one: one["spot_per_hour"])
    offers = script.document("plan", "recipe=mild", "--on", cheapest["name"])["offers"]
    assert all(offer["gpu"].startswith("8x") for offer in offers)


def find_the_epoch_in_which_images_get_their_full_size(script: Script) -> None:
    plan = script.document("plan", "recipe=mild", "epochs=36")
    full = max(row["view"] for row in plan["timetable"])
    first = next(row for row in plan["timetable"] if row["view"] == full)
    assert 0 < first["epoch"] < 36
    assert first["step"] == pytest.approx(first["epoch"] * plan["steps_per_epoch"])


def try_every_optimizer_on_a_recipe(script: Script) -> None:
    names = script.document("ls", "optimizer")["optimizer"]
    assert {script.document("show", f"optimizer={name}")["config"]["optimizer"]["name"] for name in names} == {*names}


def write_a_job_for_slurm(script: Script) -> None:
    job = script.document("submit", "--slurm", "recipe=mild", "dataset=imagenet", "dataset.path=/data")
    (script.folder / job["file"]).write_text(job["text"])
    assert job["command"] == ["sbatch", "job.sh"]
    assert "#SBATCH" in job["text"]


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
    list_what_differs_between_two_runs,
    find_who_set_a_value,
    check_the_machine_and_the_data_before_a_run,
    estimate_the_time_of_a_run_here,
    find_the_bottleneck_and_what_to_change,
    classify_the_images_of_a_folder,
    write_the_data_sets_files_and_count_their_images,
    export_a_run_and_find_the_file,
    train_a_grid_of_two_seeds_and_compare_them,
    find_which_algorithm_to_leave_out,
    find_the_cheapest_machine_with_eight_gpus,
    find_the_epoch_in_which_images_get_their_full_size,
    try_every_optimizer_on_a_recipe,
    write_a_job_for_slurm,
    search_a_learning_rate_and_train_the_best,
]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: str(task.__name__))
def test_a_script_does_the_task(script: Script, task: Callable[[Script], None], tiny_networks: None) -> None:
    task(script)
