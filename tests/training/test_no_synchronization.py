"""A step reads no value from the device: the loop runs under modes that raise at every read except one."""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from launcher.config import recipes
from launcher.config.schema import RunConfig
from launcher.optimizers.target import OptimizerTarget
from launcher.rank.group import Ranks
from launcher.records.metrics import read_metrics
from launcher.records.run_folder import RunFolder
from launcher.training import trainer as building
from launcher.training.meters import AsyncRead
from launcher.training.saving import Saver
from launcher.training.trainer import Trainer, build_trainer
from tests.covering import covering, sweep
from tests.networks import tiny
from tests.trainers import ALGORITHMS, EARLY, OPTIMIZERS, RECIPES, small_config, teacher, train_all
from tests.two_ranks import on_ranks

# Algorithms that act in the first steps of the recipes of `make test`.
IN_RECIPES = {name for recipe in covering() for name in recipes.load(recipe).options.get("algorithms", [])}
IN_RECIPES -= EARLY.keys() - {"ema", "sam"}
NAMES = [*RECIPES, *(recipe.name for recipe in recipes.ablations()), *sorted({*ALGORITHMS} - IN_RECIPES)]
# Operations of ATen whose result on the host or whose shape depends on values.
READS = {
    *("_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero", "nonzero_static", "argwhere", "masked_select"),
    *("unique_dim", "unique_consecutive", "_unique", "_unique2", "bincount", "histc", "allclose"),
}
# Methods of torch.Tensor that copy values to the host or to Python.
TO_THE_HOST = {
    *("item", "tolist", "numpy", "cpu", "__array__", "__bool__", "__int__", "__float__", "__index__", "__contains__"),
    *("is_nonzero", "nonzero"),
}


def config_of(name: str, *words: str) -> RunConfig:
    """Return a very small config, since the test observes every call of every step."""
    return small_config(name, "dataset.native_size=16", "dataset.train_samples=24", *words)


class Synchronized(AssertionError):
    pass


class _Calls(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in TO_THE_HOST and any(isinstance(a, Tensor) for a in args):
            raise Synchronized(func.__name__)
        return func(*args, **(kwargs or {}))


class _Kernels(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        masks = name in {"index", "index_put", "index_put_"} and any(
            isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in tree_leaves(args[1])
        )
        if name in READS or masks:
            raise Synchronized(name)
        return func(*args, **(kwargs or {}))


@contextmanager
def no_synchronization() -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Raise at any read of a tensor's value; yields a context in which reads are allowed."""
    with ExitStack() as modes:

        @contextmanager
        def allowed() -> Iterator[None]:
            modes.pop_all().close()
            try:
                yield
            finally:
                modes.enter_context(_Calls())
                modes.enter_context(_Kernels())

        modes.enter_context(_Calls())
        modes.enter_context(_Kernels())
        yield allowed


def train_without_synchronization(config: RunConfig, ranks: Ranks, folder: Path) -> Trainer:
    """Train a run to its end; only evaluation, checkpoints and the loader may read values."""
    folder.mkdir(exist_ok=True)
    run, run_folder = build_trainer(config, ranks, teacher=teacher(config)), RunFolder(folder)
    with no_synchronization() as allowed, pytest.MonkeyPatch.context() as patched:
        for owner, name in ((AsyncRead, "read"), (Trainer, "evaluate"), (Trainer, "state_dict"), (Saver, "save")):
            patched.setattr(owner, name, _inside(allowed, getattr(owner, name)))
        inner, optimizer = run.loaders.train.epoch, run.train_step.optimizer
        if isinstance(optimizer, OptimizerTarget):
            # note: it reads the flag on a CPU alone; the simulated GPU counts its reads there
            patched.setattr(optimizer, "step", _inside(allowed, optimizer.step))

        def epoch(*where: int) -> Any:
            with allowed():
                loaded = list(inner(*where))
            return type("Batches", (list,), {"waited": 0.0})(loaded)

        patched.setattr(run.loaders.train, "epoch", epoch)
        train_all(run, run_folder)
    return run


def _inside(allowed: Callable[[], AbstractContextManager[None]], function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        with allowed():
            return function(*arguments, **named)

    return call


@pytest.mark.parametrize("name", sweep(NAMES))
def test_no_recipe_ablation_or_algorithm_synchronizes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first: list[Tensor] = []

    def copied(*arguments: Any, **named: Any) -> nn.Module:
        network = tiny(*arguments, **named)
        first[:] = [parameter.detach().clone() for parameter in network.parameters()]
        return network

    monkeypatch.setattr(building, "build_model", copied)
    run = train_without_synchronization(
        config_of(name, "schedule.fit=off"), Ranks(0, 1, 0, 1, torch.device("cpu")), tmp_path / "run"
    )
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    losses = {row["step"]: row["loss"] for row in rows if row["kind"] == "train"}
    assert list(losses) == [2, 4]
    assert all(map(math.isfinite, losses.values()))
    assert not all(map(torch.equal, first, run.train_step.model.parameters()))
    assert [row["step"] for row in rows if row["kind"] == "epoch"] == [2, 4]
    assert run.next_step == 4


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("precision", sweep(["fp32", "fp16"], ["fp16"]))
def test_no_optimizer_or_loss_scaler_synchronizes(
    optimizer: str, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "build_model", tiny)
    config = config_of("sam", f"optimizer={optimizer}", f"precision={precision}", "device_batch_size=6")
    train_without_synchronization(config, Ranks(0, 1, 0, 1, torch.device("cpu")), tmp_path / "run")


def _train_each(rank: int, count: int, configs: dict[str, RunConfig], folder: Path) -> None:
    torch.set_num_threads(1)
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    building.build_model = tiny
    for name, config in configs.items():
        train_without_synchronization(
            config, Ranks(rank, count, rank, count, torch.device("cpu")), folder / f"{name}-{rank}"
        )


@pytest.mark.slow
def test_no_rank_synchronizes(tmp_path: Path) -> None:
    names = ["hot", "mild", "timm_a2", *ALGORITHMS]
    on_ranks(3, _train_each, 3, {name: config_of(name) for name in names}, tmp_path)
