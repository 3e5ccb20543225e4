import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from launcher.algorithms.sample_dropping import infobatch, progressive
from launcher.config.compose import compose
from launcher.data.batch import Moment
from launcher.errors import UserError
from launcher.losses.cross_entropy import cross_entropy
from launcher.plan.checks import check
from launcher.plan.plan import plan_for
from launcher.rank.group import Ranks
from launcher.training.trainer import build_trainer
from tests.trainers import SMALL, VIT, build, outcomes, steps
from tests.two_ranks import on_ranks

LOSSES = np.random.default_rng(3).exponential(size=200).astype(np.float32)
WORDS = ["algorithms=[sample_dropping]", "algorithms.sample_dropping.share=0.5", "algorithms.sample_dropping.rate=0.6"]


def draws(number: int = 0) -> np.random.Generator:
    return np.random.default_rng(number)


@pytest.mark.parametrize("rate", [0.25, 0.5, 0.75])
def test_infobatch_keeps_and_weighs_as_the_authors(rate: float) -> None:
    """They keep int((1 - r) n) of the n samples below the mean, without replacement, with weight 1 / (1 - r)."""
    easy = LOSSES.mean() > LOSSES
    stay = int((1 - rate) * easy.sum())
    kept, weights = infobatch(LOSSES, int(easy.sum()) - stay, rate, draws())
    assert kept[~easy].all()
    assert (weights[~easy] == 1).all()
    assert kept[easy].sum() == stay
    np.testing.assert_allclose(weights[easy], 1 / (1 - rate), rtol=0.02)


def test_infobatch_draws_easy_samples_alike_and_expects_the_sum_of_all_losses() -> None:
    easy, count, total, chosen = LOSSES.mean() > LOSSES, 40, [], np.zeros(len(LOSSES))
    for number in range(2000):
        kept, weights = infobatch(LOSSES, count, 0.5, draws(number))
        assert kept.sum() == len(LOSSES) - count
        total.append((weights * LOSSES)[kept].sum())
        chosen += kept
    np.testing.assert_allclose(np.mean(total), LOSSES.sum(), rtol=0.002)
    np.testing.assert_allclose(chosen[easy] / 2000, 1 - count / easy.sum(), atol=0.05)


def test_more_samples_are_easy_where_those_below_the_mean_are_too_few() -> None:
    losses = np.array([0, 10, 11, 12, 13, 14, 15, 16, 17, np.nan], np.float32)
    assert np.nanmean(losses) > 11
    kept, weights = infobatch(losses, 4, 0.5, draws())
    assert (weights == [2] * 8 + [1] * 2).all()
    assert kept[8:].all()
    assert kept.sum() == 6
    unknown, _ = infobatch(np.full(10, np.nan, np.float32), 4, 0.5, draws())
    assert unknown.sum() == 6


def test_progressive_dropping_keeps_the_hardest() -> None:
    kept, weights = progressive(LOSSES, 120, draws())
    assert LOSSES[kept].min() >= np.sort(LOSSES)[120]
    assert kept.sum() == 80
    assert (weights == 1).all()


def test_losses_of_samples_are_weighted_and_remembered(bound: Callable[..., Any], batch: Callable[..., Any]) -> None:
    algorithm = bound("sample_dropping")
    algorithm._weights = np.linspace(1, 2, 80, dtype=np.float32)
    loaded = replace(batch(step=3), indices=np.arange(8) * 9)
    changed = algorithm.forward_batch(loaded, torch.nn.Identity(), cross_entropy)
    outputs = torch.randn(8, 10, requires_grad=True)
    loss = algorithm.change_loss(cross_entropy)
    # note: in micro-batches, as the step does
    ours = [loss(*part) for part in zip(outputs.chunk(2), changed.targets.chunk(2), strict=True)]
    losses = F.cross_entropy(outputs, loaded.targets, reduction="none")
    expected = (losses * torch.from_numpy(algorithm._weights[loaded.indices])).mean()
    torch.testing.assert_close(sum(ours) / 2, expected)
    torch.testing.assert_close(
        *(torch.autograd.grad(one, outputs, retain_graph=True)[0] for one in (sum(ours) / 2, expected))
    )
    for applied in (False, True):
        algorithm.after_step(torch.nn.Identity(), loaded.moment, torch.tensor(applied))
        seen = ~torch.isneginf(algorithm.state_dict()["fresh"])
        assert seen.nonzero().flatten().tolist() == (loaded.indices.tolist() if applied else [])
    torch.testing.assert_close(algorithm.state_dict()["fresh"][loaded.indices], losses.detach())


