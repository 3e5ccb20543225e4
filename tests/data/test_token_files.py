"""Files of tokens: sequences are read by this project's layout and others'."""

from pathlib import Path

import numpy as np
import pytest

from launcher.data.batch import Moment
from launcher.data.inspection import inspect_data
from launcher.data.loaders.base import loader_of
from launcher.data.sampling import Request
from launcher.data.text.reader import TokenReader
from launcher.data.text.shards import open_shard, write_shard
from tests.language import config_of, layouts


@pytest.mark.parametrize("layout", ["nanogpt", "modded"])
def test_both_public_layouts_are_read_in_sequences_with_their_next_tokens(layout: str, tmp_path: Path) -> None:
    tokens = np.random.default_rng(0).integers(0, 50_257, 4 * 10 + 3)
    layouts(tmp_path, tokens)
    (tmp_path / layout / "meta.pkl").write_bytes(b"never read")
    config = config_of(tmp_path / layout, "dataset.classes=50257")
    inspected = inspect_data(config, must_exist=True)
    assert (inspected.config.dataset.train_samples, inspected.config.dataset.val_samples) == (10, 10)
    (train, _) = loader_of(config).images(config, ())
    reader = TokenReader(train, 4, None)
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
    reader = TokenReader(loader_of(config).images(config, ())[0], 4, None)
    ((inputs, _, _),) = reader.batches([Request(Moment(0, 0, 0, 1), np.arange(5), 4)])
    assert inputs[:, 0].tolist() == [0, 8, 16, 24, 32]


def test_large_vocabularies_have_wider_tokens(tmp_path: Path) -> None:
    write_shard(tmp_path / "train_0.bin", np.array([1, 99_999]), 100_000)
    assert open_shard(tmp_path / "train_0.bin").tolist() == [1, 99_999]
    assert np.fromfile(tmp_path / "train_0.bin", np.int32, 3).tolist() == [20240801, 7, 2]
