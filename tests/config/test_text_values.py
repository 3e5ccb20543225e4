"""Paths and names as people write them: a run has what is typed, and its folder reads back the same."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.config import resolved
from launcher.config.compose import compose
from launcher.config.keys import all_keys, is_text, lists_text, path_keys
from launcher.config.overrides import parse, quoted, word_of
from launcher.config.resolved import continued
from launcher.config.schema import RunConfig
from launcher.errors import Problems, UserError
from launcher.submit.job import PREFIX, read_values
from launcher.submit.sky import Sky
from launcher.submit.slurm import Slurm
from launcher_lab.cli.grid import expand

NAMES = [
    *("日本", "é", "two words", "it's", 'the "best"', "(new)", "a&b", "a#b", "[x", "[x]", "{x}", "a;b", "wow!", "a=b"),
    *("2024", "1e5", "0x10", "007", "1:30", "true", "on", "-1", ".5", "a,b", "a:b", "*", "%", "\\", "a\\'b", "  x  "),
]
FFCV = ["dataloader=ffcv"]


@pytest.mark.parametrize("name", NAMES)
def test_text_is_unchanged_and_reads_back(tmp_path: Path, name: str) -> None:
    words = [*FFCV, f"run_name={name}", *(f"{key}=/data/{name}" for key in path_keys())]
    config = compose(words).config
    assert config.run_name == name
    assert {config.runs, config.dataset.path} == {f"/data/{name}"}
    resolved.write(config, tmp_path / "config.yaml")
    assert resolved.read(tmp_path / "config.yaml") == config


@pytest.mark.parametrize("key", [key for key in all_keys() if is_text(RunConfig, key)])
def test_every_text_key_takes_text_literally(key: str) -> None:
    for name in NAMES[::3]:
        problems = Problems()
        assignments = parse([f"{key}={name}", f"+{key}={name}"], problems)
        value = ["x"] if name == "[x]" and lists_text(RunConfig, key) else name
        assert (problems, [(a.key, a.value) for a in assignments]) == ([], [(key, value)] * 2)


@pytest.mark.parametrize(
    ("typed", "items"),
    [
        ("[12,cat]", ["12", "cat"]),
        ("[猫,0,yes]", ["猫", "0", "yes"]),
        ("[007, 1.0 ,null,on,1_0,0x1f]", ["007", "1.0", "null", "on", "1_0", "0x1f"]),
        ("['a,b',\"c]\",it's, two words ]", ["a,b", "c]", "it's", "two words"]),
        ("[a=b,{c},*]", ["a=b", "{c}", "*"]),
        ("12", "12"),
        ("'[x]'", "[x]"),
        ("猫", "猫"),
    ],
)
def test_texts_of_a_list_are_those_typed(tmp_path: Path, typed: str, items: Any) -> None:
    config = compose([f"dataset.columns.label={typed}"]).config
    assert config.dataset.columns.label == items
    resolved.write(config, tmp_path / "config.yaml")
    assert resolved.read(tmp_path / "config.yaml") == config
    assert read_values(Sky, [f"{PREFIX}infra={typed}"]).infra == items


@given(st.lists(st.text(min_size=1, max_size=9), min_size=1, max_size=4))
def test_any_texts_can_be_written_as_a_list(texts: list[str]) -> None:
    problems = Problems()
    (assignment,) = parse([f"dataset.columns.label=[{','.join(map(quoted, texts))}]"], problems)
    assert (assignment.value, problems) == (texts, [])


def test_a_file_must_quote_texts_that_look_like_numbers(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    for label in ("[12, cat]", "12", "true", "[a, 0.5]"):
        path.write_text(f"defaults: [train, _self_]\ndataset: {{columns: {{label: {label}}}}}\n")
        with pytest.raises(UserError, match=r"must be text.*; quote it$"):
            compose([f"recipe={path}"])
    for number in ("seed: '7'", "optimizer: {lr: '1e-3'}"):
        path.write_text(f"defaults: [train, _self_]\n{number}\n")
        with pytest.raises(UserError, match=r"must be a (whole )?number; remove the quotes$"):
            compose([f"recipe={path}"])
    path.write_text("defaults: [train, _self_]\ndataset: {columns: {label: ['12', yes, 猫]}}\n")
    assert compose([f"recipe={path}"]).config.dataset.columns.label == ["12", "yes", "猫"]


@given(st.text(min_size=1, max_size=30))
def test_any_text_can_be_written_as_a_word(text: str) -> None:
    problems = Problems()
    assignments = parse([word_of("run_name", text)], problems)
    assert ([a.value for a in assignments], problems) == ([text], [])


@pytest.mark.parametrize("name", NAMES[::3])
def test_every_verb_takes_text_literally(name: str) -> None:
    before = compose([]).config
    assert continued(before, [f"run_name={name}", f"dataset.path=/data/{name}"]).dataset.path == f"/data/{name}"
    assert read_values(Slurm, [f"{PREFIX}partition={name}"]).partition == name
    if "," not in name:
        (cell,) = expand([f"runs={name}"])
        assert cell.composed.config.runs == name
        assert [c.composed.config.runs for c in expand([f"runs={name},other"])] == [name, "other"]


def test_a_path_may_start_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    for text, path in {
        "~/imagenet": "/home/me/imagenet",
        "$HOME/imagenet": "/home/me/imagenet",
        "~": "/home/me",
        "$HOMER/x": "$HOMER/x",
        "./~/x": "./~/x",
        "/data/~": "/data/~",
        "s3://mine/~": "s3://mine/~",
    }.items():
        assert compose([f"runs={text}", f"dataset.path={text}"]).config.runs == path
        monkeypatch.setenv("TRAIN_DATA", text)
        assert compose(["recipe=hot"]).config.dataset.path == path
    with pytest.raises(UserError, match=r"runs=~nobody-here/x .*not a home folder"):
        compose(["runs=~nobody-here/x"])


def test_outer_quotes_and_null_are_not_text() -> None:
    config = compose(["run_name='null'", 'runs="my runs"', "target=null"]).config
    assert (config.run_name, config.runs, config.target) == ("null", "my runs", None)
    assert compose(["run_name=null"]).config.run_name is None


@pytest.mark.parametrize("key", ["runs", "run_name", "dataset.path", "recipe", "model"])
def test_an_empty_value_is_refused(key: str) -> None:
    with pytest.raises(UserError, match=f"{key}='' .*is empty"):
        compose([f"{key}="])


def test_a_tilde_turns_off_only_algorithms() -> None:
    with pytest.raises(UserError, match="~run_name: ~ only turns off an algorithm"):
        compose(["~run_name"])
