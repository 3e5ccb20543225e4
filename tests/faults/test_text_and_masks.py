"""Each source of text and of masks: a run killed at any moment resumes to the weights of a run without a kill."""

import json
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest
from PIL import Image

from tests.language import LAYOUTS, RUN, text_in
from tests.runs import Train, draw_nothing, resumed_after_kill, same

pytestmark = pytest.mark.system

# Three epochs of four steps, for one, two and three ranks.
STEPS = 12
SHARED = ["batch_size=12", "eval_batch_size=6", "epochs=3", "checkpoint.every=2ba"]
SEGMENTATION = [
    "recipe=none",
    *("task=segmentation", "dataloader=masks", "dataset=image_folder", "dataset.native_size=24", "launch=cpu"),
    *("model=unet", "model.filters=4", "model.levels=2", "loss=dice_cross_entropy", "schedule.warmup=0ba"),
    *("optimizer=adamw", "optimizer.scale_lr=off", "optimizer.lr=0.01", "logger.tensorboard=false"),
    *("logger.interval=1ba", "algorithms=[ema,cutmix]", "dataloader.workers=0"),
]
COLOURS = {"a": (0, 0, 0), "b": (10, 11, 12), "c": (200, 0, 0)}


def documents(folder: Path) -> dict[str, list[str]]:
    """Return the lines of a text as documents."""
    return {split: (text_in(folder) / f"{split}.txt").read_text().splitlines() for split in ("train", "val")}


def text(folder: Path) -> None:
    for split, lines in documents(folder.parent).items():
        (folder / split).mkdir()
        for number, line in enumerate(lines):
            (folder / split / f"{number:03d}.txt").write_text(line)


def jsonl(folder: Path) -> None:
    for split, lines in documents(folder.parent).items():
        (folder / f"{split}.jsonl").write_text("".join(f"{json.dumps({'text': line})}\n" for line in lines))


def parquet(folder: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    for split, lines in documents(folder.parent).items():
        write_table(pyarrow.Table.from_pydict({"text": lines}), folder / f"{split}.parquet")


def shards(layout: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        for split, lines in documents(folder.parent).items():
            tokens = [token for line in lines for token in [*line.encode(), 256]]
            LAYOUTS[layout](folder, split, np.array(tokens))

    return write


def masks(write: Callable[[Path, np.ndarray], object]) -> Callable[[Path], None]:
    """Write images with masks of three classes by a function."""

    def write_all(folder: Path) -> None:
        random = np.random.default_rng(0)
        for number in range(60):
            place, mask = folder / ("train" if number < 48 else "val"), np.zeros((24, 24), np.uint8)
            mask[random.integers(0, 12) :, : random.integers(4, 24)] = 1 + number % 2
            image = 100 * mask[..., None] + random.integers(0, 50, (24, 24, 3))
            for part in ("images", "masks"):
                (place / part).mkdir(parents=True, exist_ok=True)
            Image.fromarray(image.astype(np.uint8)).save(place / "images" / f"{number}.png")
            write(place / "masks" / str(number), mask)

    return write_all


def classes(file: Path, mask: np.ndarray) -> None:
    Image.fromarray(mask).save(file.with_suffix(".png"))


def colours(file: Path, mask: np.ndarray) -> None:
    Image.fromarray(np.array([*COLOURS.values()], np.uint8)[mask]).save(file.with_suffix(".png"))


CASES: dict[str, Callable[[Path], None]] = {
    **{"text": text, "jsonl": jsonl, "parquet": parquet, "nanogpt": shards("nanogpt"), "modded": shards("modded")},
    **{"classes": masks(classes), "colours": masks(colours), "npy": masks(np.save)},
}
# The source of the same samples, whose whole run a case must equal; shards without a tokenizer have no bits per byte.
LIKE = {"jsonl": "text", "parquet": "text", "modded": "nanogpt", "colours": "classes", "npy": "classes"}


def words_of(name: str, folder: Path, ranks: int) -> list[str]:
    (folder / "source").mkdir()
    CASES[name](folder / "source")
    shared = [*SHARED, "dataset.path=source", f"launch.nproc={ranks}"]
    if LIKE.get(name, name) in ("text", "nanogpt"):
        language = ["dataset.train_samples=48", "dataset.classes=257", "dataloader.folder=tokens"]
        return [*RUN, *language, *shared]
    words = [*SEGMENTATION, "task.classes=[a,b,c]"]
    if name == "colours":
        values = ",".join(f"{key}:'#{bytes(colour).hex()}'" for key, colour in COLOURS.items())
        words[-1] = f"task.classes={{{values}}}"
    return [*words, *shared]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], dict[str, object]]:
    """Return what an uninterrupted run of a case decides."""
    known: dict[tuple[str, int], dict[str, object]] = {}

    def decided(name: str, ranks: int) -> dict[str, object]:
        if (name, ranks) not in known:
            train = Train(tmp_path_factory.mktemp("whole"), before=(draw_nothing,))
            train(*words_of(name, train.folder, ranks), "run_name=whole")
            known[name, ranks] = train.decided(train.folder / "runs" / "whole")
        return known[name, ranks]

    return decided


FEWER = [("jsonl", 1), ("modded", 2), ("colours", 1), ("npy", 2)]


@pytest.mark.parametrize(("name", "ranks"), [*((name, 3) for name in CASES), *FEWER])
def test_a_killed_run_resumes_to_the_same_bits(
    name: str, ranks: int, whole: Callable[[str, int], dict[str, object]], tmp_path: Path
) -> None:
    random, train = Random(f"{name} {ranks}"), Train(tmp_path, before=(draw_nothing,))
    words = words_of(name, tmp_path, ranks)
    run = resumed_after_kill(train, words, random.randrange(1, STEPS - 3), later=random.uniform(0, 0.2))
    decided = train.decided(run)
    assert decided["step"] == STEPS
    assert same(decided, whole(LIKE.get(name, name), ranks))
