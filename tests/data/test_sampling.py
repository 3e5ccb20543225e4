"""The samples of each batch, for any number of ranks, batch size and step to resume from."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from launcher.compute import randomness
from launcher.data.sampling import buffered_order, epoch_order, eval_indices, rank_indices


@given(st.integers(0, 2**63 - 1), st.integers(0, 1000), st.integers(1, 500))
def test_an_epoch_reads_each_sample_once(seed: int, epoch: int, samples: int) -> None:
    assert sorted(epoch_order(seed, epoch, samples)) == list(range(samples))


@given(st.integers(1, 500), st.integers(1, 8), st.integers(1, 16), st.data())
def test_ranks_share_the_same_global_batches(samples: int, world: int, count: int, data: st.DataObject) -> None:
    batch = world * count
    order = epoch_order(3, 1, samples)
    first = data.draw(st.integers(0, samples // batch))
    steps = range(first, samples // batch)
    joined = [np.concatenate([rank_indices(order, s, batch, r, world) for r in range(world)]) for s in steps]
    assert all(np.array_equal(got, order[s * batch : (s + 1) * batch]) for s, got in zip(steps, joined, strict=True))


@given(st.integers(0, 300), st.integers(1, 40), st.integers(1, 8))
def test_evaluation_counts_each_sample_once(samples: int, batch: int, world: int) -> None:
    batches = [b for rank in range(world) for b in eval_indices(samples, batch, rank, world)]
    assert sorted(np.concatenate([np.empty(0, int), *batches])) == list(range(samples))
    assert all(0 < len(b) <= batch for b in batches)


def test_epochs_and_seeds_have_different_orders() -> None:
    orders = {tuple(epoch_order(seed, epoch, 50)) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25


@given(st.lists(st.integers(0, 10**7), min_size=1, max_size=50, unique=True))
def test_a_samples_draws_do_not_depend_on_its_position(indices: list[int]) -> None:
    rows = randomness.uniforms(1, "x", 2, np.array(indices), 3)
    assert np.array_equal(randomness.uniforms(1, "x", 2, np.array(indices[::-1]), 3), rows[::-1])
    assert ((rows >= 0) & (rows < 1)).all()


def test_draws_are_uniform_and_independent_between_keys() -> None:
    from scipy import stats

    draws = randomness.uniforms(7, "x", 0, np.arange(50_000), 4)
    assert all(stats.kstest(column, "uniform").pvalue > 1e-4 for column in draws.T)
    others = [randomness.uniforms(*key, np.arange(50_000), 1)[:, 0] for key in ((8, "x", 0), (7, "y", 0), (7, "x", 1))]
    columns = np.stack([*draws.T, *others, np.roll(draws[:, 0], 1)])
    correlation = np.abs(np.corrcoef(columns) - np.eye(len(columns)))
    assert correlation.max() < 0.02


def test_many_generators_draw_what_single_ones_draw() -> None:
    indices = np.array([5, 0, 2**40 + 1, 5])
    for index, random in zip(indices, randomness.generators(-3, "augmix", 7, indices), strict=True):
        alone = randomness.generator(-3, "augmix", 7, int(index))
        assert random.dirichlet([0.4] * 3).tolist() == alone.dirichlet([0.4] * 3).tolist()
        # note: a small integer keeps the other half of 64 bits for the next draw
        assert [random.integers(3, dtype=np.uint32), random.beta(1, 1)] == [
            alone.integers(3, dtype=np.uint32),
            alone.beta(1, 1),
        ]


def test_an_order_of_archives_holds_each_image_once_and_reads_few_archives_at_a_time() -> None:
    archives = np.repeat(np.arange(50), 20)
    order = buffered_order(1, 2, archives, 40)
    assert sorted(order.tolist()) == [*range(1000)]
    assert not np.array_equal(order, buffered_order(1, 3, archives, 40))
    # note: 40 images are those of two archives; a window may start and end within others
    assert max(len({*archives[order[first : first + 20]]}) for first in range(0, 1000, 20)) <= 5
