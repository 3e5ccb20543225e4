"""The grid of a tradeoff curve: its runs, their order and names, and which are skipped, resumed or refused."""

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from launcher.cli import main as cli
from launcher.config.compose import compose
from launcher.config.resolved import read, write
from launcher.data.identity import identity
from launcher.errors import UserError
from launcher.launch import devices
from launcher.plan.plan import Plan
from launcher.records.run_folder import create, note_dataset
from launcher_lab.cli import training
from launcher_lab.cli.grid import expand
from launcher_lab.cli.training import check_all, check_existing
from tests.commands import execute, refused
from tests.grids import train_by
from tests.images import write_images
from tests.runs import SMALL, Here

SHAPES = ["dataset=shapes", "model=resnet18", "launch=cpu", "batch_size=64"]


def test_all_combinations_have_their_own_names_with_seeds_outermost() -> None:
    cells = expand(["recipe=mild,hot", "epochs=9,18", "seed=0,1", *SHAPES])
    assert [cell.folder.name for cell in cells] == [
        f"{recipe}-shapes-{epochs}ep-seed{seed}" for seed in (0, 1) for recipe in ("mild", "hot") for epochs in (9, 18)
    ]
    assert len({cell.folder for cell in cells}) == 8
    assert all(cell.state is None for cell in cells)


def test_lengths_dilate_the_recipes_schedule() -> None:
    """A quarter of 36 epochs has a quarter of the 8 epochs of warmup."""
    (cell,) = expand(["recipe=mild", "epochs=9", "dataset=shapes", "model=resnet18", "batch_size=64"])
    plan = Plan(cell.composed.config, 1, 6400)
    assert (cell.composed.config.epochs, plan.epochs) == (36, 9)
    assert plan.warmup_steps == 2 * 100
    (plain,) = expand(["recipe=mild", "epochs=18", "schedule.dilate=1", *SHAPES])
    assert (plain.composed.config.epochs, Plan(plain.composed.config, 1, 6400).warmup_steps) == (18, 8 * 100)


def test_other_values_may_vary_too_and_lists_stay_lists() -> None:
    cells = expand(["recipe=mild", "optimizer.lr=1,2", "algorithms=[ema,blurpool]", *SHAPES])
    assert [cell.composed.config.optimizer.lr for cell in cells] == [1.0, 2.0]
    assert [cell.folder.name for cell in cells] == [f"mild-shapes-optimizer.lr={lr}-36ep-seed42" for lr in (1, 2)]
    assert cells[0].composed.config.algorithms.get("ema") is not None


def test_every_error_is_reported_once() -> None:
    with pytest.raises(UserError) as caught:
        expand(["recipe=mild,hott", "epoch=3", "seed=0,1,2"])
    messages = [str(problem) for problem in caught.value.problems]
    assert len(messages) == len(set(messages)) == 2
    assert any("did you mean hot?" in line for line in messages)
    assert any("did you mean epochs?" in line for line in messages)
    with pytest.raises(UserError, match="cannot be set for a grid"):
        expand(["run_name=a", "seed=0,1"])


GRID = ["recipe=mild", "epochs=9,18", "seed=0,1", *SHAPES]


@pytest.mark.parametrize("word", ["batch_size=glob(*)", "image=glob(*)", "algorithms.augmix.severity=glob(*)"])
def test_a_glob_is_refused(word: str) -> None:
    with pytest.raises(UserError, match="glob"):
        expand(["recipe=mild", *SHAPES, word])


def test_a_run_that_fails_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    codes = iter([1, 0, 0, 0])
    train_by(lambda words: next(codes), monkeypatch)
    assert cli.main(["curve", *GRID]) == 1
    assert "1 failed, 3 finished" in capsys.readouterr().out
    assert "dataset.path=null" in refused("curve", *GRID, "dataset=imagenet")


