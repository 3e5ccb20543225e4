"""All verbs refuse the same runs; a plan has the processes and images of the run, whose start accepts what it does."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from fsspec.registry import known_implementations
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher import installation
from launcher.compute.probe import ProbeResult
from launcher.config.compose import compose
from launcher.config.groups import options
from launcher.data import jpeg
from launcher.errors import UserError
from launcher.launch import devices
from launcher.launch.devices import Devices
from launcher.launch.prepare import left_to_the_start, prepare, prepare_plan
from launcher.launch.start import few_of
from launcher.prediction.meta_tensors import nothing_computed
from launcher.rank.group import Ranks
from launcher.training.evaluation import outside_steps
from launcher.training.rehearsal import rehearse
from launcher.training.trainer import build_trainer
from launcher.training.worker import capture_run
from tests import trainers
from tests.commands import execute, output_of, refused
from tests.images import write_images

TINY = ["dataset=shapes", "dataset.train_samples=32", "dataset.val_samples=10", "model=resnet18", "batch_size=8"]
TINY += ["schedule.warmup=1ba", "recipe=none"]
ON_A_CPU = [*TINY, "launch=cpu"]
VERBS: tuple[list[str], ...] = (["plan"], ["submit", "--slurm"], ["estimate"], [])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def _settings_of_torch() -> Iterator[None]:
    """Restore what building a run sets for its process."""
    yield
    torch.use_deterministic_algorithms(False)


def refused_by_all(*words: str, verbs: tuple[list[str], ...] = VERBS) -> str:
    """Return the error lines of the commands, which must be the same; none may write a run folder."""
    lines = set()
    for verb in verbs:
        code, _, errors = execute(*verb, *words)
        assert code == 2, verb
        lines.add(errors)
    assert len(lines) == 1
    assert not Path("runs").exists()
    return lines.pop()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["precision=bf16", "dataset.native_size=8"], "precision=bf16 (command line): bfloat16 computes wrong"),
        (["checkpoint.mirror=nope://runs", "run_name=mine"], "checkpoint.mirror=nope://runs"),
        (["model.weights=/nowhere"], "model.weights=/nowhere"),
        (["launch.rdzv=here"], "launch.rdzv=here (command line): must be HOST:PORT"),
        (["model=vit", "model.patch_size=16", "dataset.native_size=24"], "which vit does not accept"),
    ],
)
def test_all_commands_refuse_the_same(words: list[str], expected: str) -> None:
    assert expected in refused_by_all(*ON_A_CPU, *words)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["cuda_graphs=require"], "=require (command line): cannot capture steps (they need a GPU of NVIDIA"),
        (["batch_size=1", "dataset.native_size=32"], "batch_size=1 (command line): batch norm needs more than one"),
        (["dataloader=synthetic", "dataset.test_path=x"], "x: needs class names, which this data set does not have"),
        (["logger=wandb"], "logger=wandb: needs the package wandb"),
        (["logger=wandb", "optimizer.momentum=2"], "optimizer.momentum=2"),
        (["model=vit", "model.patch_size=16", "dataset.native_size=24", "logger=wandb"], "logger=wandb: needs the"),
        (["batch_size=auto"], "batch_size=auto: fills the memory of GPUs, and this run trains on the CPU"),
        (["batch_size=64"], "batch_size=64 (command line): "),
        (["dataset=image_folder", "dataset.path=/nowhere"], "dataset.path=/nowhere"),
        (["algorithms=[distillation]", "algorithms.distillation.teacher=/nowhere"], "teacher=/nowhere: is neither a"),
        (["epochs=2", "schedule.warmup=9ep"], "schedule.warmup=9ep (command line): "),
    ],
)
def test_a_start_refuses(words: list[str], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "_is_installed", lambda module: False)
    monkeypatch.setattr(jpeg, "find_spec", lambda module: module != "cv2")
    assert expected in refused_by_all(*ON_A_CPU, *words, verbs=([],))


def test_a_name_that_is_taken_is_refused_by_all(folder: Path) -> None:
    (folder / "runs" / "mine").mkdir(parents=True)
    (folder / "runs" / "mine" / "config.yaml").write_text("")
    several = ["launch.nnodes=2", "launch.rdzv=127.0.0.1:9"]
    for verb in (["plan"], ["submit", "--slurm"], ["estimate"], []):
        assert "run_name=mine: runs/mine exists" in refused(*verb, *ON_A_CPU, "run_name=mine")
    assert "run_name=mine: runs/mine exists" in refused("submit", "--slurm", *ON_A_CPU, "run_name=mine", *several)
    assert output_of("submit", "--kubernetes", *ON_A_CPU, "run_name=mine")


def test_a_mirror_needs_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(known_implementations, "cloud", {"class": "cloudfs.System", "err": "Install cloudfs"})
    words = [*ON_A_CPU, "checkpoint.mirror=cloud://runs", "run_name=mine"]
    assert "checkpoint.mirror=cloud://runs: needs a package (Install cloudfs); run" in refused_by_all(*words)
    for elsewhere in (["--kubernetes"], ["--slurm", "submit.program=/opt/train"]):
        assert output_of("submit", *elsewhere, *words)


def test_a_mirror_needs_a_name_which_a_job_has() -> None:
    words = [*ON_A_CPU, "checkpoint.mirror=memory://runs"]
    for verb in (["plan"], ["estimate"], []):
        assert "checkpoint.mirror=memory://runs: needs run_name=NAME" in refused(*verb, *words)
    assert output_of("submit", "--slurm", *words)


def test_more_processes_than_gpus_of_the_hardware_are_refused() -> None:
    words = [*TINY, "hardware=p4d_24xlarge", "launch.nproc=16", "batch_size=16"]
    assert "launch.nproc=16" in refused("plan", *words)
    for verb in (["submit", "--slurm"], ["submit", "--kubernetes"]):
        assert "launch.nproc=16: hardware has 8 GPUs; set launch.nproc=8" in refused(*verb, *words)


def test_packages_are_those_of_the_machine_that_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "_is_installed", lambda module: False)
    words = [*TINY, "logger=wandb", "hardware=p4d_24xlarge"]
    assert "logger=wandb: needs the package wandb" in refused("submit", "--slurm", *words)
    assert output_of("submit", "--kubernetes", *words)
    assert output_of("submit", "--slurm", *words, "submit.program=/opt/train")
    prepared = prepare(compose(words), devices=Devices("cuda", 8), packages=False)
    assert "the packages of the logger and the decoder" in left_to_the_start(prepared)


def test_a_plan_lists_what_only_the_start_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "visible_gpus", lambda: 8)
    words = ["recipe=mild", "dataset=imagenet", "dataset.path=/not/here", "launch.nnodes=2"]
    words += ["dataset.test_path=s3://mine/test", "model.weights=torchvision", "compile=require"]
    words += ["checkpoint.mirror=s3://mine/runs", "run_name=a"]
    later = json.loads(output_of("plan", *words, "--json"))["checked_at_the_start"]
    assert later == [
        "the images, dataset.path=/not/here",
        "the images, dataset.test_path=s3://mine/test",
        "the download of model.weights=torchvision",
        "checkpoint.mirror=s3://mine/runs",
        "the connection of 2 nodes by launch.rdzv",
        "the GPUs, their memory and compile=require",
    ]
    assert f"checked at the start: {later[0]}, {later[1]}, " in output_of("plan", *words)
    assert "checked at the start" not in output_of("plan", *ON_A_CPU)


def test_a_run_prints_three_lines_of_notes_at_most_and_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert few_of(["a", "b", "c"]) == ["a", "b", "c"]
    *first, more = few_of(["a", "b", "c", "d"])
    assert (first, more[:28]) == (["a", "b"], "2 more, which `train plan` p")
    monkeypatch.setattr("launcher.launch.prepare.notes", lambda plan: ["twice", "twice"])
    assert output_of("plan", *ON_A_CPU).count("note: twice") == 1


# -- any config

TASKS = {
    "classification": ["dataset=shapes"],
    "multilabel": ["dataset=scenes", "task=multilabel", "loss=bce"],
    "regression": ["dataset=scene_colours", "task=regression", "loss=huber"],
}
MODELS = {
    "resnet18": ["model=resnet18"],
    **{
        f"vit/{size}": ["model=vit", "model.width=32", "model.depth=2", "model.heads=4", f"model.patch_size={size}"]
        for size in (2, 4, 8, 16)
    },
    **{
        name: ["model=timm", f"model.architecture=test_{name}"]
        for name in ("resnet", "vit", "efficientnet", "byobnet", "convnext")
    },
}
# The distillation's teacher would be downloaded.
ALGORITHMS = [name for name in trainers.ALGORITHMS if name != "distillation"]
VALUES: dict[str, st.SearchStrategy[object]] = {
    "dataset.native_size": st.sampled_from([4, 8, 12, 16, 24, 32, 48, 64]),
    "device_batch_size": st.integers(1, 4),
    "precision": st.sampled_from(["auto", "bf16", "fp16", "fp32"]),
    "optimizer": st.sampled_from(options("optimizer")),
    "loss": st.sampled_from(options("loss")),
    "algorithms.selective_backprop.scale": st.sampled_from([0.1, 0.3, 0.75]),
    "algorithms.progressive_resizing.size_multiple": st.sampled_from([1, 2, 8]),
    "schedule": st.sampled_from([name for name in options("schedule") if name != "multi_step"]),
    "epochs": st.integers(1, 3),
    "image.train_size": st.sampled_from([16, 64, 96, 160, 224]),
    "image.eval_size": st.sampled_from([32, 64, 128, 224]),
    "cuda_graphs": st.sampled_from(["on", "require"]),
    "model.checkpointing": st.just("on"),
    "deterministic": st.just("true"),
    "schedule.fit": st.just("on"),
}


@st.composite
def configs(draw: st.DrawFn) -> list[str]:
    """Draw the words of a run on the CPU that needs no files."""
    words = ["recipe=none", "launch=cpu", "dataloader=synthetic", "dataloader.batches=1", "dataset.val_samples=20"]
    words += draw(st.sampled_from([*TASKS.values()]))
    chosen = st.lists(st.sampled_from(ALGORITHMS), max_size=4, unique=True)
    of_a_recipe = st.sampled_from(trainers.RECIPES).map("recipe={}".format)
    words.append(draw(chosen.map(lambda names: f"algorithms=[{','.join(names)}]") | of_a_recipe))
    words += draw(st.sampled_from([*MODELS.values()]))
    batch = draw(st.integers(1, 8))
    words += [f"batch_size={batch}", f"dataset.train_samples={draw(st.integers(batch, 4 * batch))}"]
    words.append(f"schedule.warmup={draw(st.sampled_from(['0ba', '1ba', '0.2dur']))}")
    return words + [f"{key}={draw(VALUES[key])}" for key in draw(st.sets(st.sampled_from([*VALUES])))]


@pytest.mark.slow
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(words=configs())
def test_what_a_plan_accepts_its_start_accepts(words: list[str]) -> None:
    starts_if_planned(words)


@pytest.mark.parametrize(
    "words",
    [
        ["precision=bf16", "dataset.native_size=8"],
        ["batch_size=1", "dataset.native_size=16"],
        ["device_batch_size=1", "dataset.native_size=32", "algorithms=[stochastic_depth]"],
        [*MODELS["vit/8"], "dataset.native_size=56", "algorithms=[selective_backprop]"],
        ["dataset=shapes", "dataset.native_size=4", "algorithms=[whitening]"],
        ["dataset.native_size=16", "algorithms=[ema, mixup]"],
    ],
)
def test_what_a_plan_accepts_of_these_its_start_accepts(words: list[str]) -> None:
    starts_if_planned([*ON_A_CPU, "dataloader=synthetic", *words])


def starts_if_planned(words: list[str]) -> None:
    """Start a run up to its first step without computing, if its plan is accepted."""
    try:
        composed = compose(words)
        prepare_plan(composed)
    except UserError:
        return
    run = build_trainer(prepare(composed).plan.config, Ranks(0, 1, 0, 1, torch.device("cpu")))
    step, size = run.train_step, run.plan.evaluation_size
    with nothing_computed(), torch.no_grad():
        capture_run(run)
        inputs = step.task.prepare(outside_steps(step.task.blank(2, size, run.ranks.device)[0])).inputs
        with step.precision.autocast():
            outputs = run.evaluation_model.eval()(inputs)
        assert outputs.shape == step.task.output_shape(2, size)
    with nothing_computed():
        rehearse(run)


def test_what_is_known_without_the_images_is_refused_before_they_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.launch.prepare.inspect_data", lambda *_, **__: pytest.fail("images are listed"))
    (Path("runs") / "taken").mkdir(parents=True)
    (Path("runs") / "taken" / "metrics.jsonl").touch()
    words = [*ON_A_CPU, "checkpoint.mirror=file:///bucket", "stop.minutes=1", "launch.nnodes=2", "launch.rdzv=a:1"]
    with pytest.raises(UserError, match=r"(?s)checkpoint.mirror=.* needs run_name=NAME.*stop.minutes=1.* one node"):
        prepare(compose(words))
    with pytest.raises(UserError, match="run_name=taken"):
        prepare(compose([*ON_A_CPU, "run_name=taken"]))


def test_several_nodes_need_a_name_before_the_images_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.launch.prepare.inspect_data", lambda *_, **__: pytest.fail("images are listed"))
    assert "run_name=null: is required with launch.nnodes=2" in refused(*ON_A_CPU, "launch.nnodes=2")


# -- processes and images of a plan


@pytest.mark.parametrize(
    ("words", "processes"),
    [
        ([], 4),
        (["launch.nnodes=2"], 8),
        (["hardware=p4d_24xlarge"], 8),
        (["hardware=p4d_24xlarge", "launch.nnodes=2"], 16),
        (["launch.nnodes=2", "launch.nproc=2"], 4),
        (["launch=cpu"], 1),
        (["launch=cpu", "launch.nnodes=2"], 2),
    ],
)
def test_a_plan_is_for_this_machine_unless_the_command_line_sets_another(
    words: list[str], processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "visible_gpus", lambda: 4)
    composed = compose(["recipe=mild", "dataset=imagenet", *words])
    assert prepare_plan(composed).plan.world_size == processes


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Twelve training images of two classes, and four for validation."""
    return write_images(tmp_path / "images", {"train": 6, "val": 2})


