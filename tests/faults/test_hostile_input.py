"""Files that nobody should trust: no code runs, nothing crashes or waits, one clear line says what is wrong."""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from launcher.cli.main import main
from launcher.config import resolved
from launcher.config.compose import compose
from launcher.config.yaml_file import as_yaml, read_mapping
from launcher.data.crops import centre_cut
from launcher.data.decode import NoPicture, decode, size
from launcher.data.folder import counts, scan
from launcher.data.folder_facts import picture_facts
from launcher.data.pictures import Pictures
from launcher.errors import Problem, UserError
from launcher.records.folder import RunFolder, create, existing
from launcher.study.runs import read_run

HEADER = "about: {summary: odd, epochs: [1, null], published: []}\n"


def said(*words: str) -> tuple[int, str, str]:
    """Exit code, output and error lines of one command."""
    out, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(errors):
        code = main(words)
    return code, out.getvalue(), errors.getvalue()


def refused(*words: str) -> str:
    """The one line that a command is refused with."""
    code, _, errors = said(*words)
    assert code == 2
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1
    return errors


@pytest.fixture
def recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of recipes of the working directory."""
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
        ("seed: !!python/object/apply:os.mkdir [trace]\n", "tags such as .*python/object/apply:os.mkdir are not read"),
        ("seed: !!python/name:os.system\n", "tags such as"),
        ("seed: !!binary aGk=\n", "tags such as"),
        ("!!set {a, b}\n", "tags such as"),
        ("a: " + "[" * 5000, "nested more than 20 deep"),
        ("a: " + "{b: " * 30 + "1" + "}" * 30, "nested more than 20 deep"),
        ("- " * 5000, "nested more than 20 deep"),
        ("# " + "long\n# " * 40_000, "larger than 100 kB"),
        ("seed: 1\nseed: 2\n", ":2: seed is given twice"),
        ("on: 1\n", ":1: a key is text; put it into quotes"),
        ("? [a, b]\n: 1\n", "hash|a key is text"),
        ("seed: 0x" + "f" * 4000, ":1: is larger than any number here"),
        ("seed: " + "9" * 5000, ":1: is no number"),
        ("a: 1\n---\nb: 2\n", ":2: .*document"),
        ("a: \0", "characters are not allowed"),
        ("a: [1\nb: 2\n", ":2: "),
        ("[1, 2]\n", ":1: a mapping of keys to values is expected"),
        ("", ":1: a mapping of keys to values is expected"),
    ],
)
def test_yaml_that_is_more_than_plain_values_is_refused(recipes: Path, text: str, expected: str) -> None:
    (recipes / "odd.yaml").write_text(text)
    with pytest.raises(UserError, match=expected) as caught:
        read_mapping(recipes / "odd.yaml")
    assert str(caught.value).startswith(str(recipes / "odd.yaml"))
    refused("plan", "recipe=odd")
    refused("ls", "recipes")
    assert list(recipes.parent.iterdir()) == [recipes]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("seed: é\n".encode("latin-1"), r"no UTF-8 text \(byte 6\)"),
        ("seed: 1\n".encode("utf-16"), r"no UTF-8 text \(byte 0\)"),
        ("seed: 1\n".encode("utf-32-le"), "characters are not allowed"),
        (bytes(range(256)), "characters are not allowed|no UTF-8"),
    ],
)
def test_a_wrong_encoding_is_told(tmp_path: Path, content: bytes, expected: str) -> None:
    (tmp_path / "config.yaml").write_bytes(content)
    with pytest.raises(UserError, match=expected):
        resolved.read(tmp_path / "config.yaml")


def test_a_byte_order_mark_is_harmless(recipes: Path) -> None:
    (recipes / "marked.yaml").write_bytes(b"\xef\xbb\xbf" + HEADER.encode() + b"epochs: 3\n")
    assert compose(["recipe=marked"]).config.epochs == 3


def test_what_is_no_file_is_not_waited_for(recipes: Path) -> None:
    os.mkfifo(recipes / "pipe.yaml")
    assert "is no file" in refused("plan", "recipe=pipe")
    (recipes / "device.yaml").symlink_to("/dev/zero")
    assert "is no file" in refused("plan", "recipe=device")
    (recipes / "folder.yaml").mkdir()
    assert "is no file" in refused("plan", "recipe=folder")
    (recipes / "loop.yaml").symlink_to("loop.yaml")
    assert "symbolic links" in refused("plan", "recipe=loop")


def test_numbers_and_text_are_what_they_look_like(tmp_path: Path) -> None:
    (tmp_path / "plain.yaml").write_text("a: 5e-4\nb: 2022-07-01\nc: off\nd: 1.5\ne: 'off'\nf: <<\ng: .inf\n")
    values = read_mapping(tmp_path / "plain.yaml")
    assert values == {"a": 5e-4, "b": "2022-07-01", "c": False, "d": 1.5, "e": "off", "f": "<<", "g": float("inf")}


def test_a_chain_of_bases_ends(recipes: Path) -> None:
    for number in range(300):
        (recipes / f"b{number}.yaml").write_text(f"{HEADER}base: b{number + 1}\n")
    assert "leads over" in refused("plan", "recipe=b0")


@pytest.mark.parametrize(
    "summary",
    ["[/x]", "[red]", "[link=file:///etc]a", "\x1b[2J", "a\nb", "\ud800".encode("utf-16", "surrogatepass").hex()],
)
def test_a_recipe_cannot_draw_on_the_terminal(recipes: Path, summary: str) -> None:
    values = {"about": {"summary": summary, "epochs": [1, 5], "published": []}, "optimizer": {"name": "sgd"}}
    (recipes / "[[odd]].yaml").write_text(yaml.safe_dump(values))
    code, out, _ = said("ls", "recipes")
    assert code == 0
    assert "[[odd]]" in out
    assert "\x1b" not in out
    for verb in ("plan", "show"):
        assert said(verb, "recipe='[[odd]]'", "optimizer=lamb", "epochs=9")[0] == 0


def test_odd_names_among_the_recipes_are_listed(recipes: Path) -> None:
    (Path(os.fsdecode(os.fsencode(recipes) + b"/\xff\xfe.yaml"))).write_text(HEADER)
    (recipes / "new\nline.yaml").write_text(HEADER)
    with redirect_stdout(io.TextIOWrapper(io.BytesIO(), encoding="utf-8")):
        assert main(["ls", "recipes"]) == 0
        assert main(["ls", "recipes", "--json"]) == 0


# -- references and overrides


@pytest.mark.parametrize(
    "reference",
    [
        *(
            "oc.env:SECRET",
            "oc.env:SECRET,x",
            "oc.decode:1",
            "oc.create:{a:1}",
            "oc.select:seed",
            "hydra:runtime.cwd",
        ),
        *("now:%Y", "python_version:", "oc.dict.values:model", "${recipe}", "", ".seed", "seed", "a b", "model"),
    ],
)
def test_a_reference_names_a_key_and_nothing_else(
    recipes: Path, monkeypatch: pytest.MonkeyPatch, reference: str
) -> None:
    monkeypatch.setenv("SECRET", "opensesame")
    (recipes / "odd.yaml").write_text(f'{HEADER}run_name: "${{{reference}}}"\n')
    if reference == "seed":
        (recipes / "odd.yaml").write_text(f'{HEADER}run_name: "x${{{reference}}}"\n')
        assert compose(["recipe=odd"]).config.run_name == "x42"
        return
    for words in (["recipe=odd"], [f"run_name='${{{reference}}}'"]):
        assert "cannot be resolved" in refused("show", *words)
        assert "opensesame" not in refused("plan", *words)


def test_references_do_not_multiply(recipes: Path) -> None:
    chain = "".join(f"x{n}: '{f'${{x{n + 1}}}' * 50}'\n" for n in range(9))
    (recipes / "odd.yaml").write_text(f"{HEADER}{chain}x9: ''\nrun_name: '${{x0}}'\n")
    assert all(
        "no such key" in line for line in said("plan", "recipe=odd")[2].splitlines() if line.startswith("error: x")
    )
    (recipes / "odd.yaml").write_text(f"{HEADER}{chain}x9: '{'y' * 50}'\nrun_name: '${{x0}}'\n")
    assert "longer than 1000 characters" in said("plan", "recipe=odd")[2]


@pytest.mark.parametrize("name", ["../up", "a/b", "..", ".", "", "a\nb", "\x1b[2J", "n" * 300])
def test_a_run_is_named_like_a_folder(name: str) -> None:
    assert "run_name" in refused("plan", f"run_name='{name}'")


def test_an_error_is_one_line_whatever_is_in_it() -> None:
    assert str(Problem("a\nb\x1b[2J", "k\r", "\udcff")) == r"k\r=\udcff: a\nb\x1b[2J"
    assert "emoji 🙂 and é" in str(Problem("emoji 🙂 and é"))


# -- folders of pictures


def folder_of(path: Path, *names: bytes) -> Path:
    """Class folders with one picture each in train/ and val/."""
    for split in (b"train", b"val"):
        for name in names or (b"a",):
            folder = os.path.join(os.fsencode(path), split, name)  # noqa: PTH118 - bytes
            os.makedirs(folder)  # noqa: PTH103
            Image.new("RGB", (9, 7), (200, 10, 10)).save(os.fsdecode(folder + b"/p.png"))
    return path


ODD_NAMES = [b"new\nline", b"not\xffutf8", b"-rf", "emoji🙂".encode(), b" ", b"[x]", b"$(touch x)", b"%s", b"a" * 255]


def test_odd_names_are_read_like_any(tmp_path: Path) -> None:
    folder_of(tmp_path, *ODD_NAMES)
    assert counts(tmp_path) == (len(ODD_NAMES), len(ODD_NAMES), len(ODD_NAMES))
    found = scan(tmp_path, "train")
    assert sorted(map(os.fsencode, found.classes)) == sorted(ODD_NAMES)
    pictures = Pictures(found)
    assert all(pictures.open(number).getpixel((0, 0)) == (200, 10, 10) for number in range(len(ODD_NAMES)))


def test_what_is_wrong_with_an_odd_name_is_one_line(tmp_path: Path) -> None:
    folder_of(tmp_path, *ODD_NAMES)
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/train/not\xffutf8/p.png"))
    odd.write_bytes(b"")
    pictures = Pictures(scan(tmp_path, "train"))
    lines = []
    for number in range(len(ODD_NAMES)):
        try:
            pictures.open(number)
        except UserError as error:
            lines.append(str(error))
    assert len(lines) == 1
    assert r"not\udcffutf8/p.png cannot be read as a picture" in lines[0]
    odd.unlink()
    assert r"not\udcffutf8 holds no pictures" in refused("plan", "dataset=image_folder", f"dataset.path='{tmp_path}'")


@pytest.mark.parametrize("name", ["new\nline", "-rf", "emoji🙂", "[/x]", "a b"])
def test_the_folder_itself_may_have_an_odd_name(tmp_path: Path, name: str) -> None:
    words = ["dataset=image_folder", f"dataset.path='{folder_of(tmp_path / name)}'", "batch_size=1"]
    code, out, errors = said("plan", *words)
    assert (code, errors) == (0, "")
    assert "1 training pictures" in out


def test_a_folder_whose_name_is_no_text_is_refused(tmp_path: Path) -> None:
    path = folder_of(Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff")))
    assert "no UTF-8 text" in refused("plan", "dataset=image_folder", f"dataset.path='{path}'")


@pytest.mark.parametrize("path", ["a" * 5000, "/dev/null", "/dev/zero/x", "/nowhere"])
def test_a_path_that_is_no_folder_is_refused(path: str) -> None:
    assert "is no folder" in refused("plan", "dataset=image_folder", f"dataset.path='{path}'").replace(
        "not given", "no folder"
    )


def test_links_out_of_the_folder_and_in_loops_are_left_out(tmp_path: Path) -> None:
    train = folder_of(tmp_path / "data") / "train"
    secret = tmp_path / "secret"
    secret.mkdir()
    Image.new("RGB", (4, 4)).save(secret / "s.png")
    for name, target in {
        "out": secret,
        "up": Path("../../secret"),
        "self": Path("self"),
        "round": Path("trip"),
        "trip": Path("round"),
        "nothing": Path("nowhere"),
        "root": Path("/"),
    }.items():
        (train / name).symlink_to(target)
    for name, target in {
        "out.png": secret / "s.png",
        "loop.png": Path("loop.png"),
        "inside.png": Path("p.png"),
    }.items():
        (train / "a" / name).symlink_to(target)
    found = scan(tmp_path / "data", "train")
    assert found.files == ["a/inside.png", "a/p.png"]
    assert found.skipped == 9


def test_a_split_that_is_a_loop_is_no_folder(tmp_path: Path) -> None:
    folder_of(tmp_path)
    (tmp_path / "val").rename(tmp_path / "val2")
    (tmp_path / "val").symlink_to("val")
    with pytest.raises(UserError, match="holds no val/ folder"):
        counts(tmp_path)


def test_pipes_and_devices_are_no_pictures(tmp_path: Path) -> None:
    folder_of(tmp_path)
    os.mkfifo(tmp_path / "train" / "a" / "pipe.jpg")
    (tmp_path / "train" / "a" / "folder.jpg").mkdir()
    assert scan(tmp_path, "train").files == ["a/p.png"]


# -- pictures


def png(width: int, height: int, rows: bytes = b"") -> bytes:
    """A PNG that claims a size, whatever it holds."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def jpeg(width: int, height: int) -> bytes:
    """A JPEG whose head claims another size than it has."""
    buffer = io.BytesIO()
    Image.new("RGB", (16, 16)).save(buffer, "JPEG")
    data = bytearray(buffer.getvalue())
    start = data.index(b"\xff\xc0")
    data[start + 5 : start + 9] = struct.pack(">HH", height, width)
    return bytes(data)


