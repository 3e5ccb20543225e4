"""Hydra composes the files of a command once; values, and files that change later, end as if it composed each time."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.config import hydra_source
from launcher.config.compose import Composition, compose
from launcher.errors import UserError
from launcher.paths import CONF

WORDS = [
    ["optimizer.lr=1", "epochs=7", "seed=null"],
    ["seed='${epochs}'", "run_name=a b", "run_name='null'"],
    ["algorithms.ema=off", "algorithms.mixup.alpha=0.3", "algorithms.sam=on"],
    ["optimizer={lr: 1, momentum: 0}", "optimizer.lr=2"],
    ["image=3", "image.eval_size=4", "schedule=null", "loss.name=x"],
    ["image.train_size.a=1", "image=3", "optimizer.betas=[0.1,[2]]"],
    ["recipe=hot", "fidelity=published", "epochs=90", "schedule.milestones=[]"],
    ["nope.a.b=1", "code=[]", "dataset.mean=[1,2,3]", "optimizer.lr=1e400", "epochs=true"],
    ["dataset.crop=[{a: 1}]", "launch={}", "checkpoint={every: 1ep}", "epochs=-0.0"],
]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The overrides of the compositions that Hydra makes; the process keeps none from before."""
    calls: list[list[str]] = []
    compose_by_hydra = hydra_source.compose

    def counted(name: str, words: list[str]) -> Any:
        calls.append(words)
        return compose_by_hydra(name, words)

    monkeypatch.setattr(hydra_source, "compose", counted)
    monkeypatch.setattr(hydra_source, "_KEPT", {})
    return calls


def result(composed: Callable[[hydra_source.Command], dict[str, Any]], command: hydra_source.Command) -> str:
    try:
        return repr(composed(command))
    except UserError as error:
        return str(error)


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_values_are_set_as_hydra_sets_them(words: list[str]) -> None:
    command = Composition([*(["recipe=mild"] if "recipe=hot" not in words else []), *words]).command
    expected = result(hydra_source._of_files, command)
    assert result(hydra_source.composed, command) == expected
    assert result(hydra_source.composed, command) == expected


def test_hydra_composes_the_files_once_for_words_that_change_values(made: list[list[str]]) -> None:
    first = compose(["recipe=mild", "epochs=20"]).config
    second = compose(["recipe=mild", "epochs=30", "optimizer.lr=1", "algorithms.ema=off"]).config
    assert (first.epochs, second.epochs, second.optimizer.lr) == (20, 30, 1)
    assert "ema" not in second.algorithms
    assert "ema" in compose(["recipe=mild", "epochs=20"]).config.algorithms
    assert len(made) == 1
    compose(["recipe=mild", "optimizer=lamb"])
    assert len(made) == 2


def test_a_file_that_is_added_changed_or_removed_later_is_read(
    made: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "conf" / "schedule" / "cosine.yaml"
    own.parent.mkdir(parents=True)

    def dilated() -> tuple[float, int]:
        return compose(["recipe=mild"]).config.schedule.dilate, len(made)

    usual = dilated()[0]
    packaged = (CONF / "schedule" / "cosine.yaml").read_text()
    for value, count in ((0.5, 2), (0.25, 3)):
        own.write_text(f"{packaged}dilate: {value}\n")
        assert (dilated(), dilated()) == ((value, count), (value, count))
    own.unlink()
    assert dilated() == (usual, 4)
