"""Untrusted YAML and overrides: none runs code, crashes or blocks; each error is one line."""

import io
import os
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import yaml

from launcher.cli.main import main
from launcher.config import resolved
from launcher.config.compose import compose
from launcher.config.yaml_file import read_mapping
from launcher.errors import Problem, UserError
from tests.commands import execute, output_of, refused

HEADER = "defaults: [train, _self_]\nabout: {summary: odd, epochs: [1, null]}\n"


@pytest.fixture
def recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder with a folder of recipes."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").mkdir()
    return tmp_path / "recipes"


# -- YAML

BOMB = "a: &a [x, x]\n" + "".join(f"{b}: &{b} [*{a}, *{a}, *{a}, *{a}]\n" for a, b in zip("abcdefgh", "bcdefghi"))  # noqa: B905


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (BOMB, r":2: aliases"),
        ("a: &a [*a]\n", r":1: aliases"),
        ("seed: !!python/object/apply:os.mkdir [trace]\n", "tags such as .*python/object/apply:os.mkdir are not"),
        ("seed: !!python/name:os.system\n", "tags such as"),
        ("seed: !!binary aGk=\n", "tags such as"),
        ("!!set {a, b}\n", "tags such as"),
        ("a: " + "[" * 5000, "nested more than 20 levels"),
        ("a: " + "{b: " * 30 + "1" + "}" * 30, "nested more than 20 levels"),
        ("- " * 5000, "nested more than 20 levels"),
        ("# " + "long\n# " * 40_000, "larger than 100,000 bytes"),
        ("seed: 1\nseed: 2\n", ":2: duplicate key seed"),
        ("true: 1\n", ":1: a key must be text; quote it"),
        ("? [a, b]\n: 1\n", "hash|a key must be text"),
        ("a: 1\n---\nb: 2\n", ":2: .*document"),
        ("a: \0", "characters are not allowed"),
        ("a: [1\nb: 2\n", ":2: "),
        ("[1, 2]\n", ":1: must be a mapping of keys to values"),
        ("", ":1: must be a mapping of keys to values"),
    ],
)
def test_yaml_with_more_than_plain_values_is_refused(recipes: Path, text: str, expected: str) -> None:
    (recipes / "odd.yaml").write_text(text)
    with pytest.raises(UserError, match=expected) as caught:
        read_mapping(recipes / "odd.yaml")
    assert str(caught.value).startswith(str(recipes / "odd.yaml"))
    refused("plan", "recipe=odd")
    code, listed, notes = execute("ls", "recipes")
    assert (code, "mild" in listed, notes.startswith(f"note: skipped: {recipes}/odd.yaml")) == (0, True, True)
    assert list(recipes.parent.iterdir()) == [recipes]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("seed: é\n".encode("latin-1"), r"not UTF-8 text \(byte 6\)"),
        ("seed: 1\n".encode("utf-16"), r"not UTF-8 text \(byte 0\)"),
        ("seed: 1\n".encode("utf-32-le"), "characters are not allowed"),
        (bytes(range(256)), "characters are not allowed|not UTF-8"),
    ],
)
def test_a_wrong_encoding_is_refused(tmp_path: Path, content: bytes, expected: str) -> None:
    (tmp_path / "config.yaml").write_bytes(content)
    with pytest.raises(UserError, match=expected):
        resolved.read(tmp_path / "config.yaml")


def test_a_byte_order_mark_is_accepted(recipes: Path) -> None:
    (recipes / "marked.yaml").write_bytes(b"\xef\xbb\xbf" + HEADER.encode() + b"epochs: 3\n")
    assert compose(["recipe=marked"]).config.epochs == 3


def test_a_recipe_that_is_not_a_file_is_refused_at_once(recipes: Path) -> None:
    (recipes / "folder.yaml").mkdir()
    assert refused("plan", "recipe=folder") == f"error: {recipes}/folder.yaml is a folder; set a YAML file\n"
    (recipes / "loop.yaml").symlink_to("loop.yaml")
    assert "symbolic links" in refused("plan", "recipe=loop")


def test_yaml_numbers_and_text_are_read_as_written(tmp_path: Path) -> None:
    (tmp_path / "plain.yaml").write_text("a: 5e-4\nb: 2022-07-01\nc: off\nd: 1.5\ne: 'off'\nf: <<\ng: .inf\n")
    values = read_mapping(tmp_path / "plain.yaml")
    assert values == {"a": 5e-4, "b": "2022-07-01", "c": "off", "d": 1.5, "e": "off", "f": "<<", "g": float("inf")}
    (tmp_path / "odd.yaml").write_text(f"a: 1:30\nb: 0x{'f' * 4000}\nc: {'9' * 5000}\nd: -{'9' * 19}\ne: 0\n")
    odd = {"a": "1:30", "b": "0x" + "f" * 4000, "c": float("inf"), "d": -(10**19 - 1), "e": 0}
    assert read_mapping(tmp_path / "odd.yaml") == odd