def test_all_weights_are_one_while_no_sample_is_dropped() -> None:
    # note: another schedule would end with the shorter run
    plain, dropping = (build(*words, "schedule=constant") for words in (["algorithms=[]"], WORDS))
    assert steps(dropping, 4) == pytest.approx(steps(plain, 4), rel=1e-5)


def test_an_epoch_reads_the_kept_samples_once_and_drops_easy_ones() -> None:
    run = build(*WORDS, "epochs=3")
    first = np.concatenate([outcome.indices for outcome in outcomes(run, 4)])
    assert sorted(first) == [*range(32)]
    losses = run.state_dict()["algorithms"]["sample_dropping"]["fresh"].numpy().copy()
    second = np.concatenate([outcome.indices for outcome in outcomes(run, 2)])
    assert len(set(second)) == 16
    dropped = sorted(set(range(32)) - set(second))
    assert losses[dropped].max() <= np.sort(losses)[max(27, (losses < losses.mean()).sum()) - 1]
    state = run.state_dict()["algorithms"]["sample_dropping"]
    assert (state["scores"].numpy() == losses).all()


def test_epochs_have_the_steps_of_their_policy(bound: Callable[..., Any]) -> None:
    def lengths(**values: Any) -> list[int]:
        epochs = bound("sample_dropping", **values).context.plan.epoch_steps
        return [epochs.length(epoch) for epoch in range(10)]

    assert lengths(share=0.2, end=0.45) == [10, 8, 8, 8, *[10] * 6]
    assert lengths(policy="progressive", decay=0.45, end=0.4) == [10, 5, 3, 1, *[10] * 6]


def test_an_epoch_weighs_easy_samples_by_its_rate(bound: Callable[..., Any]) -> None:
    algorithm = bound("sample_dropping", share=0.2, rate=0.25)
    algorithm._epoch, algorithm._scores = 1, np.arange(80, dtype=np.float32)
    assert len(algorithm.change_order(np.arange(80), Moment(0, 1, 10, 100))) == 64
    # note: 16 of 64 easy samples, where 40 are below the mean
    np.testing.assert_allclose(algorithm._weights, [4 / 3] * 64 + [1] * 16, rtol=1e-6)


def drawn(rank: int, count: int, folder: Path, policy: str) -> None:
    """Write the samples of each epoch, which all ranks read together."""
    torch.set_num_threads(1)
    words = [*SMALL, *VIT, *WORDS, "batch_size=12", "dataset.train_samples=96", "schedule.warmup=0ba", "epochs=5"]
    config = compose(
        [*words, f"algorithms.sample_dropping.policy={policy}", "algorithms.sample_dropping.decay=0.8"]
    ).config
    run = build_trainer(config, Ranks(rank, count, rank, count, torch.device("cpu")))
    epochs: dict[int, list[int]] = {}
    for outcome in outcomes(run, run.plan.total_steps):
        epochs.setdefault(outcome.moment.epoch, []).extend(outcome.indices.tolist())
    (folder / f"{count}-{rank}.json").write_text(json.dumps(epochs))


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["infobatch", "progressive"])
def test_any_number_of_ranks_draws_the_same_samples(policy: str, tmp_path: Path) -> None:
    samples = []
    for count in (1, 2, 3):
        on_ranks(count, drawn, count, tmp_path, policy)
        parts = [json.loads((tmp_path / f"{count}-{rank}.json").read_text()) for rank in range(count)]
        samples.append({epoch: sorted(index for part in parts for index in part[epoch]) for epoch in parts[0]})
    assert samples[0] == samples[1] == samples[2]
    assert min(map(len, samples[0].values())) < 96
    assert len({tuple(epoch) for epoch in samples[0].values()}) > 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["algorithms.sample_dropping.share=0.7"], "share=0.7: must be at most rate (0.6)"),
        (
            ["dataset.sampling=balanced"],
            "policy=infobatch: needs each sample once an epoch; set dataset.sampling=uniform",
        ),
        (["algorithms.repeated_augmentation=on"], "cannot be combined with repeated_augmentation"),
    ],
)
def test_values_without_a_meaning_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        check(plan_for(compose([*SMALL, *WORDS, *words]).config, 1), {})
    assert message in str(caught.value)