@pytest.mark.parametrize(
    ("gpus", "named", "launch"),
    [
        (0, "dataset.path", []),
        (3, "environment", []),
        (0, "environment", ["launch=cpu"]),
        (3, "dataset.path", ["launch=cpu"]),
        (0, "environment", ["launch.nproc=3"]),
        (3, "dataset.path", ["launch.nproc=3"]),
        (3, "environment", ["launch=cpu", "launch.nproc=3"]),
    ],
)
def test_a_plan_has_the_images_and_processes_of_the_run(
    gpus: int, named: str, launch: list[str], images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "visible_gpus", lambda: gpus)
    monkeypatch.setattr(
        devices, "run_probe", lambda script: ProbeResult({"cuda": "13.0", "gpus": [{}] * gpus, "error": ""})
    )
    recipe = "recipe=hot" if gpus else "schedule.warmup=1ba"
    words = [recipe, *launch, "batch_size=6", "device_batch_size=null", "schedule.fit=on"]
    if named == "environment":
        monkeypatch.setenv("TRAIN_DATA", str(images))
    else:
        words.append(f"dataset.path={images}")
    planned = json.loads(output_of("plan", *words, "--json"))
    run = prepare(compose(words)).plan
    assert planned["train_samples"] == run.train_samples == 12
    processes = 1 if launch == ["launch=cpu"] else 3 if launch or gpus else 1
    assert planned["processes"] == run.world_size == processes


@pytest.mark.parametrize("word", ["launch.nproc=4", "launch.device=cuda"])
def test_a_plan_refuses_processes_that_this_machine_does_not_start(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "visible_gpus", lambda: 3 if "nproc" in word else 0)
    assert f"{word}: " in refused("plan", "recipe=mild", word)


def test_counts_of_the_config_replace_only_missing_images(images: Path) -> None:
    counts = ["dataset.train_samples=99", "dataset.classes=2", "dataset.val_samples=50", "batch_size=6"]
    words = ["plan", "recipe=mild", "schedule.fit=on", *counts, "launch=cpu"]
    missing = f"{images}/not is not on this machine; using the counts of dataset=imagenet, 99 training images"
    assert f"note: {missing}" in output_of(*words, f"dataset.path={images}/not")
    assert "2 classes" in output_of(*words, f"dataset.path={images}", "dataset.train_samples=null")
    assert "not on this machine" not in output_of(*words)
    assert "has 2 classes" in refused(*words, f"dataset.path={images}", "dataset.classes=5")
