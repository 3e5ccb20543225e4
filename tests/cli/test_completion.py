"""What may stand next on a command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.cli.completion import OFFERS, answer, taken, words_of
from launcher.cli.main import VERBS, module_of, parser_of
from launcher.config.compose import compose
from launcher.config.defaults import options
from launcher.config.keys import all_keys, path_keys
from launcher.errors import UserError

ALGORITHM_WORDS = ["algorithms.mixup=", "algorithms.mixup."]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("train", ([], "train")),
        ("train ", ([], "")),
        ("train plan rec", (["plan"], "rec")),
        ("CUDA_VISIBLE_DEVICES=0 .venv/bin/train plan ", (["plan"], "")),
        ("train resume runs/train ", (["resume", "runs/train"], "")),
    ],
)
def test_a_line_is_cut_at_the_cursor(line: str, words: tuple[list[str], str]) -> None:
    assert words_of(line) == words


def test_the_first_word_is_a_verb_or_a_key() -> None:
    found = answer("train ")
    assert found[: len(VERBS)] == list(VERBS)
    assert {"recipe=", "epochs=", "optimizer=", "optimizer.", "image.", "algorithms."} <= set(found)
    assert "image=" not in found
    assert answer("train recipe=mild pl") == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("train pl", ["plan"]),
        ("train plan recipe=mil", ["recipe=mild", "recipe=mild_mixup", "recipe=mild_mixup_smoothing"]),
        ("train optimizer=", [f"optimizer={name}" for name in options("optimizer")]),
        ("train optimizer.name=l", ["optimizer.name=lamb"]),
        ("train algorithms.mi", ALGORITHM_WORDS),
        ("train algorithms.mixup=", ["algorithms.mixup=on", "algorithms.mixup=off"]),
        ("train algorithms.sam.batch", ["algorithms.sam.batchnorm="]),
        ("train algorithms.sam.batchnorm=o", ["algorithms.sam.batchnorm=once"]),
        ("train show precision=b", ["precision=bf16"]),
        ("train deterministic=", ["deterministic=true", "deterministic=false"]),
        ("train launch.nproc=", ["launch.nproc=auto"]),
        ("train epochs=", []),
        ("train nonsense", []),
        ("train show --o", ["--origin"]),
        ("train ls abl", ["ablations"]),
        ("train completion z", ["zsh"]),
        ("train diff medium_b", ["medium_bce_default", "medium_bce_log_classes"]),
        ("train estimate rec", ["recipe="]),
        ("train replay runs/a st", ["step="]),
        ("train replay runs/a step=1 ", []),
        ("train tune adamw_n", ["adamw_narrow"]),
        ("train tune adamw_narrow rec", ["recipe="]),
    ],
)
def test_words(line: str, expected: list[str]) -> None:
    found = answer(line)
    assert found[: len(expected)] == expected
    assert bool(found) == bool(expected)


def test_run_folders_and_data_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "b").mkdir()
    (tmp_path / "runs" / "a" / "config.yaml").touch()
    assert answer("train resume r") == ["runs/"]
    assert answer("train resume runs/") == ["runs/a", "runs/b/"]
    assert answer("train dataset.path=ru") == ["dataset.path=runs/"]
    assert answer(f"train dataset.path={tmp_path}/ru") == [f"dataset.path={tmp_path}/runs/"]
    assert answer("train resume nowhere/") == []
    assert answer("train replay runs/") == answer("train eval runs/") == ["runs/a", "runs/b/"]
    assert answer("train compare runs/a runs/") == ["runs/a", "runs/b/"]


@pytest.mark.parametrize("verb", VERBS)
def test_what_a_verb_takes_is_offered(verb: str) -> None:
    assert {word.what for word in taken(parser_of(verb, module_of(verb)))} <= set(OFFERS)


def test_own_recipes_are_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "mine.yaml").touch()
    assert answer("train recipe=min") == ["recipe=mine"]


def test_every_key_is_reached_by_its_own_prefixes() -> None:
    for key in all_keys():
        for dots in range(key.count(".") + 1):
            typed = ".".join(key.split(".")[:dots]) + "." * bool(dots)
            step = ".".join(key.split(".")[: dots + 1])
            assert {f"{step}=", f"{step}."} & set(answer(f"train {typed}")), (key, typed)


@pytest.mark.parametrize("key", sorted({*all_keys()} - {"run_name", *path_keys()}))
def test_an_offered_value_is_one_that_the_schema_takes(key: str) -> None:
    for word in answer(f"train {key}="):
        # note: another option's key is refused all the same
        assert not any("must be one of" in message for message in messages(word)), word


def messages(word: str) -> list[str]:
    try:
        compose([word])
    except UserError as error:
        return [problem.message for problem in error.problems]
    return []


@given(st.text(max_size=30))
def test_no_line_is_an_error(line: str) -> None:
    answer(f"train {line}")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("train --epo", ["--epochs="]),
        ("train plan --optimizer=la", ["--optimizer=lamb", "--optimizer=lars"]),
        ("train --optimizer l", ["lamb", "lars", "lion"]),
        ("train resume runs/a precision=b", ["precision=bf16"]),
        ("train tune adamw_narrow recipe=timm_a3", ["recipe=timm_a3"]),
        ("train estimate rec", ["recipe="]),
    ],
)
def test_flags_complete_as_keys_do(line: str, expected: list[str]) -> None:
    assert answer(line) == expected