def text_bomb() -> bytes:
    data = png(1, 1, b"\0\0")
    body = b"Comment\0\0" + zlib.compress(b"a" * 80_000_000, 9)
    chunk = struct.pack(">I", len(body)) + b"zTXt" + body + struct.pack(">I", zlib.crc32(b"zTXt" + body))
    return data[:33] + chunk + data[33:]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "none of JPEG"),
        (b"\0", "none of JPEG"),
        (b"\xff\xd8\xff", "."),
        (png(60_000, 60_000), "more than 89 million pixels"),
        (png(100_000, 1000), "more than 89 million pixels"),
        (jpeg(65_000, 65_000), "more than 89 million pixels"),
        (png(2**31 - 1, 2**31 - 1), "more than 89 million pixels|none of"),
        (png(0, 5), "none of JPEG|."),
        (png(9000, 9000, b"\0"), "truncated|."),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n", "none of JPEG"),
        (b"GIF89a" + b"\xff" * 200, "."),
        (text_bomb(), "."),
        (b"<svg xmlns='http://www.w3.org/2000/svg'><image href='/etc/passwd'/></svg>", "none of JPEG"),
    ],
)
def test_what_is_no_fair_picture_is_one_line(tmp_path: Path, content: bytes, expected: str) -> None:
    folder_of(tmp_path)
    (tmp_path / "train" / "a" / "p.png").write_bytes(content)
    found = scan(tmp_path, "train")
    with pytest.raises(
        UserError, match=rf"a/p\.png cannot be read as a picture \(.*({expected}).*\); repair or remove it"
    ):
        Pictures(found).open(0)
    picture_facts(found)


