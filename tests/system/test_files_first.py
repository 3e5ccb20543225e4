"""`dataloader=auto`: a new run writes the FFCV files of its images first, if it would end earlier so."""

import os
import shutil
import signal
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from launcher.config.compose import Composed, compose
from launcher.config.groups import machines
from launcher.config.resolved import read
from launcher.config.schema import Hardware
from launcher.data.workers import quiet
from launcher.launch import files_first as writing
from launcher.launch.devices import Devices
from launcher.launch.prepare_run import prepare_run
from launcher.records.run_folder import RunFolder
from launcher_lab.cli.machine_offers import offers_on
from launcher_lab.predict import files_first as deciding
from launcher_lab.predict.prediction import efficiencies
from tests.commands import execute, output_of
from tests.counted_steps import made_up, worthwhile
from tests.images import write_images
from tests.runs import Train, ended, processes_of, wait_for

TORCH_NAMES = {
    "p4d_24xlarge": "NVIDIA A100-SXM4-40GB",
    "p5_48xlarge": "NVIDIA H100 80GB HBM3",
    "lambda_1x_h100": "NVIDIA H100 80GB HBM3",
    "g5_xlarge": "NVIDIA A10G",
}
RUN = [
    *("recipe=mild", "model=resnet18", "epochs=2", "batch_size=100", "eval_batch_size=4", "schedule.fit=on"),
    *("dataset=image_folder", "dataset.path=images", "dataset.native_size=32", "dataloader.workers=1"),
    *("launch=cpu", "launch.nproc=1", "logger.tensorboard=false", "algorithms.ema=off"),
]


def without_size() -> None:
    """Predict files without a size."""
    efficiencies()["prepare"]["bytes"] = 0


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Write class folders of many links to one image, which takes 0.2 MB in files."""
    one = tmp_path / "one.jpg"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (300, 300, 3), dtype=np.uint8)).save(one)
    for split, count in (("train", 400), ("val", 4)):
        for number in range(count):
            folder = tmp_path / "images" / split / f"class{number % 2}"
            folder.mkdir(parents=True, exist_ok=True)
            os.link(one, folder / f"{number}.jpg")
    return tmp_path / "images"


@pytest.fixture
def gpu(train: Train) -> Train:
    return replace(train, around=(worthwhile,))


def loader_of(train: Train, run: str) -> str:
    return str(read(RunFolder(train.folder / "runs" / run).config).dataloader.name)


def written(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}


@pytest.mark.system
def test_a_killed_run_continues_to_write_and_then_reads_the_files(gpu: Train, images: Path) -> None:
    folder = images / "ffcv"
    for number, size in ((signal.SIGTERM, 1e7), (signal.SIGKILL, 3e7)):
        process = gpu.start(*RUN, "run_name=run")
        wait_for(lambda size=size: any(one.stat().st_size > size for one in folder.glob("train*.partial")))
        process.send_signal(number)
        output, _ = process.communicate(timeout=100)
        assert ("stopped; the same command continues to write the files" in output) == (number == signal.SIGTERM)
        wait_for(lambda: not processes_of(gpu.folder / "runs" / "none"))
        assert not (gpu.folder / "runs").exists()
        assert not list(folder.glob("*.beton"))
    output = gpu(*RUN, "run_name=run").stdout
    assert f"note: {folder}: FFCV files would save" in output
    assert "so they are written first" in output
    assert "dataloader=torchvision reads the images" in output
    assert loader_of(gpu, "run") == "ffcv"
    files = written(folder)
    gpu("prepare", "dataset=image_folder", f"dataset.path={images}", "dataloader.folder=uninterrupted")
    assert files == written(gpu.folder / "uninterrupted")
    times = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    gpu("resume", "runs/run", "epochs=3")
    assert "written first" not in gpu(*RUN, "run_name=other", "seed=7").stdout
    assert (loader_of(gpu, "run"), loader_of(gpu, "other")) == ("ffcv", "ffcv")
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == times


@pytest.mark.system
def test_the_doctor_prints_what_a_run_would_decide_and_writes_nothing(gpu: Train, train: Train, images: Path) -> None:
    assert "so they are written first" in gpu("doctor", *RUN).stdout
    assert not (images / "ffcv").exists()
    assert "FFCV files are written by themselves only for known GPUs" in train("doctor", *RUN).stdout
    assert "FFCV" not in train("doctor", *RUN, "dataloader=torchvision").stdout


@pytest.mark.system
def test_two_nodes_write_once(gpu: Train, images: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        words = [*RUN, "launch.nnodes=2", f"launch.rdzv=127.0.0.1:{free.getsockname()[1]}", "run_name=both"]
    first = gpu.start(*words)
    wait_for(lambda: any((images / "ffcv").glob("train*.partial")))
    second = gpu.start(*words)
    outputs = [ended(one)[0] for one in (first, second)]
    assert f"process {first.pid} on " in outputs[1]
    assert f"writes FFCV files in {images}/ffcv; waiting for them" in outputs[1]
    assert loader_of(gpu, "both") == "ffcv"


@pytest.mark.system
@pytest.mark.parametrize(
    ("around", "expected"),
    [((), "but they need 118.8 GB, and the disk has 0.0"), ((without_size,), "No space left on device")],
)
def test_a_full_disk_is_told_before_or_the_images_are_read(
    around: tuple[Callable[[], None], ...], expected: str, gpu: Train, images: Path, small_disk: Path
) -> None:
    gpu = replace(gpu, around=(*gpu.around, *around))
    output = gpu(*RUN, "run_name=run", f"dataloader.folder={small_disk}").stdout
    (line,) = [line for line in output.splitlines() if "reading the images" in line]
    assert expected.replace("118.8", "0.1") in line
    assert loader_of(gpu, "run") == "torchvision"
    assert written(small_disk) == {}


@pytest.mark.system
def test_images_that_cannot_be_decoded_are_no_reason_to_end(gpu: Train, images: Path) -> None:
    (images / "train" / "class0" / "broken.jpg").write_bytes(b"no image")
    done = gpu(*RUN, "run_name=run", code=2)
    assert "reading the images, since the FFCV files are not complete: 1 of 401 images" in done.stdout
    assert "broken.jpg cannot be read" in done.stderr
    assert loader_of(gpu, "run") == "torchvision"
    gpu(*RUN, "run_name=skipped", "dataset.skip_bad=true")
    assert loader_of(gpu, "skipped") == "ffcv"


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("launcher_lab.predict.prediction.counted_steps", made_up)
    monkeypatch.chdir(tmp_path)


def of_the_run(machine: Hardware, composed: Composed, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the line of a run on a machine that looks like one of conf/hardware, but does not write."""
    memory = int((machine.memory or 0) * 2**30)
    monkeypatch.setattr(writing, "usable_cores", lambda: machine.cores)
    monkeypatch.setattr(writing, "usable_memory", lambda: (memory, memory))
    usage = SimpleNamespace(free=1e9 * (machine.disk or 10**6), total=0)
    monkeypatch.setattr(writing.shutil, "disk_usage", lambda folder: usage)
    lines: list[str] = []
    monkeypatch.setattr(writing, "_show", lines.append)
    monkeypatch.setattr(writing, "_write", lambda *_: None)
    monkeypatch.setattr(writing, "disk_speed", lambda folder: None)
    devices = Devices("cuda", machine.gpus or 1, gpu=TORCH_NAMES[machine.name])
    prepared = prepare_run(composed, devices=devices, must_exist=False)
    with_files = writing.files_first(composed, prepared, quiet)
    assert (with_files is not None) == any("so they are written" in line for line in lines)
    return "".join(line.partition(": ")[2] for line in lines)


