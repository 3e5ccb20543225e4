"""`dataloader.write_missing`: images that are not in FFCV files yet have their pixels, and are stored for them."""

import shutil
import time
from pathlib import Path

import pytest

from launcher.config.compose import compose
from launcher.data.ffcv import growing
from launcher.data.ffcv.dataset import FFCVDataset
from launcher.data.ffcv.growing import GrowingPool
from launcher.data.ffcv.prepare import verify
from launcher.data.inspection import inspect_data
from launcher.data.workers import quiet
from launcher.errors import UserError
from launcher.plan.checks import check
from launcher.plan.plan import Plan
from tests.images import write_images
from tests.runs import wait_for

from .conftest import make_loaders, same, stream, words_for, write_files

WORDS = ["dataloader=ffcv", "dataloader.workers=1", "dataloader.write_missing=true", "batch_size=6"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Images of which no files are written, as many as the batches of an epoch have."""
    return write_images(tmp_path / "images", {"train": 9, "val": 5})


def files_of(folder: Path) -> FFCVDataset:
    return FFCVDataset.of(compose(words_for(folder, "dataloader=ffcv")).config)


def encodings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that receives the number of each image that is encoded."""
    numbers: list[int] = []
    encode = growing.encode_all

    def noted(files: object, items: list[tuple[int, object]], **values: object) -> object:
        numbers.extend(number for number, _ in items)
        return encode(files, items, **values)  # type: ignore[arg-type]

    monkeypatch.setattr(growing, "encode_all", noted)
    return numbers


def test_pixels_are_those_of_the_files_and_an_image_is_encoded_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = encodings(monkeypatch)
    monkeypatch.setattr(growing._Writing, "_write", lambda _: None)
    missing = stream(make_loaders(folder, *WORDS))
    assert sorted(numbers) == [*range(18)]
    stored = stream(make_loaders(folder, *WORDS))
    assert len(numbers) == 18
    shutil.rmtree(folder / "ffcv")
    write_files(folder)
    written = stream(make_loaders(folder, *WORDS))
    assert same(missing, written)
    assert same(stored, written)


def test_evaluated_images_are_those_of_the_files(folder: Path) -> None:
    loaders = make_loaders(folder, *WORDS)
    missing = [*loaders.evaluate]
    loaders.close()
    # note: a command that only evaluates leaves nothing
    assert not (folder / "ffcv").exists()
    write_files(folder)
    loaders = make_loaders(folder, *WORDS)
    assert same(missing, [*loaders.evaluate])
    loaders.close()


def test_a_run_writes_the_files_once_all_images_are_stored_and_reads_on(folder: Path) -> None:
    files, loaders = files_of(folder), make_loaders(folder, *WORDS)
    first = [*loaders.train.epoch(0)]
    assert not files.are_written()
    # note: a command that only evaluates may end before files are written
    assert [*loaders.evaluate]
    assert [*loaders.evaluate]
    time.sleep(0.5)
    assert not files.are_written()
    second = [*loaders.train.epoch(1)]
    wait_for(files.are_written)
    third = [*loaders.train.epoch(2)]
    loaders.close()
    assert {one.suffix for one in (folder / "ffcv").iterdir()} == {".beton", ".json"}
    assert len([*verify(files_of(folder), quiet)]) == 2
    assert same([*first, *second, *third], stream(make_loaders(folder, *WORDS), epochs=(0, 1, 2)))


def test_prepare_continues_with_what_a_run_has_stored(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaders = make_loaders(folder, *WORDS)
    next(iter(loaders.train.epoch(0)))
    loaders.close()
    encode, numbers = growing.encode_all, list[int]()
    monkeypatch.setattr(
        "launcher.data.ffcv.encoder.encode_all",
        lambda files, items, **values: [numbers.append(items[0][0]), encode(files, items, **values)][1],
    )
    write_files(folder)
    pixels = stream(make_loaders(folder, *WORDS))
    assert len(numbers) < 3
    shutil.rmtree(folder / "ffcv")
    write_files(folder)
    assert same(pixels, stream(make_loaders(folder, *WORDS)))


def test_a_run_of_less_than_an_epoch_starts_no_files_but_continues_them(folder: Path) -> None:
    words = [*WORDS, "epochs=2"]
    first = stream(make_loaders(folder, *words), epochs=(1,), first=1)
    assert not (folder / "ffcv").exists()
    write_files(folder)
    assert same(first, stream(make_loaders(folder, *words), epochs=(1,), first=1))
    shutil.rmtree(folder / "ffcv")
    loaders = make_loaders(folder, *words)
    assert [*loaders.train.epoch(0)]
    assert [*loaders.evaluate]
    loaders.close()
    loaders = make_loaders(folder, *words)
    assert [*loaders.train.epoch(1, 1)]
    wait_for(files_of(folder).are_written)
    loaders.close()


def test_an_image_that_changed_since_it_was_stored_is_encoded_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growing._Writing, "_write", lambda _: None)
    stream(make_loaders(folder, *WORDS))
    cat, dog = (folder / "train" / name / "3.jpg" for name in ("cat", "dog"))
    changed = dog.read_bytes() + b"more", cat.read_bytes() + b"more"
    cat.write_bytes(changed[0])
    first = stream(make_loaders(folder, *WORDS), epochs=(0,))
    write_files(folder, f"dataloader.folder={tmp_path / 'first'}")
    dog.write_bytes(changed[1])
    write_files(folder)
    second = stream(make_loaders(folder, *WORDS), epochs=(0,))
    write_files(folder, f"dataloader.folder={tmp_path / 'second'}")
    for name, pixels in {"first": first, "second": second}.items():
        assert same(pixels, stream(make_loaders(folder, *WORDS, f"dataloader.folder={tmp_path / name}"), epochs=(0,)))


def test_one_file_of_other_images_is_refused(folder: Path) -> None:
    train, val = write_files(folder)
    val.unlink()
    next((folder / "train").glob("*/*")).unlink()
    with pytest.raises(UserError, match=f"{train} has other images or rotations than {folder}; remove it and"):
        write_files(folder)
    with pytest.raises(UserError, match=f"{train} has other images or rotations than {folder}; remove it and"):
        make_loaders(folder, *WORDS)


def test_an_image_that_cannot_be_decoded_ends_the_run(folder: Path) -> None:
    (folder / "train" / "cat" / "0.jpg").write_bytes(b"no image")
    with pytest.raises(UserError, match=r"0\.jpg cannot be read as an image"):
        stream(make_loaders(folder, *WORDS))


def test_a_folder_that_cannot_be_written_is_one_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    loaders = make_loaders(folder, *WORDS, f"dataloader.folder={tmp_path / 'file'}")
    assert stream(loaders)
    assert capsys.readouterr().out.count("images are encoded again in each epoch") == 2


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("launch.nnodes=2", "each of several nodes reads only a part"),
        ("dataset.skip_bad=true", "files of skipped images have other numbers"),
        ("dataloader.files.small_side=20", "small images are not written"),
        ("dataloader.train=mine.beton", "dataloader.train and dataloader.val exist"),
    ],
)
def test_what_cannot_be_written_while_training_is_refused(word: str, reason: str, folder: Path) -> None:
    config = inspect_data(compose(words_for(folder, *WORDS, word)).config, must_exist=True).config
    with pytest.raises(UserError, match=reason):
        check(Plan(config, 2, config.dataset.train_samples), {}, "cpu")


def test_a_stalled_read_shows_the_image(folder: Path) -> None:
    loaders = make_loaders(folder, *WORDS)
    reader = loaders.train.reader
    assert isinstance(reader, GrowingPool)
    assert reader.stalled(0) is None
    with reader._reading.image(3):
        assert reader.stalled(0) == str(folder / "train" / "cat" / "3.jpg")
    assert reader.measure(3)[2] > 0
    loaders.close()