def test_a_picture_of_another_name_is_read_all_the_same(tmp_path: Path) -> None:
    for kind in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "MPO"):
        Image.new("RGB", (8, 6), (250, 250, 250)).save(tmp_path / "p.jpg", kind)
        assert decode(tmp_path / "p.jpg").picture.size == size(tmp_path / "p.jpg") == (8, 6)
    for kind in ("TIFF", "EPS", "PPM", "ICO", "TGA"):
        Image.new("RGB", (8, 6)).save(tmp_path / "p.jpg", kind)
        with pytest.raises(NoPicture, match="none of"):
            decode(tmp_path / "p.jpg")


@pytest.mark.parametrize("shape", [(1, 2_000_000), (2_000_000, 1)])
def test_a_picture_like_a_line_is_cut_before_it_is_enlarged(shape: tuple[int, int]) -> None:
    """Enlarged first, it would take 393 GB."""
    pixels = centre_cut(Image.new("RGB", shape, (9, 8, 7)), 256, 224, "bilinear")
    assert pixels.shape == (224, 224, 3)
    assert (pixels == (9, 8, 7)).all()


def test_an_ordinary_narrow_picture_is_resized_whole() -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (10, 400, 3), dtype=np.uint8))
    resized = noise.resize((1280, 32), Image.Resampling.BILINEAR)
    expected = np.asarray(resized)[4:28, 628:652]
    assert (centre_cut(noise, 32, 24, "bilinear") == expected).all()


