"""Files of tokens: sequences are read by this project's layout and others'."""

import struct
from pathlib import Path

import numpy as np
import pytest

from launcher.data.batch import Moment
from launcher.data.inspection import inspect_data
from launcher.data.loaders.base import source_of
from launcher.data.sampling import Request
from launcher.data.text.reader import TokenReader
from launcher.data.text.shards import open_shard, write_shard
from launcher.errors import UserError
from launcher.plan.plan import plan_for
from tests.language import config_of, layouts


@pytest.mark.parametrize("layout", ["nanogpt", "modded"])
def test_both_public_layouts_are_read_in_sequences_with_their_next_tokens(layout: str, tmp_path: Path) -> None:
    tokens = np.random.default_rng(0).integers(0, 50_257, 4 * 10 + 3)
    layouts(tmp_path, tokens)
    (tmp_path / layout / "meta.pkl").write_bytes(b"never read")
    config = config_of(tmp_path / layout, "dataset.classes=50257")
    inspected = inspect_data(config, must_exist=True)
    assert (inspected.config.dataset.train_samples, inspected.config.dataset.val_samples) == (10, 10)
    (train, _) = source_of(config).list(config, ())
    reader = TokenReader(train, 4, None, None)
    order = np.array([9, 0, 5])
    ((inputs, targets, indices),) = reader.batches([Request(Moment(0, 0, 0, 1), order, 4)])
    assert inputs.tolist() == [tokens[4 * i : 4 * i + 4].tolist() for i in order]
    assert targets.tolist() == [tokens[4 * i + 1 : 4 * i + 5].tolist() for i in order]
    assert indices is order
    ((short, _, _),) = reader.batches([Request(Moment(0, 0, 0, 1), order, 2)])
    assert short.tolist() == inputs[:, :2].tolist()


def test_fewer_samples_are_evenly_spaced(tmp_path: Path) -> None:
    tokens = np.arange(4 * 10 + 1)
    layouts(tmp_path, tokens)
    config = config_of(tmp_path / "nanogpt", "dataset.classes=50", "dataset.train_samples=5")
    reader = TokenReader(source_of(config).list(config, ())[0], 4, None, None)
    ((inputs, _, _),) = reader.batches([Request(Moment(0, 0, 0, 1), np.arange(5), 4)])
    assert inputs[:, 0].tolist() == [0, 8, 16, 24, 32]


def test_large_vocabularies_have_wider_tokens(tmp_path: Path) -> None:
    write_shard(tmp_path / "train_0.bin", np.array([1, 99_999]), 100_000)
    assert open_shard(tmp_path / "train_0.bin", None).tolist() == [1, 99_999]
    assert np.fromfile(tmp_path / "train_0.bin", np.int32, 3).tolist() == [20240801, 7, 2]


def sequences_of(folder: Path, vocabulary: int) -> int | None:
    config = config_of(folder, f"dataset.classes={vocabulary}")
    return inspect_data(config, must_exist=True).config.dataset.train_samples


def headerless(folder: Path, tokens: np.ndarray, kind: str) -> Path:
    """Write tokens as `ndarray.tofile` does."""
    folder.mkdir()
    for split in ("train", "val"):
        tokens.astype(kind).tofile(folder / f"{split}.bin")
    return folder


def test_the_vocabulary_is_the_type_of_files_without_a_header(tmp_path: Path) -> None:
    wide = headerless(tmp_path / "wide", tokens := np.random.default_rng(0).integers(0, 128_256, 41), "<u4")
    assert sequences_of(wide, 128_256) == 10
    assert open_shard(wide / "train.bin", 128_256).tolist() == tokens.tolist()
    (wide / "train.bin").write_bytes(b"odd" * 7)
    with pytest.raises(UserError, match="has 21 bytes, but its 5 tokens of uint32 need 20"):
        sequences_of(wide, 128_256)
    tokens = np.random.default_rng(0).integers(0, 50_257, 82)
    with pytest.raises(UserError, match=r"classes=128256: .*has the token .*read as uint32 for a vocabulary above"):
        sequences_of(headerless(tmp_path / "narrow", tokens, "<u2"), 128_256)
    for kind, vocabulary in (("<u4", 50_257), ("<i8", 50_257), ("<i8", 128_256)):
        with pytest.raises(UserError, match="since every second token is 0"):
            sequences_of(headerless(tmp_path / f"{kind[1:]}{vocabulary}", tokens, kind), vocabulary)


