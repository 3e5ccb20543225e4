"""The defaults that Hydra composes are kept, and never answer for a conf/ that has changed since."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import compose as hydras_compose
from hydra import initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from launcher import paths
from launcher.config import defaults as module
from launcher.config.compose import compose
from launcher.config.defaults import options
from launcher.config.overrides import parse
from launcher.config.schema import GROUPS
from launcher.errors import Problems, UserError
from tests.forked import Command

COMPOSED = module._composed


def hydra(*words: str) -> Any:
    """What Hydra itself composes."""
    with initialize_config_dir(config_dir=str(paths.CONF), version_base="1.3"):
        return OmegaConf.to_container(hydras_compose("train", [*words]))


@pytest.fixture
def conf(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A copy of conf/ and an empty cache folder: each call of `values` is a command of its own."""
    shutil.copytree(paths.CONF, tmp_path / "conf")
    monkeypatch.setattr(paths, "CONF", tmp_path / "conf")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield tmp_path / "conf"
    forget()


def forget() -> None:
    module._values.cache_clear()
    module._files_digest.cache_clear()


@pytest.fixture
def composed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What Hydra is asked for, each time."""
    calls: list[Any] = []
    monkeypatch.setattr(module, "_composed", lambda names: (calls.append({*names}), COMPOSED(names))[1])
    return calls


def values(*algorithms: str, **chosen: str) -> Any:
    forget()
    return module.defaults(chosen, algorithms)


def kept(conf: Path) -> list[Path]:
    return sorted((conf.parent / "cache" / "train-launcher" / "composed").iterdir())


@pytest.mark.usefixtures("conf")
def test_what_is_kept_is_what_hydra_composes_and_each_option_is_composed_once(composed: list[Any]) -> None:
    first, other = values("mixup", model="resnet50"), values("mixup", "sam", "ema", model="resnet18", launch="cpu")
    assert other == hydra(
        *("model=resnet18", "launch=cpu"),
        *(f"+algorithms@algorithms.{name}={name}" for name in ("ema", "mixup", "sam")),
    )
    assert first["algorithms"] == {"mixup": other["algorithms"]["mixup"]}
    assert list(other) == list(hydra())
    assert values("mixup", model="resnet50") == first
    assert values("sam", launch="cpu")["launch"] == other["launch"]
    assert composed == [
        {"train", "model/resnet50", "algorithms/mixup"},
        {"model/resnet18", "launch/cpu", "algorithms/sam", "algorithms/ema"},
    ]


def test_each_option_has_the_values_of_its_file() -> None:
    for name, composed in COMPOSED([f"{group}/{option}" for group in GROUPS for option in options(group)]).items():
        file = paths.CONF / f"{name}.yaml"
        own = yaml.safe_load(file.read_text()) if composed else {}
        for base in own.pop("defaults", [])[:1]:
            own = {**yaml.safe_load(file.with_stem(base).read_text()), **own}
        assert composed == own, name


@pytest.mark.parametrize("name", ["8xh100", "my-model", "a.b", "007", "1e5", "null", "x y"])
def test_an_option_may_have_any_name(conf: Path, name: str) -> None:
    shutil.copy(conf / "optimizer" / "sgd.yaml", conf / "optimizer" / f"{name}.yaml")
    assert values(optimizer=name)["optimizer"]["name"] == "sgd"


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("train.yaml", "epochs: 10", "epochs: 11"),
        ("algorithms/mixup.yaml", "alpha: 0.2", "alpha: 0.3"),
        ("schedule/cosine.yaml", "final: 0.0", "final: 0.5"),
    ],
)
def test_a_change_of_any_file_is_seen_at_once(conf: Path, file: str, old: str, new: str) -> None:
    before = values("mixup")
    path = conf / file
    changed = path.read_text().replace(old, new)
    assert changed != path.read_text()
    path.write_text(changed)
    after = values("mixup")
    assert after != before
    assert after == hydra("+algorithms@algorithms.mixup=mixup")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("alpha: [", r"/conf cannot be composed: .*expected the node content.* in \S*/mixup\.yaml\", line 2"),
        ("defaults: [nope]", r"/conf cannot be composed: .*Could not load 'algorithms/nope'"),
        ("3", r"/conf cannot be composed: \S+"),
    ],
)
def test_a_file_that_hydra_cannot_compose_is_one_line(conf: Path, text: str, said: str) -> None:
    (conf / "algorithms" / "mixup.yaml").write_text(f"{text}\n")
    with pytest.raises(UserError, match=said) as told:
        values("mixup")
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("damage", [b"", b"{}", b"\xff\xfe", b"half", b"other"])
def test_a_damaged_file_is_composed_anew(conf: Path, composed: list[Any], damage: bytes) -> None:
    right = values()
    (file,) = kept(conf)
    content = file.read_bytes()
    file.write_bytes(
        {b"half": content[: len(content) // 2], b"other": content.replace(b"42", b"43")}.get(damage, damage)
    )
    assert values() == right
    assert len(composed) == 2
    assert [path.read_bytes() for path in kept(conf)] == [content]


def test_a_cache_folder_that_cannot_be_written_is_done_without(conf: Path, composed: list[Any]) -> None:
    (conf.parent / "cache").write_text("no folder")
    assert values() == values()
    assert len(composed) == 2


@pytest.mark.usefixtures("conf")
def test_without_a_home_there_is_no_cache(monkeypatch: pytest.MonkeyPatch, composed: list[Any]) -> None:
    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", nobody)
    assert values()["epochs"] == 10
    assert len(composed) == 1


def test_many_processes_at_once_leave_one_whole_file(tmp_path: Path) -> None:
    values, file = {str(key): [key] * 9 for key in range(500)}, tmp_path / "kept" / "values.json"
    script = "import pathlib, sys; from launcher.config import defaults as module\n"
    script += "for _ in range(5): module._keep({str(key): [key] * 9 for key in range(500)}, pathlib.Path(sys.argv[1]))"
    processes = [Command(["-c", script, str(file)], tmp_path, os.environ) for _ in range(4)]
    assert [process.wait() for process in processes] == [0] * 4
    assert list(file.parent.iterdir()) == [file]
    assert module._read(file) == values


@pytest.mark.usefixtures("conf")
def test_a_changed_recipe_is_seen_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").mkdir()
    recipe = tmp_path / "recipes" / "own.yaml"
    for epochs in (3, 4):
        recipe.write_text(f"base: mild\nabout: {{summary: own, epochs: [1, null], published: []}}\nepochs: {epochs}\n")
        assert compose(["recipe=own"]).config.epochs == epochs


NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,5}", fullmatch=True)
NUMBERS = st.one_of(st.integers().map(str), st.floats().map(str), st.from_regex(r"[-+]?[0-9._eE]{1,6}", fullmatch=True))
SCALARS = st.one_of(
    NAMES, NUMBERS, st.sampled_from(["True", "FALSE", "Null", "inf", "-nan", "Infinity", "1e-4", "007"])
)


@settings(deadline=None)
@given(
    key=st.lists(NAMES, min_size=1, max_size=3).map(".".join),
    parts=st.lists(SCALARS, max_size=3),
    several=st.booleans(),
)
def test_plain_words_are_read_as_hydra_reads_them(key: str, parts: list[str], several: bool) -> None:
    word = f"{key}=[{','.join(parts)}]" if several or not parts else f"{key}={parts[0]}"
    problems = Problems()
    (assignment,) = parse([word], problems, lambda _: False)
    override = OverridesParser.create().parse_override(word)
    assert not problems
    assert assignment.key == override.key_or_group
    assert repr(assignment.value) == repr(override.value())
