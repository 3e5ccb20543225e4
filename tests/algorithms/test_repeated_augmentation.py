from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from launcher.algorithms.repeated_augmentation import repeat
from launcher.data.batch import Moment


@given(st.integers(1, 200), st.integers(2, 5), st.integers(1, 64))
def test_the_repeats_of_an_image_have_different_draws(samples: int, repeats: int, batch_size: int) -> None:
    order = np.random.default_rng(samples).permutation(samples)
    indices = repeat(order, repeats, batch_size)
    assert indices.shape == (samples,)
    assert len(set(indices.tolist())) == samples
    images = Counter((indices % samples).tolist())
    counts = sorted(images.values(), reverse=True)
    assert counts[0] <= repeats
    assert counts[:-1] == [repeats] * (len(counts) - 1)
    assert set(images) == set(order[: len(images)].tolist())


def test_a_global_batch_contains_all_repeats_of_an_image_apart(bound: Callable[..., Any]) -> None:
    order = np.random.default_rng(0).permutation(80)
    indices = bound("repeated_augmentation", repeats=4).change_order(order, Moment(0, 0, 0, 1))
    for number, batch in enumerate(indices.reshape(10, 8)):
        first, second = order[2 * number : 2 * number + 2]
        assert (batch % 80).tolist() == [first, second] * 4
        assert (batch // 80).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