# -- run folders


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = create(tmp_path / "runs", "odd", unique=False)
    resolved.write(compose([]).config, folder.config)
    return folder


@pytest.mark.parametrize("verb", ["resume", "eval", "export"])
@pytest.mark.parametrize("name", ["lock", "metrics.jsonl", "logs/rank-0.log", "config.yaml.tmp", "checkpoints/.a.tmp"])
def test_a_run_folder_does_not_write_through_links(run: RunFolder, tmp_path: Path, verb: str, name: str) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (run.path / name).symlink_to(precious)
    assert f"{name} is a link" in refused(verb, str(run.path))
    assert precious.read_text() == "mine"


def test_a_run_folder_may_be_a_link_and_hold_linked_folders(run: RunFolder, tmp_path: Path) -> None:
    run.checkpoints.rmdir()
    (tmp_path / "elsewhere").mkdir()
    run.checkpoints.symlink_to(tmp_path / "elsewhere")
    (tmp_path / "short").symlink_to(run.path)
    assert existing(str(tmp_path / "short")).config.is_file()


@pytest.mark.parametrize("path", ["a" * 5000, "", "/dev/null", "nowhere", "a\0b", "[/x]", "new\nline"])
def test_what_is_no_run_folder_is_refused(path: str) -> None:
    for verb in ("resume", "eval", "export"):
        assert "is no run folder" in refused(verb, path)


