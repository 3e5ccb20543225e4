"""S3 as a real server in a process: prepare from it and train from it, and what becomes of its failures."""

from multiprocessing import forkserver
from pathlib import Path

import pytest

from launcher.data.sources import source as source_module
from launcher.data.sources.find import open_source
from launcher.data.sources.reading import local_copy
from launcher.data.workers import quiet
from launcher.errors import UserError
from tests.images import write_images

from ..conftest import make_loaders, same, stream
from .buckets import Bucket, once, proxy
from .downloads import webdataset

s3fs = pytest.importorskip("s3fs")

SHARDS = "s3://mine/pets"


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_images(tmp_path_factory.mktemp("images"), {"train": 21, "val": 7})
    shards = tmp_path_factory.mktemp("shards")
    folder.rename(shards / "folders")
    return webdataset(shards / "folders", shards)


@pytest.fixture
def bucket(s3: Bucket, shards: Path, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    # note: otherwise S3's client alone would retry for a quarter of a minute
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    return s3.hold(shards)


@pytest.mark.slow
@pytest.mark.parametrize("url", [SHARDS, f"{SHARDS}/folders"], ids=["shards", "folders"])
def test_training_reads_the_same_stream_for_any_number_of_workers_and_from_any_step(
    url: str, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # note: a server of an earlier test would fork workers without the bucket's credentials
    forkserver._forkserver._stop()  # type: ignore[attr-defined]
    words = ("dataloader.shuffle_buffer=10",)
    whole = stream(make_loaders(url, *words, "dataloader.workers=0"))  # type: ignore[arg-type]
    # note: on another machine, without copies
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    loaders = make_loaders(url, *words, "dataloader.workers=2")  # type: ignore[arg-type]
    assert same(whole[2:5], stream(loaders, epochs=(0,), first=2))
    assert {index for batch in whole[:5] for index in batch[2].tolist()} <= set(range(42))


def test_a_restarted_server_is_read_on_and_the_copy_has_all_bytes(
    bucket: Bucket, shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (archive, *_) = open_source(SHARDS, "train", quiet).archives
    bucket.stop()
    monkeypatch.setattr(source_module, "_PAUSES", ())
    with pytest.raises(UserError, match="cannot be read") as raised:
        local_copy(*archive)
    assert "\n" not in str(raised.value)
    bucket.start()
    s3fs.S3FileSystem.clear_instance_cache()
    assert local_copy(*archive).read_bytes() == (shards / "train-000000.tar").read_bytes()


def test_an_interrupted_copy_resumes(bucket: Bucket, shards: Path) -> None:
    (archive, *_) = open_source(SHARDS, "train", quiet).archives
    copy = local_copy(*archive)
    whole = (shards / "train-000000.tar").read_bytes()
    copy.unlink()
    # note: other bytes show that the rest alone is read
    copy.with_suffix(".partial").write_bytes(b"x" * 1000)
    assert local_copy(*archive).read_bytes() == b"x" * 1000 + whole[1000:]


def test_a_connection_cut_in_the_middle_loses_nothing(
    bucket: Bucket, shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_module, "_PAUSES", (0.0, 0.0, 0.0))
    with proxy(bucket.port, once(0)) as faulty:
        monkeypatch.setenv("AWS_ENDPOINT_URL", faulty.url)
        s3fs.S3FileSystem.clear_instance_cache()
        (archive, *_) = open_source(SHARDS, "train", quiet).archives
        assert local_copy(*archive).read_bytes() == (shards / "train-000000.tar").read_bytes()
        assert next(faulty.gets) > 1


def test_a_missing_bucket_is_a_one_line_error(bucket: Bucket) -> None:
    with pytest.raises(
        UserError, match=r"^dataset.path=s3://none/pets: .*parquet\) \(The specified bucket does not exist"
    ) as raised:
        open_source("s3://none/pets", "train", quiet)
    assert "\n" not in str(raised.value)


def test_wrong_keys_are_a_one_line_error(bucket: Bucket) -> None:
    # note: the server allows no call with unknown keys
    bucket.call("reset-auth", b"0")
    with pytest.raises(UserError, match=r"^dataset.path=s3://mine/pets: access denied .*check your cred") as error:
        open_source(SHARDS, "train", quiet)
    assert "\n" not in str(error.value)
