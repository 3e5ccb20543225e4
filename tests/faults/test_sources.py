"""Each source of images: killed ranks, a cut connection and a lost server lead to the weights of a run without them."""

import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import TERMINATED
from tests.data.conftest import in_turn
from tests.data.sources.buckets import Bucket, Proxy, proxy, use_folders
from tests.data.sources.downloads import parquet, split_column, tables, webdataset, zip_of_folders
from tests.images import write_images
from tests.runs import Train, draw_nothing, ended, processes_of, same, use_tiny, wait_for

pytestmark = pytest.mark.system
pytest.importorskip("pyarrow")

# Two epochs of five steps, for two and for three ranks.
WORDS = [
    *("recipe=mild", "model=resnet18", "epochs=2", "batch_size=12", "eval_batch_size=12", "schedule.warmup=1ba"),
    *("dataset=image_folder", "dataset.native_size=32", "dataloader.workers=0", "dataloader.shuffle_buffer=20"),
    *("launch=cpu", "logger.interval=1ba", "logger.tensorboard=false", "checkpoint.every=1ba", "eval_every=2ep"),
    *("launch.max_restarts=1", "run_name=run"),
]
IMAGES, DEATH = 60, 8
# Ranks end within ten seconds; the rest is for a busy machine.
SECONDS = 50


def die_once() -> None:
    """Kill the launcher of two ranks, or one of three ranks, before a step in the middle of the second epoch.

    A sum of three or more values depends on their order.
    """
    from launcher.training.trainer import Trainer

    count = Trainer.count

    def count_or_die(trainer: Trainer, *arguments: Any) -> None:
        if trainer.next_step == DEATH + 1 and os.environ["RANK"] == "1" and not Path("died").exists():
            Path("died").touch()
            os.kill(os.getppid() if os.environ["WORLD_SIZE"] == "2" else os.getpid(), signal.SIGKILL)
            signal.pause()
        count(trainer, *arguments)

    Trainer.count = count_or_die  # type: ignore[method-assign]


def give_up_soon() -> None:
    """Retry a lost server for a moment, not for a minute, also while preparing."""
    import s3fs

    from launcher.data.ffcv import prepare
    from launcher.data.sources import source

    source._PAUSES, s3fs.S3FileSystem.retries = (0.1,), 1
    # note: workers would retry for a minute
    prepare.in_workers = in_turn


def command(folder: Path, *before: Callable[[], object]) -> Train:
    train = Train(folder, before=(use_tiny, draw_nothing, use_folders, *before))
    train.environment["XDG_CACHE_HOME"] = str(folder / "cache")
    return train


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images"), {"train": IMAGES // 2, "val": 6}, size=(40, 48))


