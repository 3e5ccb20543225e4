"""The index of a run's images: what is read is what was written, and calculates like arrays in memory."""

import pickle
from pathlib import Path

import numpy as np

from launcher.data.index import Mapped, read_index, write_index
from launcher.data.sampling import buffered_order
from launcher.data.sources.pieces import Archive, Packed
from launcher.data.split import Split


def test_images_of_archives_have_the_order_of_arrays_in_memory(tmp_path: Path) -> None:
    places = np.array([(number % 3, 512 * number, 100, 0) for number in range(12)], np.int64)
    stored = Packed([Archive(f"{number}.tar", f"{number}.tar") for number in range(3)], places)
    images = Split("", "train", ["a", "b"], [f"{number}.jpg" for number in range(12)], np.arange(12) % 2, stored)
    write_index(tmp_path / "index", [images])
    again = read_index(tmp_path / "index")["train"]
    assert isinstance(again.stored, Packed)
    mapped = again.stored.places
    assert isinstance(mapped, Mapped)
    assert np.array_equal(mapped, places)
    assert [*again.files] == [*images.files]
    assert np.array_equal(buffered_order(0, 1, mapped[:, 0], 4), buffered_order(0, 1, places[:, 0], 4))
    assert isinstance(pickle.loads(pickle.dumps(mapped)), Mapped)
    assert not isinstance(pickle.loads(pickle.dumps(mapped[:, 0])), Mapped)
