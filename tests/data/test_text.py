"""Text and files of tokens: what is read is what was written, by others' layouts too, for any start and any stop."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from launcher.config.compose import compose
from launcher.config.resolved import with_absolute_paths
from launcher.data.inspection import inspect_data
from launcher.data.text import prepare
from launcher.data.text.documents import pieces_of, text_files
from launcher.data.text.prepare import tokens_of
from launcher.data.text.shards import open_shard
from launcher.errors import UserError
from tests.commands import output_of
from tests.language import as_tokens, config_of, layouts, stream


def write_jsonl(path: Path, texts: list[str], column: str = "text") -> None:
    path.write_text("".join(json.dumps({"id": n, column: text}) + "\n" for n, text in enumerate(texts)))


def test_documents_of_all_formats_become_the_same_tokens(tmp_path: Path) -> None:
    texts = ["first", "zweiter\nmit ä", "3"]
    for form in ("folder", "jsonl"):
        root = tmp_path / form / "text"
        for split in ("train", "validation"):
            if form == "folder":
                (root / split).mkdir(parents=True)
                for number, text in enumerate(texts):
                    (root / split / f"{number}.txt").write_text(text)
            else:
                root.mkdir(parents=True, exist_ok=True)
                write_jsonl(root / f"{split}.jsonl", texts, "content")
        assert stream(config_of(root), "train") == stream(config_of(root), "val") == as_tokens(*texts)


def test_validation_is_the_first_split_of_its_names_and_other_files_are_counted(tmp_path: Path) -> None:
    names = ("train/1.TXT", "train_2.txt", "valid.txt", "test.txt", "extra.txt", "train/notes.doc")
    for name in names:
        path = tmp_path / "text" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{name}, a text")
    config = config_of(tmp_path / "text")
    assert stream(config, "train") == as_tokens("train_2.txt, a text", "train/1.TXT, a text")
    assert stream(config, "val") == as_tokens("valid.txt, a text")
    first, *others = (note for note in inspect_data(config, must_exist=True).notes if note.startswith("skipping"))
    assert first.startswith("skipping 1 file without an extension of text")
    assert first.endswith("such as train/notes.doc")
    assert others == [
        "skipping 1 file of text of no split, such as extra.txt",
        "skipping 1 file of text of the split test, which is not read, such as test.txt",
    ]
    other = replace(config.dataset, kind="folder")
    assert [one.name for one in text_files(other, whole=True)[0]] == ["valid.txt"]
    drawn = config_of(tmp_path / "text", "dataset.val_split=0.5")
    assert [one.name for one in text_files(drawn.dataset)[0]] == ["extra.txt", "train_2.txt", "train/1.TXT"]


def test_parquet_is_to_be_written_as_lines(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "train.parquet").write_bytes(b"PAR1")
    for path in (tmp_path / "text", tmp_path / "text" / "train.parquet"):
        with pytest.raises(UserError, match=r"write Parquet as .jsonl, by to_json of the package datasets"):
            stream(config_of(path), "train")


def test_documents_draw_the_validation_split(tmp_path: Path) -> None:
    texts = [f"document {number}" for number in range(200)]
    write_jsonl(tmp_path / "all.jsonl", texts)
    config = config_of(tmp_path / "all.jsonl", "dataset.val_split=0.2")
    both = [
        bytes(t if t < 256 else 10 for t in stream(config, split)).decode().split("\n")[:-1]
        for split in ("train", "val")
    ]
    assert sorted(both[0] + both[1]) == sorted(texts)
    assert 20 < len(both[1]) < 60
    assert both[0] == [text for text in texts if text in both[0]]


def test_long_documents_are_cut_after_a_line_and_end_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.data.text.documents._PIECE", 10)
    text = "".join(f"line {number}\n" for number in range(20))
    for name in ("train.txt", "val.txt"):
        (tmp_path / "text").mkdir(exist_ok=True)
        (tmp_path / "text" / name).write_text(text)
    dataset = config_of(tmp_path / "text").dataset
    pieces = [*pieces_of(text_files(dataset)[0], dataset)]
    assert len(pieces) > 10
    assert all(piece.text.endswith(b"\n") for piece in pieces)
    assert stream(config_of(tmp_path / "text"), "train") == as_tokens(text)


def test_a_stopped_preparation_continues_and_ends_with_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "_CHUNK", 100)
    write_jsonl(tmp_path / "all.jsonl", [f"document {number}" * (number % 5) for number in range(60)])
    config = config_of(tmp_path / "all.jsonl", "dataset.val_split=0.2")
    whole = config_of(tmp_path / "all.jsonl", "dataset.val_split=0.2", f"dataloader.folder={tmp_path}/whole")
    expected = stream(whole, "train")
    calls: list[int] = []

    def stop(what: str, done: int, total: int) -> None:
        calls.append(done)
        if len(calls) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tokens_of(config.dataset, config.dataloader.folder, stop)  # type: ignore[attr-defined]
    written = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "tokens").glob("*.bin")}
    assert written
    with pytest.raises(UserError, match="only some of the tokens"):
        stream(replace(config, dataset=replace(config.dataset, path=str(tmp_path / "tokens"))), "train")
    assert stream(config, "train") == expected
    assert all((tmp_path / "tokens" / name).stat().st_mtime_ns == time for name, time in written.items())
    assert {p.name: p.read_bytes() for p in (tmp_path / "tokens").glob("*")} == {
        p.name: p.read_bytes() for p in (tmp_path / "whole").glob("*")
    }


def test_tokens_of_other_text_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    for name in ("train.txt", "val.txt"):
        (tmp_path / "text" / name).write_text("some text")
    stream(config_of(tmp_path / "text"), "train")
    (tmp_path / "text" / "train.txt").write_text("another")
    with pytest.raises(UserError, match=r"dataloader\.folder=.*tokens of other text"):
        stream(config_of(tmp_path / "text"), "train")


def test_unknown_and_wrong_vocabularies_damage_and_lack_are_errors(tmp_path: Path) -> None:
    layouts(tmp_path, np.arange(100))
    with pytest.raises(UserError, match=r"dataset\.classes=null: .*set 50257"):
        inspect_data(config_of(tmp_path / "nanogpt"), must_exist=True)
    with pytest.raises(UserError, match=r"train\.bin has the token 99; set dataset\.classes=100"):
        inspect_data(config_of(tmp_path / "nanogpt", "dataset.classes=50"), must_exist=True)
    inspected = inspect_data(
        config_of(tmp_path / "nanogpt", "dataset.classes=100", "dataset.train_samples=99"), must_exist=True
    )
    assert any("has only 24 sequences of 4 tokens for train" in note for note in inspected.notes)
    with pytest.raises(UserError, match="has not 201 tokens for train"):
        inspect_data(config_of(tmp_path / "modded", "dataset.classes=100", "task.length=200"), must_exist=True)
    shard = tmp_path / "modded" / "fineweb_train_000000.bin"
    shard.write_bytes(shard.read_bytes()[:-2])
    with pytest.raises(UserError, match="but its 50 tokens of uint16 need"):
        open_shard(shard, None)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="has no text"):
        inspect_data(config_of(tmp_path / "empty"), must_exist=True)
    (tmp_path / "empty" / "train.txt").write_text("text")
    with pytest.raises(UserError, match=r"set dataset\.val_split=0\.01"):
        inspect_data(config_of(tmp_path / "empty"), must_exist=True)
    write_jsonl(tmp_path / "odd.jsonl", ["a"], "body")
    with pytest.raises(
        UserError, match=r"no column text or content but 2 columns: id, body; set dataset\.columns\.text"
    ):
        inspect_data(config_of(tmp_path / "odd.jsonl", "dataset.val_split=0.5"), must_exist=True)


def test_a_tokenizers_file_encodes_decodes_and_counts_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    from launcher.data.text.tokenizer import tokenizer_of

    text = "the cat and the hat ä\n" * 50
    library = tokenizers.ByteLevelBPETokenizer()
    library.train_from_iterator([text], 280, special_tokens=["<|endoftext|>"])
    library.save(str(tmp_path / "tokenizer.json"))
    own = tokenizer_of((tmp_path / "tokenizer.json").read_text())
    (tokens,) = own.encode([text.encode()])
    assert len(tokens) < len(text)
    assert own.decode(tokens.tolist()).decode() == text
    assert own.sizes[tokens].sum() == len(text.encode())
    assert (own.end, own.sizes[own.end]) == (0, 0)
    (tmp_path / "text").mkdir()
    for name in ("train.txt", "val.txt"):
        (tmp_path / "text" / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    given = config_of(tmp_path / "text", "dataset.tokenizer=tokenizer.json")
    assert with_absolute_paths(given, resumed=True) == given
    config = with_absolute_paths(given)
    monkeypatch.chdir("/")
    assert stream(config, "train") == [*tokens.tolist(), own.end]
    assert inspect_data(config, must_exist=True).config.dataset.classes == own.vocabulary
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(UserError, match="is no file of the tokenizers library"):
        tokenizer_of("{}", "other.json")


def test_a_tokenizers_numbers_may_have_holes_and_its_lengths_cut_no_document(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    from launcher.data.text.tokenizer import tokenizer_of

    words = {"a": 5, "cat": 9, "[UNK]": 4, "<eos>": 40}
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    library.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    content = json.loads(library.to_str())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    content["added_tokens"] = [{"id": 40, "content": "<eos>", "special": True, **flags}]
    library = tokenizers.Tokenizer.from_str(json.dumps(content))
    library.enable_truncation(2)
    library.enable_padding(length=8)
    own = tokenizer_of(library.to_str())
    assert (
        (own.vocabulary, own.end) == (max(library.get_vocab().values()) + 1, library.token_to_id("<eos>")) == (41, 40)
    )
    assert [one.tolist() for one in own.encode([b"a cat a cat dog"])] == [[5, 9, 5, 9, 4]]
    del content["model"]["vocab"]["<eos>"]
    with pytest.raises(UserError, match="gives <eos> the number 40, but the library 3; fill the holes"):
        tokenizer_of(json.dumps(content), "tokenizer.json")


def test_built_in_text_is_the_standard_librarys() -> None:
    dataset = compose(["dataset=python_source"]).config.dataset
    names = [one.name for one in text_files(dataset)[0]]
    assert "json/decoder.py" in names
    assert not any(name.startswith(("test/", "site-packages/")) for name in names)


def test_train_prepare_writes_the_tokens_that_a_run_reads(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "all.jsonl", ["one", "two", "three"] * 20)
    words = ["dataset=text", "dataloader=tokens", f"dataset.path={tmp_path}/all.jsonl", "dataset.val_split=0.3"]
    printed = output_of("prepare", *words, f"dataloader.folder={tmp_path}/tokens")
    assert " of train" in printed
    config = config_of(tmp_path / "tokens")
    assert len(stream(config, "train")) + len(stream(config, "val")) == 20 * (3 + 3 + 5 + 3)
    assert inspect_data(config, must_exist=True).config.dataset.classes == 257
