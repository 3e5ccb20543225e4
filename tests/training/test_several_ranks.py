"""Recipes on four ranks, and algorithms and optimizers on three, resume from a file to the same bits."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from launcher.config.compose import compose
from launcher.config.groups import options
from launcher.config.schema import RunConfig
from launcher.rank.group import Ranks
from launcher.training import checkpoint
from launcher.training.trainer import build_trainer
from tests.networks import use_tiny
from tests.trainers import ALGORITHMS, EARLY, RECIPES, SMALL, TASKS, VIT, steps, teacher
from tests.two_ranks import on_ranks

# note: one test waits for all runs of as many ranks
pytestmark = [pytest.mark.timeout(1800), pytest.mark.slow]
SHORT = "launch.gradient_dtype=bfloat16"
# Words of other runs by their names.
OTHERS: dict[str, list[str]] = {
    **TASKS,
    "vit": [*VIT, "algorithms=[ema,mixup]", *EARLY["ema"]],
    SHORT: ["algorithms=[]", SHORT],
}
OTHERS |= {(word := f"optimizer={name}"): ["algorithms=[]", word] for name in options("optimizer")}
SAVED, END = 3, 5

Differing = Callable[[int], list[dict[str, list[str]]]]


def config_of(name: str) -> RunConfig:
    """Return the config of a recipe or a single algorithm that acts early, on a few images."""
    words = OTHERS.get(name, [f"recipe={name}" if name in RECIPES else f"algorithms=[{name}]"])
    on = compose(words).config.algorithms
    early = [word for algorithm in ("ema", "sam", name) if algorithm in on for word in EARLY.get(algorithm, [])]
    size = ["batch_size=12", "dataset.train_samples=24", "schedule.warmup=0ba"]
    return compose([*SMALL, *size, *words, *early]).config


def resume(config: RunConfig, ranks: Ranks, path: Path) -> list[str]:
    """Return the parameters that differ between a resumed and an uninterrupted run."""
    whole = build_trainer(config, ranks, teacher=teacher(config))
    steps(whole, SAVED)
    state = whole.state_dict()
    if ranks.is_first:
        checkpoint.save(state, path)
    dist.barrier()
    steps(whole, END - SAVED)
    parameters = [whole.weights()[name].flatten() for name, _ in whole.train_step.model.named_parameters()]
    first = torch.cat(parameters)
    dist.broadcast(first, src=0)
    assert torch.equal(first, torch.cat(parameters)), "parameters are equal on all ranks"
    resumed = build_trainer(config, ranks, teacher=teacher(config))
    resumed.load_state_dict(checkpoint.load(path))
    steps(resumed, END - SAVED)
    pairs = zip(resumed.train_step.model.named_parameters(), whole.train_step.model.parameters(), strict=True)
    return [name for (name, ours), theirs in pairs if not torch.equal(ours, theirs)]


def resume_each(rank: int, count: int, configs: dict[str, RunConfig], folder: Path) -> None:
    torch.set_num_threads(1)
    use_tiny()
    ranks = Ranks(rank, count, rank, count, torch.device("cpu"))
    different = {name: resume(config, ranks, folder / f"{name}.pt") for name, config in configs.items()}
    (folder / f"{rank}.json").write_text(json.dumps(different))


@pytest.fixture(scope="module")
def differing(tmp_path_factory: pytest.TempPathFactory) -> Differing:
    """Return for each rank the different parameters by name; one group of processes resumes all names."""

    @cache
    def resumed(count: int) -> list[dict[str, list[str]]]:
        folder = tmp_path_factory.mktemp(f"ranks{count}")
        configs = {name: config_of(name) for name in (RECIPES if count == 4 else [*ALGORITHMS, *OTHERS])}
        on_ranks(count, resume_each, count, configs, folder)
        return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(count)]

    return resumed


@pytest.mark.parametrize(
    ("name", "count"), [*((name, 4) for name in RECIPES), *((name, 3) for name in [*ALGORITHMS, *OTHERS])]
)
def test_several_ranks_resume_to_the_same_bits(differing: Differing, name: str, count: int) -> None:
    assert [of_rank[name] for of_rank in differing(count)] == [[]] * count