@pytest.mark.parametrize("name", TORCH_NAMES)
@pytest.mark.parametrize("recipe", ["mild", "medium", "hot"])
def test_plan_and_run_decide_the_same(
    name: str, recipe: str, by_hand: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine = machines()[name]
    composed = compose([f"recipe={recipe}", "dataset=imagenet", f"dataset.path={tmp_path / 'none'}"])
    offered = offers_on(composed, [machine])
    line = of_the_run(machine, composed, monkeypatch)
    assert [line] == [one for one in offered.remedies if "FFCV files would" in one] or not line
    writes = any("so they are written" in one for one in offered.remedies)
    assert {one.prediction.writing > 0 for one in offered.offers} == {writes}
    assert ("so they are written" in line) == writes


def test_the_time_of_a_plan_has_the_writing(by_hand: None) -> None:
    words = ["recipe=hot", "dataset=imagenet"]
    first, images, files = (
        next(one for one in offers_on(compose([*words, *more]), [machines()["p4d_24xlarge"]]).offers if not one.spot)
        for more in ([], ["dataloader=torchvision"], ["dataloader=ffcv"])
    )
    took = first.prediction.writing
    # note: by which encoding 1,331,167 images prolongs the first epoch and evaluation
    assert 150 < took < 400
    assert first.wall.seconds == pytest.approx(files.wall.seconds + took)
    assert first.wall.seconds + took <= images.wall.seconds
    assert (images.prediction.writing, files.prediction.writing) == (0, 0)
    text = output_of("plan", *words, "--on", "all")
    assert "note: FFCV files are written on " in text
    assert "p4d_24xlarge" in text.partition("are written on ")[2].partition(";")[0]
    job = output_of("submit", "--slurm", *words, "dataset.path=/data", "hardware=p4d_24xlarge")
    assert " of it to write FFCV files, predicted: " in job


@pytest.mark.parametrize(
    ("changes", "words", "reason"),
    [
        ({"memory": 400.0}, [], "do not fit into memory"),
        ({"memory": None}, [], "do not fit into memory"),
        ({"disk": 100.0}, [], "the disk has 100.0"),
        ({}, ["epochs=8", "schedule.fit=on"], "or twice as long on a slow disk"),
        ({}, ["stop.minutes=8"], "or twice as long on a slow disk"),
        ({"cores": 192}, [], "written while the first epoch trains"),
        ({}, [], "written first"),
        ({}, ["dataset.skip_bad=true"], "written first"),
    ],
)
def test_files_are_written_where_they_fit_and_pay(
    changes: dict[str, object], words: list[str], reason: str, by_hand: None
) -> None:
    composed = compose(["recipe=hot", "dataset=imagenet", *words])
    machine = replace(machines()["p4d_24xlarge"], **changes)  # type: ignore[arg-type]
    plan = prepare_run(composed, devices=Devices("cuda", 8), must_exist=False).plan
    assert composed.files is not None
    decision = deciding.files_first(plan, composed.files, machine)
    assert decision is not None
    assert reason in decision.line
    assert decision.writes == reason.startswith("written")
    assert decision.while_training == reason.startswith("written while")


@pytest.mark.parametrize(
    ("speed", "words", "line"),
    [
        (None, [], "so they are written first"),
        (9e9, [], "so they are written first"),
        (3e8, [], "so they are written while the first epoch trains; writing them takes some 21 min"),
        (3e7, [], "but writing them takes some 3 h 37 min"),
        (3e7, ["epochs=8", "schedule.fit=on"], "or twice as long on a slow disk"),
    ],
)
def test_the_disk_is_measured_where_that_decides(
    speed: float | None, words: list[str], line: str, by_hand: None
) -> None:
    composed = compose(["recipe=hot", "dataset=imagenet", *words])
    plan = prepare_run(composed, devices=Devices("cuda", 8), must_exist=False).plan
    assert composed.files is not None
    measured: list[float] = []
    decision = deciding.files_first(
        plan, composed.files, machines()["p4d_24xlarge"], lambda size: [measured.append(size), speed][1]
    )
    assert decision is not None
    assert line in decision.line
    assert len(measured) == (not words)
    assert all(390 < one < 392 for one in measured)
    assert ("as the disk writes 0.03 GB/s" in decision.line) == (speed == 3e7 and not words)


def test_several_nodes_measure_no_disk(images: Path, by_hand: None, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[Path] = []
    monkeypatch.setattr(writing, "disk_speed", measured.append)
    for nodes in (1, 2):
        words = ["recipe=mild", "dataset=image_folder", f"dataset.path={images}", "batch_size=100", "schedule.fit=on"]
        composed = compose([*words, f"launch.nnodes={nodes}", "run_name=run"])
        prepared = prepare_run(composed, devices=Devices("cuda", 1, gpu=TORCH_NAMES["p5_48xlarge"]))
        for key in ("margin", "bytes"):
            monkeypatch.setitem(efficiencies()["prepare"], key, -1e9 if key == "margin" else 1)
        monkeypatch.setattr(deciding, "_NOTED", -1e9)
        assert writing.decided(composed, prepared) is not None
        assert measured == [images]


def test_an_unknown_gpu_or_network_decides_nothing(by_hand: None, monkeypatch: pytest.MonkeyPatch) -> None:
    composed = compose(["recipe=hot", "dataset=imagenet"])
    plan = prepare_run(composed, devices=Devices("cuda", 8), must_exist=False).plan
    assert composed.files is not None
    machine = machines()["p4d_24xlarge"]
    assert deciding.files_first(plan, composed.files, replace(machine, gpu="NVIDIA Tomorrow")) is None
    monkeypatch.setattr("launcher_lab.predict.prediction.counted_steps", lambda plan: 1 / 0)
    assert deciding.files_first(plan, composed.files, machine) is None


def test_a_cpu_and_few_images_change_nothing(train: Train, by_hand: None, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree("images", ignore_errors=True)
    images = write_images(Path("images"), {"train": 8, "val": 4})
    composed = compose(["recipe=mild", "dataset=image_folder", f"dataset.path={images}", "batch_size=8"])
    monkeypatch.setattr(writing, "_write", lambda *_: 1 / 0)
    for devices in (Devices("cpu", 1), Devices("cuda", 1, gpu="NVIDIA H200")):
        prepared = prepare_run(composed, devices=devices)
        assert writing.files_first(composed, prepared, quiet) is None
    assert execute("plan", "recipe=mild", f"dataset.path={images}", "batch_size=8", "schedule.fit=on")[0] == 0
