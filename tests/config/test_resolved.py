from __future__ import annotations

from pathlib import Path

import pytest

from launcher.config import resolved
from launcher.config.compose import compose
from launcher.errors import UserError


@pytest.mark.parametrize("recipe", ["mild", "medium", "hot"])
def test_the_resolved_file_reads_back_equal(tmp_path: Path, recipe: str) -> None:
    config = compose([f"recipe={recipe}"]).config
    resolved.write(config, tmp_path / "config.yaml")
    assert resolved.read(tmp_path / "config.yaml") == config
    assert list(tmp_path.iterdir()) == [tmp_path / "config.yaml"]


def test_the_digest_follows_what_decides_the_result() -> None:
    base = resolved.digest(compose(["recipe=mild"]).config)
    assert base == resolved.digest(compose(["recipe=mild", "run_name=other", "runs=/elsewhere"]).config)
    assert base != resolved.digest(compose(["recipe=mild", "seed=7"]).config)


def test_a_damaged_file_names_itself_and_the_key(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(resolved.dump(compose([]).config).replace("seed: 42", "seed: many"))
    with pytest.raises(UserError, match=r"seed=many .*config.yaml.*a whole number"):
        resolved.read(path)
    with pytest.raises(UserError, match="not a run folder"):
        resolved.read(tmp_path / "absent" / "config.yaml")


def test_a_file_of_another_version_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(resolved.dump(compose([]).config).replace("seed: 42\n", ""))
    with pytest.raises(
        UserError, match=r"seed=.*config.yaml.*is missing; .*another version of train .* use that version"
    ):
        resolved.read(path)