def test_a_lock_file_of_odd_bytes_is_quoted(run: RunFolder) -> None:
    with run.locked():
        (run.path / "lock").write_bytes(b"\xff\x1b[2J\n\n")
        with pytest.raises(UserError, match=r"in use by \ufffd\\x1b\[2J; wait"), run.locked():
            pass


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (lambda text: text.replace("seed: 42", "seed: 43\nseed: 44"), "seed is given twice"),
        (lambda text: text.replace("seed: 42", "seeds: 42"), "no such key"),
        (lambda text: text.replace("seed: 42", "seed: !!python/object/apply:os.mkdir [trace]"), "tags such as"),
        (lambda text: text.replace("seed: 42", "seed: ${oc.env:HOME}"), "must be a whole number"),
        (lambda text: text.replace("epochs: 10", f"epochs: 1{'0' * 30}"), "larger than any number"),
        (lambda text: text[: len(text) // 2], "."),
        (lambda text: text.encode("utf-16").decode("latin-1"), "characters are not allowed|UTF-8"),
        (lambda text: "", "a mapping of keys to values is expected"),
    ],
)
def test_a_config_that_was_edited_by_hand_is_refused_by_name(
    run: RunFolder, edit: Callable[[str], str], expected: str
) -> None:
    run.config.write_text(edit(run.config.read_text()), encoding="utf-8")
    code, _, errors = said("resume", str(run.path))
    assert code == 2
    assert all(line.startswith("error: ") and str(run.config) in line for line in errors.splitlines())
    assert any(word in errors for word in expected.split("|"))
    assert not (run.path / "trace").exists()


@pytest.mark.parametrize("text", [BOMB, "a: " + "[" * 90_000, "a: &a {b: *a}", "seed: !!python/name:os.system x"])
def test_a_study_names_the_run_whose_config_is_odd(run: RunFolder, text: str) -> None:
    run.config.write_text(text)
    found = read_run(run.path)
    assert found.state == "damaged"
    assert str(found.problem).startswith("config.yaml:")


def test_odd_values_of_a_config_survive_the_file(tmp_path: Path) -> None:
    names = ["5e4", "010", "on", "null", "0x10", "é🙂", "1:30", "a\x85b", " ", "~", "<<", "2022-07-01", "=", "- a", "#"]
    for name in names:
        config = compose([]).config
        written = resolved.as_mapping(config) | {"recipe": name}
        (tmp_path / "config.yaml").write_text(as_yaml(written), encoding="utf-8")
        assert resolved.read(tmp_path / "config.yaml").recipe == name