def test_all_tokens_are_compared_with_the_vocabulary_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.data.text.shards._PIECE", 8)
    tokens = np.arange(60) % 7
    folder = headerless(tmp_path / "late", np.append(tokens, 70), "<u2")
    with pytest.raises(UserError, match=r"train\.bin has the token 70; set dataset\.classes=71"):
        sequences_of(folder, 65)
    assert sequences_of(folder, 71) == 15
    monkeypatch.setattr("launcher.data.text.shards._range_of", None)
    assert sequences_of(folder, 71) == 15


def megatrons(folder: Path, name: str, documents: list[list[int]], code: int, kind: str) -> None:
    """Write documents as Megatron's IndexedDataset describes them."""
    sizes, width = [len(one) for one in documents], np.dtype(kind).itemsize
    places = np.cumsum([0, *sizes[:-1]]) * width
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(documents), len(documents) + 1)
    parts = (np.array(sizes, "<i4"), places.astype("<i8"), np.arange(len(documents) + 1, dtype="<i8"))
    (folder / f"{name}.idx").write_bytes(head + b"".join(part.tobytes() for part in parts))
    np.concatenate(documents).astype(kind).tofile(folder / f"{name}.bin")


@pytest.mark.parametrize(("code", "kind"), [(8, "<u2"), (4, "<i4"), (5, "<i8"), (1, "u1")])
def test_an_index_beside_tokens_has_their_type(code: int, kind: str, tmp_path: Path) -> None:
    documents = [[1, 2, 3, 0], [5, 0, 6, 0, 7, 0], [8, 0]]
    for name in ("train_text_document", "valid_text_document"):
        megatrons(tmp_path, name, documents, code, kind)
    assert sequences_of(tmp_path, 50_257) == 2
    assert open_shard(tmp_path / "train_text_document.bin", 50_257).tolist() == [
        one for row in documents for one in row
    ]
    index = tmp_path / "train_text_document.idx"
    for content, message in (
        (index.read_bytes()[:40], "ends before its 3 sequences"),
        (b"TNTIDX\0\0" + bytes(40), "is no index of Megatron"),
        (index.read_bytes().replace(struct.pack("<QB", 1, code), struct.pack("<QB", 1, 7)), "of integers"),
    ):
        index.write_bytes(content)
        with pytest.raises(UserError, match=message):
            sequences_of(tmp_path, 50_257)
    megatrons(tmp_path, "train_text_document", [[1, 2], [3] * 9], code, kind)
    (tmp_path / "train_text_document.bin").write_bytes(bytes(16))
    with pytest.raises(UserError, match="has 16 bytes, but its 11 tokens of"):
        sequences_of(tmp_path, 50_257)


def test_a_negative_token_is_refused(tmp_path: Path) -> None:
    for name in ("train", "val"):
        megatrons(tmp_path, name, [[1, 2, 3, -1, 5, 6]], 4, "<i4")
    with pytest.raises(UserError, match="has the token -1, which no vocabulary has"):
        sequences_of(tmp_path, 50)


def test_words_that_files_of_tokens_do_not_follow_are_refused(tmp_path: Path) -> None:
    folder = headerless(tmp_path / "tokens", np.arange(50), "<u2")
    with pytest.raises(UserError, match=r"dataset\.val_split=0\.1: divides documents of text, and .* has tokens"):
        inspect_data(config_of(folder, "dataset.classes=50", "dataset.val_split=0.1"), must_exist=True)
    (folder / "val.bin").rename(folder / "other.bin")
    with pytest.raises(UserError, match="has files of tokens, but none with val in its name"):
        sequences_of(folder, 50)


def test_other_tokens_to_evaluate_are_by_the_tokenizer_of_the_run_and_in_its_vocabulary(tmp_path: Path) -> None:
    folder = headerless(tmp_path / "other", np.arange(50), "<u2")
    config = config_of(tmp_path, "dataset.classes=50", "dataset.train_samples=1", "dataset.val_samples=1")
    loader, plan = source_of(config), plan_for(config, 1)
    reader = loader.other(str(folder), plan, {"tokenizer": None})
    assert isinstance(reader, TokenReader)
    with pytest.raises(UserError, match="has tokens by another tokenizer than the run's"):
        loader.other(str(folder), plan, {"tokenizer": "bytes"})
    np.array([7] * 9 + [50], "<u2").tofile(folder / "val.bin")
    with pytest.raises(UserError, match=r"val\.bin has the token 50"):
        loader.other(str(folder), plan, {"tokenizer": None})
