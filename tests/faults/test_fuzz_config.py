"""Untrusted recipes, resolved configs and command lines: they compose, or every error is one line."""

import json
import random
import shutil
from collections.abc import Iterator
from contextlib import chdir
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from launcher.config import resolved
from launcher.config.algorithms import ALGORITHMS
from launcher.config.compose import compose
from launcher.config.keys import all_keys
from launcher.config.yaml_file import as_yaml, read_mapping
from launcher.errors import UserError
from launcher.launch import start
from launcher.plan.checks import check
from launcher.plan.plan import Plan
from launcher.records.run_folder import create
from tests.commands import execute
from tests.made_runs import append, records

HEADER: dict[str, Any] = {"summary": "anything", "epochs": [1, None], "published": []}

NUMBERS = st.one_of(
    st.integers(),
    st.floats(),
    st.sampled_from([0, -1, 1, 2**31, 2**63 - 1, 2**63, 10**30, 1e15, 1e308, -1e308, 5e-324, float("inf")]),
)
TEXTS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        [
            *("on", "off", "auto", "8ep", "0ba", "1.5dur", "999999999999999999ep", "9" * 400 + "ba", "lamb", "../x"),
            *("${seed}", "${oc.env:HOME}", "${a", "${run_name}", "[/]", "\0", "\ud800", "\x1b[2J", "a\nb", "b" * 3000),
        ]
    ),
)
LEAVES = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS | st.integers(), inner, max_size=3)
)
KEYS = st.one_of(
    st.sampled_from([*all_keys(), *(f"algorithms.{name}" for name in ALGORITHMS.declarations())]),
    TEXTS,
    st.just(".".join("a" * 30)),
)


@pytest.fixture(scope="module", autouse=True)
def recipes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Work in a folder with a folder of recipes."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "recipes").mkdir()
    with chdir(folder):
        yield folder / "recipes"


@cache
def valid_values() -> dict[str, Any]:
    return resolved.as_mapping(compose(["recipe=hot"]).config)


def works_or_prints_errors(*words: str) -> None:
    # note: exceptions other than UserError fail the test
    code, _, errors = execute(*words)
    lines = [line for line in errors.splitlines() if not line.startswith(("note: ", "auto: "))]
    assert code == (2 if lines else 0)
    assert all(line.startswith("error: ") for line in lines)


def is_printable(error: UserError, start: str = "") -> None:
    assert error.problems
    assert all(str(problem).startswith(start) and str(problem).isprintable() for problem in error.problems)