@pytest.fixture(scope="module")
def stored(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Class folders and tar shards of the images."""
    folder = Path(shutil.copytree(images, tmp_path_factory.mktemp("bucket") / "folders")).parent
    (folder / "shards").mkdir()
    return webdataset(images, folder / "shards").parent


@pytest.fixture
def bucket(s3: Bucket, stored: Path) -> Bucket:
    return s3.hold(stored)


def folders(images: Path, to: Path) -> str:
    return str(images)


def in_s3(name: str) -> Callable[[Path, Path], str]:
    return lambda images, to: f"s3://mine/pets/{name}"


def folders_of_gs(images: Path, to: Path) -> str:
    shutil.copytree(images, to.parent / "buckets" / "mine")
    return "gs://mine"


def parquet_of_hf(images: Path, to: Path) -> str:
    parquet(images, to)
    shutil.move(to, to.parent / "buckets" / "datasets" / "pets")
    return "hf://datasets/pets"


@dataclass(frozen=True)
class Case:
    """Where images are, the words of a run, and the folders that have the same order of images."""

    write: Callable[[Path, Path], object]
    words: tuple[str, ...] = ()
    before: tuple[Callable[[], object], ...] = ()
    like: str = "folders"


CASES = {
    "folders": Case(folders),
    "tar shards": Case(webdataset),
    "zip": Case(zip_of_folders),
    "csv": Case(split_column),
    "jsonl": Case(lambda images, to: tables(images, to).parent),
    "parquet": Case(parquet, like="parquet"),
    "s3 folders": Case(in_s3("folders")),
    "s3 shards": Case(in_s3("shards"), like="parquet"),
    "gs folders": Case(folders_of_gs),
    "hf parquet": Case(parquet_of_hf, like="parquet"),
}


def words_of(case: Case, images: Path, folder: Path, ranks: int) -> list[str]:
    (folder / "source").mkdir()
    path = case.write(images, folder / "source")
    return [*WORDS, *case.words, f"dataset.path={path}", f"launch.nproc={ranks}"]


@pytest.fixture(scope="module")
def whole(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], dict[str, object]]:
    """Return what an uninterrupted run of a case decides."""
    known: dict[tuple[str, int], dict[str, object]] = {}

    def decided(name: str, ranks: int) -> dict[str, object]:
        if (name, ranks) not in known:
            case, folder = CASES[name], tmp_path_factory.mktemp("whole")
            train = command(folder, *case.before)
            train(*words_of(case, images, folder, ranks))
            known[name, ranks] = train.decided(folder / "runs" / "run")
        return known[name, ranks]

    return decided


# note: of two ranks the launcher is killed, which no source notices
@pytest.mark.parametrize(("name", "ranks"), [*((name, 3) for name in CASES), ("folders", 2), ("s3 shards", 2)])
def test_ranks_killed_in_an_epoch_resume_to_the_same_bits(
    name: str, ranks: int, images: Path, bucket: Bucket, whole: Callable[..., object], tmp_path: Path
) -> None:
    case, run = CASES[name], tmp_path / "runs" / "run"
    train = command(tmp_path, *case.before, die_once)
    words = words_of(case, images, tmp_path, ranks)
    if ranks == 2:
        ended(train.start(*words), -signal.SIGKILL)
        wait_for(lambda: not processes_of(run))
        output = train("resume", str(run)).stdout
    else:
        output = train(*words).stdout
    assert any(f"resumed at step {step} of 10" in output for step in range(6, 10))
    assert same(train.decided(run), whole(case.like, ranks))


@dataclass(frozen=True)
class Fault:
    """What some GETs of a bucket get, what happens to it after a cut, and the error of a run that ends, a pattern."""

    kind: str = "cut"
    times: int = 1
    then: Callable[[Bucket], None] = lambda bucket: None
    error: str = ""


FAULTS = {
    "cut": Fault(),
    "restarted": Fault(then=Bucket.restart),
    "lost": Fault(then=Bucket.stop, error=".*train resume for a run"),
    "500": Fault("500", 3),
    "short": Fault("short", 3),
    "slow": Fault("slow", 6),
    "403": Fault("403", error="/train/.*: access denied.*"),
    "silent": Fault("silent", IMAGES),
}


@contextmanager
def faulty(folder: Path, bucket: Bucket, name: str, first: int) -> Iterator[tuple[Train, Proxy]]:
    """Let commands in a folder read from the bucket through a proxy with a fault in the GETs from this number on."""
    fault = FAULTS[name]
    train = command(folder, *[give_up_soon] * (name == "lost"))
    faults = dict.fromkeys(range(first, first + fault.times), fault.kind)
    with proxy(bucket.port, lambda number: faults.get(number, ""), then=lambda: fault.then(bucket)) as between:
        train.environment["AWS_ENDPOINT_URL"] = between.url
        # note: otherwise S3's client alone would retry for minutes
        train.environment["AWS_MAX_ATTEMPTS"] = "1"
        yield train, between


@pytest.mark.parametrize(
    "name", [pytest.param("cut", marks=pytest.mark.skeleton), "restarted", "lost", "500", "short", "slow", "403"]
)
def test_a_fault_of_the_bucket_in_an_epoch_loses_nothing(
    name: str, images: Path, bucket: Bucket, whole: Callable[..., object], tmp_path: Path
) -> None:
    error, run = FAULTS[name].error, tmp_path / "runs" / "run"
    with faulty(tmp_path, bucket, name, IMAGES + IMAGES // 2) as (train, between):
        done = train(*words_of(CASES["s3 folders"], images, tmp_path, 2), code=2 * bool(error))
        assert between.reached.is_set()
        if error:
            (line,) = (line for line in done.stderr.splitlines() if "is waiting to read s3://" not in line)
            assert re.fullmatch(f"error: dataset.path=s3://mine/pets/folders{error}", line)
            if name == "lost":
                bucket.start()
            train("resume", str(run))
        assert next(between.gets) > 2 * IMAGES
    assert same(train.decided(run), whole("folders", 2))


@pytest.mark.parametrize("workers", [0, 3])
def test_a_stop_ends_ranks_that_wait_for_a_bucket_in_an_epoch(
    workers: int, images: Path, bucket: Bucket, whole: Callable[..., object], tmp_path: Path
) -> None:
    run = tmp_path / "runs" / "run"
    with faulty(tmp_path, bucket, "silent", IMAGES + IMAGES // 2) as (train, between):
        words = words_of(CASES["s3 folders"], images, tmp_path, 2)
        process = train.start(*words, f"dataloader.workers={workers}")
        assert between.reached.wait(240)
        time.sleep(1)
        start = time.monotonic()
        process.terminate()
        output, errors = ended(process, TERMINATED)
        assert time.monotonic() - start < SECONDS, output
        assert "Traceback" not in errors
        assert output.splitlines()[-1].endswith("type: train resume runs/run")
        wait_for(lambda: not processes_of(run), 10)
        between.fault = lambda number: ""
        train("resume", "runs/run")
    assert same(train.decided(run), whole("folders", 2))


@pytest.mark.parametrize("name", ["cut", "lost"])
def test_a_fault_of_the_bucket_while_preparing_loses_nothing(
    name: str, images: Path, bucket: Bucket, tmp_path: Path
) -> None:
    with faulty(tmp_path, bucket, name, IMAGES // 2) as (train, between):
        words = ["prepare", "dataset=image_folder", "dataloader.workers=1"]
        train(*words, f"dataset.path={images}", "dataloader.folder=here")
        words += ["dataset.path=s3://mine/pets/folders", "dataloader.folder=there"]
        done = train(*words, code=2 * (name == "lost"))
        if name == "lost":
            assert done.stderr.startswith("error: dataset.path=s3://mine/pets/folders")
            assert done.stderr.endswith("finished images are kept: run the same command to resume\n")
            assert done.stderr.count("\n") == 1
            bucket.start()
            train(*words)
        assert next(between.gets) > IMAGES
    here, there = (
        [path.read_bytes() for path in sorted(tmp_path.glob(f"{name}/*.beton"))] for name in ("here", "there")
    )
    assert len(here) == 2
    assert here == there