def test_a_wrong_list_is_reported_once_and_too_many_runs_are_refused() -> None:
    with pytest.raises(UserError, match=r"image.scale=\[0.2\] .*at least 2") as caught:
        expand(["image.scale=[0.2]", "seed=0,1"])
    assert len(caught.value.problems) == 1
    with pytest.raises(UserError, match=r"seed=range\(0,1000000000\) .*more than 1,000 runs"):
        expand(["recipe=mild,hot", "seed=range(0,1000000000)"])


def make_folder(folder: Path, *words: str, images: str | None = None) -> None:
    """Make the run folder of a config before its first step; `images` is the identity of its data set."""
    run = create(folder.parent, folder.name, unique=False)
    write(compose(words).config, run.config)
    if images is not None:
        note_dataset(run, images)


@pytest.fixture
def flowers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_images(tmp_path / "flowers", {"train": 2, "val": 2}, size=(32, 32))
    return tmp_path / "flowers"


def test_a_run_on_other_images_does_not_count_as_finished(tmp_path: Path, flowers: Path) -> None:
    words = ["dataset=image_folder", f"dataset.path={flowers}"]
    config = compose(words).config
    make_folder(tmp_path / "same", *words, images=identity(config))
    make_folder(tmp_path / "moved", "dataset=image_folder", "dataset.path=/old/place", images=identity(config))
    for name in ("same", "moved", "missing"):
        check_existing(tmp_path / name, config, here=True)
    make_folder(tmp_path / "other", *words, images="c" * 64)
    make_folder(tmp_path / "before", "dataset=image_folder", "dataset.path=/data/cars")
    for name in ("other", "before"):
        with pytest.raises(UserError, match=rf"{name} is a run on other images \(/.*runs=FOLDER"):
            check_existing(tmp_path / name, config, here=True)
    make_folder(tmp_path / "before and same", *words)
    check_existing(tmp_path / "before and same", config, here=True)


@pytest.mark.slow
def test_a_grid_whose_config_the_launcher_completes_continues(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher shortens the schedule, reads the surgery and digest of the weights, and makes paths absolute."""
    train_by(cli.main, monkeypatch)
    write_images(here.folder / "images", {"train": 8, "val": 2}, size=(32, 32))
    here.small("source", "algorithms=[blurpool,squeeze_excite]", "epochs=1", "schedule.warmup=0ba")
    words = ["recipe=mild", "model=resnet18", "epochs=1,2", "batch_size=4", "schedule.warmup=8ep", "schedule.fit=on"]
    words += ["dataset.path=images", "dataset.native_size=32", "launch=cpu", "dataloader.workers=0"]
    grid = ["curve", *words, "model.weights=runs/source", "runs=grid"]
    assert "to continue" in here(*grid, stop_after=6, code=143).stdout
    assert "1 already finished, 1 finished" in here(*grid).stdout
    assert "2 already finished" in here(*grid).stdout
    assert "with other values of optimizer.momentum" in here(*grid, "optimizer.momentum=0.5", code=2).stderr


def test_an_ablation_trains_its_grid_and_compares_the_runs(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs have the values that `auto` stands for, on a processor with AMX; rows of one config share theirs."""
    trained: list[str] = []
    train_by(lambda words: trained.append(words[-1].partition("=")[2]) or cli.main(words), monkeypatch)
    monkeypatch.setattr(devices, "processor_features", lambda: ["amx_bf16"])
    own = ("epochs=", "schedule.", "algorithms.", "dataset.native_size", "dataset.train_samples", "dataset.val_samples")
    words = ["ablate", "--grid", *(word for word in SMALL if not word.startswith(own)), "schedule.warmup=0ba"]
    words += ["dataset.native_size=96", "dataset.train_samples=32", "dataset.val_samples=16", "epochs=1", "seed=0"]
    words += ["algorithms=[]", "--with", "blurpool"]
    shown = here(*words, "--run", "--json").stdout
    assert trained == [f"mild-shapes-{name}-1ep-seed0" for name in ("all", "with_blurpool")]
    config = read(here.folder / "runs" / trained[0] / "config.yaml")
    assert "auto" not in (config.precision, config.dataloader.decoder)
    output = json.loads(shown)
    assert [(row["name"], row["measured"]["runs"]) for row in output["grid"]] == [
        ("all", 1), ("none", 1), ("with blurpool", 1),
    ]  # fmt: skip
    assert [(c["algorithm"], c["kind"], c["epochs"]) for c in output["effects"]] == [("blurpool", "with", 1)]
    assert [one["algorithm"] for one in output["tradeoff"]] == ["blurpool"]
    assert "adding it to all" in here(*words, "--run").stdout
    assert len(trained) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["optimizer.lr=0.1,0.2"], "optimizer.lr=0.1,0.2 (command line): takes one value here; use --with"),
        (["--with", "blurpol"], "did you mean blurpool?"),
        (["--with", ""], "--with"),
        (["--with", "'blurpool"], "--with"),
        (["--with", "optimizer.lrr=1"], "did you mean optimizer.lr"),
    ],
)
def test_an_ablation_accepts_several_values_only_of_lengths_and_seeds(words: list[str], message: str) -> None:
    code, _, errors = execute("ablate", "--grid", "recipe=small", *SHAPES, "algorithms=[]", *words)
    assert (code, message in errors) == (2, True)


