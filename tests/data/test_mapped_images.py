"""The index of a run's images: what is read is what was written, and worker processes map it too."""

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from launcher.data.dropped import Dropped
from launcher.data.index import Archive, Images, Texts, read_index, write_index
from launcher.data.sampling import buffered_order

NAMES = Texts(f"{number % 2}/\udce9 {number}.jpg" for number in range(12))
PLACES = np.array([(number % 3, 512 * number, number - 1, 0) for number in range(12)], np.int64)
PLAIN = Images("train", "/data", ["0", "1"], NAMES, np.arange(12) % 2, seen=13, dropped={"why": Dropped(1, "one")})
ARCHIVES = [*(Archive(f"{number}.tar", f"{number}.tar") for number in range(2)), Archive("s3://bucket/")]
PACKED = replace(PLAIN, split="val", places=PLACES, archives=ARCHIVES)
PAIRED = replace(PLAIN, split="test", paths=NAMES, masks=Texts(f"/m/{n}" for n in range(12)), groups=Texts("ab" * 6))


@pytest.mark.parametrize("images", [PLAIN, PACKED, PAIRED, PAIRED.part(np.zeros(12, bool))])
def test_images_are_those_that_were_written(images: Images, tmp_path: Path) -> None:
    write_index(tmp_path / "index", [PLAIN, images])
    mapped = read_index(tmp_path / "index")[images.split]
    for again in (mapped, pickle.loads(pickle.dumps(mapped))):
        assert again.pieces() == images.pieces()
        assert (again.masks, again.groups, again.facts()) == (images.masks, images.groups, images.facts())
        assert len(pickle.dumps(again)) < 300
        assert len(pickle.dumps(replace(again, root="/other"))) > 300
    odd = mapped.part(np.arange(len(mapped)) % 2 == 1)
    assert odd.pieces() == images.pieces()[1::2]
    assert pickle.loads(pickle.dumps(odd)).pieces() == odd.pieces()


def test_images_of_archives_have_the_order_of_arrays_in_memory(tmp_path: Path) -> None:
    write_index(tmp_path / "index", [PACKED])
    mapped = read_index(tmp_path / "index")["val"].places
    assert mapped is not None
    assert np.array_equal(buffered_order(0, 1, mapped[:, 0], 4), buffered_order(0, 1, PLACES[:, 0], 4))
