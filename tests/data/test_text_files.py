"""Which files are the text of a split, and what in them is a document: by names, encodings and rows."""

import os
from pathlib import Path

import pytest

from launcher.config.compose import compose
from launcher.data.inspection import inspect_data
from launcher.data.text.documents import text_files
from launcher.data.text.shards import shards_in
from launcher.errors import UserError
from tests.language import as_tokens, config_of, stream

# Names as public corpora have them; test is not read beside validation, and None is a name of two splits.
NAMES = {
    "ptb.train.txt ptb.valid.txt ptb.test.txt": ("ptb.train.txt", "ptb.valid.txt"),
    "lm_train.txt val_corpus.txt pretrain.txt latest.txt": ("lm_train.txt", "val_corpus.txt"),
    "retrieval_train_0.txt my-dev.txt": ("retrieval_train_0.txt", "my-dev.txt"),
    "en/Training1.txt en/testing1.txt": ("en/Training1.txt", "en/testing1.txt"),
    "train/the_test_of_time.txt validation/x.txt": ("train/the_test_of_time.txt", "validation/x.txt"),
    "train_test.txt val.txt": None,
}


@pytest.mark.parametrize("names", NAMES)
def test_the_words_of_a_name_decide_its_split(names: str, tmp_path: Path) -> None:
    for name in names.split():
        (tmp_path / "text" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "text" / name).write_text(f"{name}, a text")
        (tmp_path / "bins").mkdir(exist_ok=True)
        (tmp_path / "bins" / name.replace("/", "_").replace("txt", "bin")).write_bytes(b"\1\0" * 9)
    (tmp_path / "bins" / "._train.bin").write_bytes(b"left by macOS")
    if (expected := NAMES[names]) is None:
        for folder in ("text", "bins"):
            with pytest.raises(UserError, match=r"train_test\.\w+: names two splits, test and train; rename"):
                stream(config_of(tmp_path / folder), "train")
        return
    for split, name in zip(("train", "val"), expected, strict=True):
        assert stream(config_of(tmp_path / "text"), split) == as_tokens(f"{name}, a text")
    if "/the_" not in names:
        files = [[name.replace("/", "_").replace("txt", "bin")] for name in expected]
        assert [*shards_in(tmp_path / "bins")[0].values()] == files


def test_what_is_held_out_is_not_trained_on_as_an_error_advised(tmp_path: Path) -> None:
    for name in ("ptb.train.0.txt", "ptb.train.1.txt", "ptb.test.txt"):
        (tmp_path / "text").mkdir(exist_ok=True)
        (tmp_path / "text" / name).write_text(name)
    drawn = config_of(tmp_path / "text", "dataset.val_split=0.5")
    assert [one.name for one in text_files(drawn.dataset)[0]] == ["ptb.train.0.txt", "ptb.train.1.txt"]
    for name in ("ptb.train.0.txt", "ptb.train.1.txt"):
        (tmp_path / "text" / name).unlink()
    for words in ([], ["dataset.val_split=0.5"]):
        with pytest.raises(UserError, match=r"has text named test, but none for training; add train\.txt"):
            stream(config_of(tmp_path / "text", *words), "train")


def test_one_document_cannot_be_divided(tmp_path: Path) -> None:
    (tmp_path / "input.txt").write_text("To be, or not to be\n" * 99)
    with pytest.raises(UserError, match=r"dataset\.val_split draws whole documents; .* val\.txt and the rest as train"):
        inspect_data(config_of(tmp_path / "input.txt", "dataset.val_split=0.1"), must_exist=True)
    (tmp_path / "input.bin").write_bytes(b"\1\0" * 99)
    with pytest.raises(UserError, match=r"input\.bin: has no extension of text"):
        inspect_data(config_of(tmp_path / "input.bin", "dataset.val_split=0.1"), must_exist=True)


