import pytest
from scipy.stats import binomtest

from launcher.publish.card import _interval


@pytest.mark.parametrize(("right", "count"), [(40, 50), (0, 7), (7, 7), (759, 1000)])
def test_the_interval_of_a_share_of_images_is_wilsons(right: int, count: int) -> None:
    theirs = binomtest(right, count).proportion_ci(0.95, "wilson")
    assert _interval("top1", right / count, count) == f"{theirs.low:.2%} to {theirs.high:.2%}"