@pytest.mark.parametrize(
    ("visible", "count", "gpus"),
    [
        (None, 4, [("0", "1"), ("2", "3"), ("4", "5"), ("6", "7")]),
        ("3,5,GPU-1a", 3, [("3",), ("5",), ("GPU-1a",)]),
        (None, 1, [None]),
    ],
)
def test_gpus_are_divided_equally(
    visible: str | None, count: int, gpus: list[tuple[str, ...] | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "visible_gpus", lambda: 3 if visible else 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {*range(20, 36)}, raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    divided = training.parts(count, "auto")
    assert [part.gpus for part in divided] == gpus
    if count > 1:
        assert sorted(core for part in divided for core in part.cores or ()) == [*range(20, 36)]


def test_a_machine_that_cannot_be_divided_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "visible_gpus", lambda: 8)
    monkeypatch.setattr(training, "usable_cores", lambda: 3)
    for count, device, remedy in (
        (3, "auto", "8 GPUs in equal parts; set 1, 2, 4, 8"),
        (4, "cpu", "3 cores; set 1, 2, 3"),
    ):
        with pytest.raises(UserError, match=f"--parallel.*{remedy}"):
            training.parts(count, device)


def test_a_run_of_more_processes_than_its_part_has_gpus_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = expand(["recipe=mild", "dataset=shapes", "seed=0,1", "launch.nproc=2"])
    with pytest.raises(UserError, match=r"set launch\.nproc=1"):
        check_all(cells, here=True, gpus=1)


def allowed_cores() -> str:
    """Return the cores of this process, also where others are simulated."""
    return re.findall(r"Cpus_allowed_list:\s*(\S+)", Path("/proc/self/status").read_text())[0]


def test_a_part_restricts_the_process_to_its_cores() -> None:
    core = int(re.match(r"\d+", allowed_cores())[0])  # type: ignore[index]
    if (child := os.fork()) == 0:
        training.MachinePart(cores=frozenset([core])).enter()
        os._exit(allowed_cores() != str(core))
    assert os.waitpid(child, 0)[1] == 0


def test_a_run_sees_the_gpus_of_its_part_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {}
    fake = SimpleNamespace(Popen=lambda command, **values: seen.update(values), DEVNULL=-3)
    monkeypatch.setattr(training, "subprocess", fake)
    cell = expand(["recipe=mild", *SHAPES])[0]
    training._started(cell, training.MachinePart(("3", "GPU-1a")), ["run"], is_alone=False)
    assert seen["env"]["CUDA_VISIBLE_DEVICES"] == "3,GPU-1a"
    training._started(cell, training.MachinePart(), ["run"], is_alone=True)
    assert seen["env"] == dict(os.environ)