# A file's bytes, and its documents or the error.
ENCODED: list[tuple[str, bytes, list[str] | str]] = [
    ("txt", b"a\r\nb", ["a\r\nb"]),
    ("txt", b"\xef\xbb\xbf\xc3\xa4", ["ä"]),
    ("txt", b"text\n\xe4", r"train\.txt: is no text in UTF-8 at byte 5 \(b'\\xe4'\)"),
    ("txt", "ab".encode("utf-16"), r"is no text in UTF-8 at byte 0 \(b'\\xff"),
    ("txt", "ab".encode("utf-16-le"), r"is no text in UTF-8 at byte 1 \(b'\\x00b"),
    ("jsonl", b'\xef\xbb\xbf"a"\r\n\r\n"b"\r\n \n\n', ["a", "b"]),
    ("jsonl", b'"\\u0000"', ["\0"]),
    ("jsonl", b'"a"\n"\\ud83d"', r"line 2 has half of a character, '\\ud83d'"),
    ("jsonl", b'"\xed\xa0\xbd"', "line 1 is no JSON with a text .*can't decode byte 0xed"),
    ("jsonl", b'"a"\n"\xe4"', "line 2 is no JSON with a text .*can't decode byte 0xe4 in position 1"),
    ("jsonl", b'{"text": "a", "content": "b"}', r"has the columns text and content; set dataset\.columns\.text"),
    ("jsonl", b'{"content": "a"}\n{"text": "b"}', "has no column content but 1 column: text"),
    *(("jsonl", b'"more text"\n' + row, ["more text", ""]) for row in (b'{"text": null}', b'{"text": ""}')),
    ("jsonl", b'"more text"\nnull', "line 2 is no JSON with a text"),
    ("jsonl", b'{"text": null}\n{"text": 5}', r"line 2 is no text \(it has 5\)"),
    *(("jsonl", row, r"line 1 is no (JSON with a )?text") for row in (b"5", b"[]", b'{"text": ["a"]}')),
]


@pytest.mark.parametrize(("form", "content", "expected"), ENCODED)
def test_other_encodings_and_rows_are_refused_where_they_are(
    form: str, content: bytes, expected: list[str] | str, tmp_path: Path
) -> None:
    (tmp_path / "text").mkdir()
    for split in ("train", "val"):
        (tmp_path / "text" / f"{split}.{form}").write_bytes(content)
    if isinstance(expected, list):
        assert stream(config_of(tmp_path / "text"), "train") == as_tokens(*expected)
        return
    with pytest.raises(UserError, match=expected):
        stream(config_of(tmp_path / "text"), "train")


def test_other_kinds_of_files_and_names_of_nothing_are_counted(tmp_path: Path) -> None:
    folder = tmp_path / "text"
    folder.mkdir()
    for name in ("train.txt", "val.txt", "train.md", "elsewhere/train.txt"):
        (tmp_path / name if "/" in name else folder / name).parent.mkdir(exist_ok=True)
        (tmp_path / name if "/" in name else folder / name).write_text("some text")
    (folder / "train_0").symlink_to(tmp_path / "elsewhere")
    (folder / "train_1.txt").symlink_to("nothing")
    os.mkfifo(folder / "train_2.txt")
    inspected = inspect_data(config_of(folder), must_exist=True)
    assert inspected.config.dataset.train_samples == 4
    assert inspected.notes[:2] == [
        "skipping 1 link to folders, which are not read, such as train_0",
        "skipping 2 names of a broken or looping link, a pipe or a device, such as train_1.txt",
    ]
    assert "the text is of several kinds of files: 1 .md, 2 .txt" in inspected.notes


@pytest.mark.parametrize("path", ["null", "nowhere", "s3://bucket/text"])
def test_text_that_is_not_there_is_refused(path: str) -> None:
    words = ["task=language", "dataloader=tokens", "dataset=text", "model=gpt", f"dataset.path={path}"]
    with pytest.raises(UserError, match=r"dataset\.path=.*: no such file or folder; set a file or folder of text"):
        inspect_data(compose(words).config, must_exist=True)