def test_a_long_chain_of_bases_is_refused(recipes: Path) -> None:
    for number in range(300):
        (recipes / f"b{number}.yaml").write_text(f"defaults: [b{number + 1}, _self_]\n")
    assert "more than 10 recipes" in refused("plan", "recipe=b0")


@pytest.mark.parametrize(
    "summary",
    ["[/x]", "[red]", "[link=file:///etc]a", "\x1b[2J", "a\nb", "\ud800".encode("utf-16", "surrogatepass").hex()],
)
def test_a_recipe_cannot_send_escape_sequences_to_the_terminal(recipes: Path, summary: str) -> None:
    about = {"summary": summary, "epochs": [1, 5]}
    values = {"defaults": ["train", {"override optimizer": "sgd"}, "_self_"], "about": about, "optimizer": {"lr": 1.0}}
    (recipes / "[[odd]].yaml").write_text(yaml.safe_dump(values))
    out = output_of("ls", "recipes")
    assert "[[odd]]" in out
    assert "\x1b" not in out
    for verb in ("plan", "show"):
        assert execute(verb, "recipe='[[odd]]'", "optimizer=lamb", "epochs=9")[0] == 0


def test_recipes_with_unusual_names_are_listed(recipes: Path) -> None:
    (Path(os.fsdecode(os.fsencode(recipes) + b"/\xff\xfe.yaml"))).write_text(HEADER)
    (recipes / "new\nline.yaml").write_text(HEADER)
    with redirect_stdout(io.TextIOWrapper(io.BytesIO(), encoding="utf-8")):
        assert main(["ls", "recipes"]) == 0
        assert main(["ls", "recipes", "--json"]) == 0


# -- references and overrides


@pytest.mark.parametrize(
    "reference",
    [
        *("oc.env:SECRET", "oc.env:SECRET,x", "oc.decode:1", "oc.create:{a:1}", "oc.select:seed", "hydra:runtime.cwd"),
        *("now:%Y", "python_version:", "oc.dict.values:model", "${recipe}", "", ".seed", "seed", "a b", "model"),
    ],
)
def test_a_reference_can_only_refer_to_a_key(recipes: Path, monkeypatch: pytest.MonkeyPatch, reference: str) -> None:
    monkeypatch.setenv("SECRET", "opensesame")
    (recipes / "odd.yaml").write_text(f'{HEADER}run_name: "${{{reference}}}"\n')
    if reference == "seed":
        (recipes / "odd.yaml").write_text(f'{HEADER}run_name: "x${{{reference}}}"\n')
        assert compose(["recipe=odd"]).config.run_name == "x42"
        return
    for words in (["recipe=odd"], [f"run_name='${{{reference}}}'"]):
        assert "cannot be resolved" in refused("show", *words)
        assert "opensesame" not in refused("plan", *words)


def test_nested_references_are_refused(recipes: Path) -> None:
    chain = "".join(f"x{n}: '{f'${{x{n + 1}}}' * 50}'\n" for n in range(9))
    (recipes / "odd.yaml").write_text(f"{HEADER}{chain}x9: '{'a' * 5000}'\nrun_name: '${{x0}}'\n")
    errors = execute("plan", "recipe=odd")[2]
    assert "run_name=${x0} (recipe odd): cannot be resolved: x0 is a reference itself" in errors
    assert "x9 has more than 1000 characters" in errors


@pytest.mark.parametrize("name", ["../up", "a/b", "..", ".", ".a", "", "a\nb", "\x1b[2J", "n" * 300])
def test_a_run_name_must_be_a_folder_name(name: str) -> None:
    assert "run_name" in refused("plan", f"run_name='{name}'")


def test_an_error_is_one_line_with_any_characters() -> None:
    assert str(Problem("a\nb\x1b[2J", "k\r", "\udcff")) == r"k\r=\udcff: a\nb\x1b[2J"
    assert "emoji 🙂 and é" in str(Problem("emoji 🙂 and é"))


def test_a_long_value_keeps_its_start_and_its_end() -> None:
    shown = str(Problem("no such file", "dataset.path", f"/home/me/{'deep/' * 40}table.csv"))
    start, end = shown.split("...")
    assert start.startswith("dataset.path=/home/me/deep")
    assert end.endswith("deep/table.csv: no such file")
    assert len(shown) == len("dataset.path=: no such file") + 80
