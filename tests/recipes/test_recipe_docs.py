"""The example of docs/recipes.md works."""

import re
from pathlib import Path

import pytest

from launcher.config.compose import compose

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "recipes.md").read_text()


def test_the_example_of_an_own_recipe_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", TEXT, re.S)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "mine.yaml").write_text(example)
    config = compose(["recipe=mine"]).config
    assert (config.batch_size, config.loss.name) == (1024, "cross_entropy")
    assert config.algorithms.get("mixup") is None
    assert config.algorithms.get("cutmix") is not None
    assert (config.algorithms["sam"].interval, config.algorithms["sam"].rho) == (10, 0.5)
