"""Count the functions and files of launcher/ that a step, a run up to its first step, and an image execute.

    python -m benchmarks.trace

A step of recipe hot is one without SAM and EMA, on the CPU; `depth` counts nested calls inside launcher/. A run
is that of RUN, in the launcher until ranks start and in its rank until the first step, in one process. An image is
a batch of two from class folders, read in the process itself.
"""

import inspect
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image

import launcher
from launcher.cli.main import main as train
from launcher.config.compose import compose
from launcher.launch.elastic import Launcher
from launcher.launch.prepare import prepare
from launcher.rank import signs
from launcher.rank.group import single_rank
from launcher.training.step import TrainStep
from launcher.training.trainer import Trainer, build_trainer
from launcher.training.worker import train_rank

ROOT = str(Path(launcher.__file__).parent) + os.sep
SMALL = ["dataset=shapes", "model=resnet18", "launch=cpu", "batch_size=16", "dataset.native_size=32"]
FEW = ["dataset.train_samples=320", "dataset.val_samples=16", "dataloader.workers=0"]
RUN = ["recipe=small", *SMALL]
STEP = 5


class Trace:
    """Code of launcher/ that has run, its calls, and the most of them inside each other."""

    def __init__(self) -> None:
        self.functions: set[CodeType] = set()
        self.calls = self.depth = 0
        self._nested: dict[int, int] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        sys.setprofile(self._note)
        threading.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        # note: neither the body of a module nor that of a class
        if not (code.co_filename.startswith(ROOT) and code.co_flags & inspect.CO_OPTIMIZED):
            return
        thread = threading.get_ident()
        nested = self._nested.get(thread, 0) + {"call": 1, "return": -1}.get(event, 0)
        self._nested[thread], self.depth = max(0, nested), max(self.depth, nested)
        if event == "call":
            self.functions.add(code)
            self.calls += 1

    def __str__(self) -> str:
        files = len({code.co_filename for code in self.functions})
        return f"{len(self.functions)} functions in {files} files, {self.calls} calls, depth {self.depth}"


def trainer_of(*words: str) -> Trainer:
    return build_trainer(prepare(compose([*words])).plan.config, single_rank(torch.device("cpu")))


def of_a_step() -> Trace:
    run, trace = trainer_of("recipe=hot", *SMALL, *FEW, "epochs=2", "schedule.warmup=0ep"), Trace()
    for number, batch in enumerate(run.rest_of_epoch()):
        moment = run.moment(number)
        if number == STEP:
            with trace.watching():
                run.train_step(*batch, moment)
            return trace
        run.train_step(*batch, moment)
    raise AssertionError("the epoch is too short")


class _StartsRanks(BaseException):
    """The launcher would start its ranks, or a rank its first step."""


def of_a_run(folder: Path) -> Trace:
    trace, folders = Trace(), list[Path]()

    def starts(*arguments: Any) -> Any:
        folders.extend([one._run_folder for one in arguments if isinstance(one, Launcher)])
        raise _StartsRanks

    rank = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", signs.DEVICE: "cpu"}
    with (
        patch.object(Launcher, "run", starts),
        patch.object(TrainStep, "__call__", starts),
        patch.dict(os.environ, rank),
        trace.watching(),
    ):
        with suppress(_StartsRanks):
            train([*RUN, f"runs={folder}"])
        with suppress(_StartsRanks):
            train_rank(folders[0])
    return trace


def of_an_image(folder: Path) -> Trace:
    random, trace = np.random.default_rng(0), Trace()
    for split, name, number in [(s, c, n) for s in ("train", "val") for c in ("cat", "dog") for n in range(8)]:
        (folder / split / name).mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 256, (40, 50, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / split / name / f"{number}.jpg")
    images = ["dataset=image_folder", f"dataset.path={folder}", "dataloader.workers=0", "epochs=2"]
    run = trainer_of("recipe=none", *images, "model=resnet18", "launch=cpu", "batch_size=2", "image.train_size=32")
    batches = iter(run.rest_of_epoch())
    next(batches)
    with trace.watching():
        next(batches)
    return trace


def main(called: Callable[..., object] = print) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        # note: a run first, since it has what happens once in a process
        for name, count in (
            (f"a run, train {' '.join(RUN)}", of_a_run(Path(folder) / "runs")),
            ("a step of hot", of_a_step()),
            ("an image", of_an_image(Path(folder) / "images")),
        ):
            called(f"{name}: {count}")


if __name__ == "__main__":
    main()