def changed(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return the values with changed dotted keys, where their parents are mappings."""
    copy = yaml.safe_load(yaml.safe_dump(values))
    for key, value in changes.items():
        *parents, leaf = key.split(".")
        node = copy
        for parent in parents:
            node = node.setdefault(parent, {}) if isinstance(node, dict) else None
        if isinstance(node, dict):
            node[leaf] = value
    return copy


def yaml_of(values: Any) -> str:
    return yaml.safe_dump(values, allow_unicode=True)


@settings(max_examples=12)
@example(changes={"epochs": 10**400})
@example(changes={"schedule.dilate": 1e308})
@example(changes={"schedule.warmup": "9" * 400 + "ep"})
@example(changes={"defaults": ["train", {"override model": {"a": [1]}}, {"override algorithms": 3}, 4, None, "_self_"]})
@example(changes={"defaults": ["train", {"override optimizer": "${oc.env:HOME}"}, "_self_"]})
@example(changes={"defaults": {"a": 1}})
@example(changes={"algorithms": {"ema": {"half_life": {"a": [1]}}}})
@example(changes={"defaults": [["train"], "train", "train", "_self_"]})
@example(changes={"run_name": "\ud800"})
@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_no_values_of_a_recipe_crash_the_plan(recipes: Path, changes: dict[str, Any]) -> None:
    text = yaml_of(changed({"defaults": ["train", "_self_"], "about": HEADER}, changes))
    (recipes / "mine.yaml").write_text(text, encoding="utf-8", errors="surrogatepass")
    works_or_prints_errors("plan", "recipe=mine", "dataset=shapes", "model=resnet18")


@settings(max_examples=15)
@given(st.sampled_from(["about.summary", "about.epochs", "about.published", "about", "defaults"]), VALUES)
def test_no_header_of_a_recipe_crashes_the_list(recipes: Path, where: str, value: Any) -> None:
    text = yaml_of(changed({"defaults": ["train", "_self_"], "about": HEADER}, {where: value}))
    (recipes / "mine.yaml").write_text(text, encoding="utf-8", errors="surrogatepass")
    try:
        works_or_prints_errors("ls", "recipes")
    finally:
        (recipes / "mine.yaml").unlink()


@settings(max_examples=60)
@given(changes=st.dictionaries(KEYS, VALUES, min_size=1, max_size=3))
def test_no_edited_config_crashes_the_start_of_a_resume(tmp_path_factory: Any, changes: dict[str, Any]) -> None:
    path = tmp_path_factory.getbasetemp() / "config.yaml"
    path.write_text(yaml_of(changed(valid_values(), changes)), encoding="utf-8", errors="surrogatepass")
    try:
        config = resolved.read(path)
        if config.dataset.train_samples is not None:
            plan = Plan(config, 2, config.dataset.train_samples)
            check(plan, {})
            last = max(0, plan.total_steps - 1)
            assert [plan.lr(step) >= 0 and plan.view(step) >= 1 for step in (0, last // 2, last)]
    except UserError as error:
        is_printable(error)
    else:
        resolved.write(config, path)
        assert resolved.read(path) == config


@settings(max_examples=200)
@example(text="&a [*a]")
@example(text="a: &a [x]\nb: [*a, *a]")
@example(text="<<: {a: 1}")
@example(text="a: " + "[" * 5000)
@example(text="? [a]\n: 1")
@example(text="a: 0x" + "f" * 5000)
@example(text="a: 1:2:3\nb: 0o7\nc: 0b_\nd: 1e5000\ne: -._")
@example(text="%YAML 9.9\n--- a")
@example(text="a: \ud800")
@given(
    text=st.one_of(
        st.text(max_size=80),
        st.text(alphabet="ab:- \n[]{}&*!|>%?'\"#,0_.e~<=@`", max_size=60),
        st.lists(
            st.sampled_from(["a", ":", " ", "\n", "- ", "!!int ", "&b ", "*b", "? ", "|", "0x_", "'", "{", "}"])
        ).map("".join),
    )
)
def test_no_text_crashes_the_yaml_reader(tmp_path_factory: Any, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    try:
        values = read_mapping(path)
    except UserError as error:
        is_printable(error, str(path))
    else:
        assert isinstance(values, dict)


@settings(max_examples=60)
@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=8),
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**63)
        | st.floats(allow_nan=False)
        | st.text(st.characters(codec="utf-8")),
        max_size=6,
    )
)
def test_plain_values_are_read_as_they_were_written(tmp_path_factory: Any, values: dict[str, Any]) -> None:
    path = tmp_path_factory.getbasetemp() / "plain.yaml"
    path.write_text(as_yaml(values), encoding="utf-8")
    assert read_mapping(path) == values


def words() -> st.SearchStrategy[list[str]]:
    """Draw words that are similar to Hydra's overrides."""
    punctuation = st.text(alphabet="[]{}(),:='\"\\$@~+. ab1\n*", max_size=16)
    nested = st.recursive(
        st.sampled_from(["1", "a", "null", "'x'", "1e999", "${seed}", "${oc.env:HOME}", "range(1,3)", "int(1)", "???"]),
        lambda inner: (
            st.lists(inner, max_size=3).map(lambda parts: f"[{','.join(parts)}]")
            | st.dictionaries(st.sampled_from("abc"), inner, max_size=2).map(
                lambda parts: "{" + ",".join(f"{k}:{v}" for k, v in parts.items()) + "}"
            )
        ),
    )
    value = st.one_of(nested, punctuation, TEXTS.map(repr), TEXTS)
    word = st.builds("{}{}={}".format, st.sampled_from(["", "+", "++", "~"]), KEYS, value)
    return st.lists(word | punctuation, max_size=3)


@settings(max_examples=12)
@example(overrides=["a." * 5000 + "b=1"])
@example(overrides=["run_name=" + "[" * 5000])
@example(overrides=["algorithms=" + "{a:" * 60 + "1" + "}" * 60])
@example(overrides=["optimizer.lr=" + "1" * 5000])
@example(overrides=["dataset=image_folder", f"dataset.path={'a' * 5000}"])
@example(overrides=["dataset=image_folder", "dataset.path='/data/\udc80'"])
@example(overrides=["runs='[/x]'", "run_name='[/]'"])
@example(overrides=["nokey\nerror: nothing"])
@example(overrides=["algorithms.sam=[1]"])
@example(overrides=["optimizer={name:sgd}"])
@example(overrides=["optimizer={name:[1]}"])
@example(overrides=["optimizer.name={a:1}"])
@example(overrides=["model=[]"])
@example(overrides=["recipe=[mild]"])
@example(overrides=["model=../dataset/shapes"])
@example(overrides=["dataset.path=${dataset.path}"])
@example(overrides=["image=1", "image.scale=2"])
@example(overrides=["algorithms={ema:on,sam:{rho:0.1}}"])
@example(overrides=["schedule.dilate=1e300"])
@example(overrides=["epochs=100000000000000000000000"])
@example(overrides=["algorithms.sam.interval.x=1"])
@given(overrides=words())
def test_no_override_crashes_show_or_plan(overrides: list[str]) -> None:
    for verb in ("show", "plan"):
        works_or_prints_errors(verb, "--", *overrides)


# -- bytes of a run folder and of a recipe

MUTANTS = 4  # of each file; 350 of each were tried by hand
OF_A_RUN = ("config.yaml", "metrics.jsonl", "attempts.jsonl", "dataset.json", "environment.json")


def mutant(data: bytes, draw: random.Random) -> bytes:
    """Change, remove or repeat some bytes."""
    mutated = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        at = draw.randrange(len(mutated))
        length = draw.choice((1, 1, 5, 50))
        change = [
            bytes([draw.randrange(256)]),
            bytes([mutated[at] ^ 1 << draw.randrange(8)]),
            b"",
            draw.randbytes(length) + mutated[at : at + 1],
            mutated[at : at + length] * 2,
            bytes([draw.choice(b"0123456789-.eE\n :{}[],\"'nulltrue")]),
        ]
        mutated[at : at + (1 if draw.random() < 0.7 else length)] = draw.choice(change)
    return bytes(mutated or b"\0")


@pytest.fixture(scope="module")
def run(recipes: Path) -> Path:
    """Return the folder of a run on the built-in images that was killed after its last evaluation."""
    folder = create(recipes.parent / "runs", "mutated")
    words = ["recipe=mild", "dataset=shapes", "dataset.train_samples=96", "dataset.val_samples=50", "launch=cpu"]
    resolved.write(compose([*words, "model=resnet18", "epochs=2", "batch_size=16"]).config, folder.config)
    append(folder.metrics, *records([0.5, 0.6], [70.0, 60.0], None))
    append(folder.attempts, *records([], [], None))
    folder.dataset.write_text(json.dumps({"identities": ["a" * 64]}))
    folder.environment.write_text(json.dumps({"command": ["train", "recipe=mild"], "packages": {"torch": "2.11"}}))
    return folder.path


@pytest.mark.parametrize("name", [*OF_A_RUN, "recipe"])
def test_no_changed_bytes_crash_a_verb(
    run: Path, recipes: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "_train", lambda folder, *_: start.Ended(folder, 0))
    if name == "recipe":
        path, content = recipes / "mine.yaml", (Path(__file__).parents[2] / "recipes" / "mild.yaml").read_bytes()
        verbs = [["plan", "recipe=mine", "dataset=shapes", "batch_size=16"], ["ls", "recipes"]]
    else:
        copy = shutil.copytree(run, tmp_path / "runs" / "copy")
        path, content = copy / name, (run / name).read_bytes()
        verbs = [["ls", "runs", str(copy)], ["compare", str(copy), "--json"], ["resume", str(copy)]]
    for number in range(MUTANTS):
        path.write_bytes(mutant(content, random.Random(f"{name} {number}")))
        for words in verbs:
            works_or_prints_errors(*words)
    if name == "recipe":
        path.unlink()
