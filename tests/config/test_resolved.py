"""The words of a resume: all errors at once, and the reason why a value cannot change."""

from pathlib import Path

import pytest

from launcher.config import resolved
from launcher.config.compose import compose
from launcher.config.resolved import continued
from launcher.config.schema import RunConfig
from launcher.errors import UserError


@pytest.mark.parametrize("recipe", ["mild", "medium", "hot"])
def test_the_resolved_file_reads_back_equal(tmp_path: Path, recipe: str) -> None:
    config = compose([f"recipe={recipe}"]).config
    resolved.write(config, tmp_path / "config.yaml")
    assert resolved.read(tmp_path / "config.yaml") == config
    assert list(tmp_path.iterdir()) == [tmp_path / "config.yaml"]


def test_the_digest_covers_the_values_that_decide_the_result() -> None:
    base = resolved.digest(compose(["recipe=mild"]).config)
    assert base == resolved.digest(compose(["recipe=mild", "run_name=other", "runs=/elsewhere"]).config)
    assert base != resolved.digest(compose(["recipe=mild", "seed=7"]).config)


def test_the_error_of_a_damaged_file_shows_file_and_key(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(resolved.dump(compose([]).config).replace("seed: 42", "seed: many"))
    with pytest.raises(UserError, match=r"seed=many .*config.yaml.*a whole number"):
        resolved.read(path)
    with pytest.raises(UserError, match="not a run folder"):
        resolved.read(tmp_path / "absent" / "config.yaml")


def test_the_error_of_another_versions_file_has_a_remedy(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(resolved.dump(compose([]).config).replace("seed: 42\n", ""))
    with pytest.raises(
        UserError, match=r"seed=.*config.yaml.*is missing; restore the key, or use the version of train"
    ):
        resolved.read(path)


FIXED = "cannot change when a run resumes; start a new run"


@pytest.fixture(scope="module")
def config() -> RunConfig:
    return compose(["recipe=mild", "dataset=shapes"]).config


def errors(config: RunConfig, *words: str) -> list[str]:
    with pytest.raises(UserError) as caught:
        continued(config, words)
    return [str(problem) for problem in caught.value.problems]


def test_several_errors_are_reported_at_once(config: RunConfig) -> None:
    words = ["epoch=3", "seed=3", "precision=bf61", "batch_size=x", "model=resnet51", "launch=cpuu", "optimizer=lamb"]
    messages = errors(config, *words, "algorithms.mixup=on", "algorithms.foo=on", "frobnicate")
    for word in (*words, "algorithms.mixup=on", "algorithms.foo=on", "frobnicate"):
        assert len([line for line in messages if line.startswith(word)]) == 1, word
    assert len(messages) == len(words) + 3


@pytest.mark.parametrize(
    "word",
    [
        *("algorithms.mixup=on", "algorithms.ema=off", "~algorithms.ema", "algorithms.sam.rho=0.1"),
        *("algorithms.ema.half_life=7ba", "optimizer=lamb", "seed=3", "dataset.native_size=99"),
        "compile=on",
    ],
)
def test_a_fixed_value_stays_and_the_error_has_the_reason(config: RunConfig, word: str) -> None:
    (line,) = errors(config, word)
    assert FIXED in line
    assert word.lstrip("~").partition("=")[0].split(".")[0] in line


def test_a_list_of_algorithms_reports_each_difference(config: RunConfig) -> None:
    messages = errors(config, "algorithms=[ema,sam]")
    assert any(line.startswith("algorithms.sam=on ") for line in messages)
    assert any(line.startswith("algorithms.blurpool=off ") for line in messages)
    assert not any("algorithms.ema" in line for line in messages)


def test_equal_values_and_free_keys_are_accepted(config: RunConfig) -> None:
    same = ["recipe=mild", "algorithms.ema=on", "algorithms.mixup=off", f"seed={config.seed}", "dataset=shapes"]
    assert continued(config, same) == config
    after = continued(config, [*same, "launch=cpu", "epochs=60", "run_name=e${epochs}", "checkpoint={keep: 5}"])
    assert (after.launch.device, after.epochs, after.run_name, after.checkpoint.keep) == ("cpu", 60, "e60", 5)


def test_a_group_without_its_option_is_missing_the_name(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("schedule: {dilate: 1.0}\n")
    with pytest.raises(UserError, match=r"schedule\.name=null .*: is missing"):
        resolved.read(tmp_path / "config.yaml")
