"""Tasks whose records are no images with labels, and the algorithms that act on these."""

import pytest

from launcher.config.compose import compose
from launcher.errors import UserError
from launcher.plan.checks import check
from launcher.plan.plan import plan_for
from launcher.tasks.classification import ClassificationConfig
from tests.trainers import SMALL


@pytest.mark.parametrize(
    ("needs", "algorithms", "refused"),
    [
        (("image", "label"), ["mixup", "colout", "cutout", "ema"], []),
        (("image", "mask"), ["mixup", "colout", "cutout", "ema"], ["mixup", "colout"]),
        (("tokens",), ["mixup", "colout", "cutout", "ema"], ["mixup", "colout", "cutout"]),
    ],
)
def test_algorithms_are_refused_for_records_that_they_do_not_act_on(
    needs: tuple[str, ...], algorithms: list[str], refused: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = compose([*SMALL, f"algorithms=[{','.join(algorithms)}]"]).config
    monkeypatch.setattr(ClassificationConfig, "needs", needs)
    problems = []
    try:
        check(plan_for(config, 1), {})
    except UserError as error:
        problems = list(map(str, error.problems))
    reason = "has no meaning with task=classification: it acts on image and label"
    assert sorted(line.partition("=")[0] for line in problems) == sorted(f"algorithms.{name}" for name in refused)
    assert all(reason in line and f"not on {needs[-1]}" in line for line in problems if needs[-1] != "tokens")
