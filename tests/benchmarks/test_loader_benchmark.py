import json
import os
import tarfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from benchmarks.loader import __main__ as command
from benchmarks.loader import first_epoch, process, timing
from benchmarks.loader.contenders import OPENERS, PLAIN
from benchmarks.loader.files import Files, originals, unpacked, write_all
from launcher.config.compose import compose
from launcher.data.loaders.ffcv import FFCVLoader
from tests.forked import Command

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four images of noise."""
    folder, random = tmp_path_factory.mktemp("tar"), np.random.default_rng(0)
    with tarfile.open(folder / "images.tar", "w") as archive:
        for number in range(4):
            path = folder / f"{number}.jpg"
            Image.fromarray(random.integers(0, 256, (60, 80, 3), dtype=np.uint8)).save(path)
            archive.add(path, f"some/{path.name}")
    return folder / "images.tar"


@pytest.fixture(scope="module")
def opened(tar: Path) -> Iterator[tuple[Path, Files]]:
    loader = compose(["dataloader=ffcv"]).config.dataloader
    assert isinstance(loader, FFCVLoader)
    with unpacked(tar) as folder:
        yield folder, write_all(folder, loader.files)


def _forked(command: list[str], pass_fds: list[int], env: dict[str, str]) -> Command:
    """Fork the contender's process, whose connection is its standard input."""
    return Command([*command[2:-1], "0"], Path.cwd(), env, 1, 2, stdin=pass_fds[0])


def test_the_whole_benchmark_runs_without_the_peers_that_are_missing(
    tar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "OPENERS", {name: OPENERS[name] for name in (PLAIN, "decode_jpeg")})
    monkeypatch.setattr(process, "subprocess", SimpleNamespace(Popen=_forked))
    words = f"--images {tar} --sizes 24 --repeats 1 --json {tmp_path}/out.json"
    assert command.main(words.split()) == 0
    figures = json.loads((tmp_path / "out.json").read_text())
    is_there = find_spec("ffcv") is not None
    assert [row["contender"] for row in figures["results"]] == [PLAIN] * is_there + ["torchvision's decode_jpeg"]
    assert all(0 < row["minimum"] <= row["median"] <= row["maximum"] for row in figures["results"])
    out = capsys.readouterr().out
    assert PLAIN in out
    assert (f"not installed here, so not measured: {PLAIN}" in out) != is_there


def _ended(command: list[str], **_: object) -> SimpleNamespace:
    done = Command(command[2:], Path.cwd(), os.environ)
    output, errors = done.communicate()
    assert done.returncode == 0, errors
    return SimpleNamespace(stdout=output)


def test_the_first_epoch_of_each_loader_is_timed_with_and_without_files(
    tar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(first_epoch, "subprocess", SimpleNamespace(run=_ended, PIPE=-1, DEVNULL=-1))
    monkeypatch.setattr(first_epoch, "find_spec", lambda name: None if name == "ffcv" else find_spec(name))
    words = f"--images {tar} --copies 40 --workers 1 --repeats 1 --json {tmp_path}/out.json"
    assert first_epoch.main(words.split()) == 0
    assert capsys.readouterr().out.startswith("not installed here, so not measured: FFCV's loader\n")
    rows = {row["contender"]: row for row in json.loads((tmp_path / "out.json").read_text())["results"]}
    assert [*rows] == [name for name in first_epoch.LOADERS if name != "FFCV's loader"]
    assert [name for name, row in rows.items() if row["written"]] == ["dataloader=ffcv"]
    assert all(row["second"] > 0 for row in rows.values())


@pytest.mark.parametrize("name", [name for name in OPENERS if not name.startswith("plain")])
def test_each_contender_decodes_all_images(name: str, opened: tuple[Path, Files]) -> None:
    folder, files = opened
    contender = OPENERS[name](folder, files)
    assert contender.sizes.tolist() == [[60, 80]] * 4
    assert contender.stored > 0
    loaded = contender.run(np.array([[10, 20, 40, 30, 1]] * 4), 32)
    assert isinstance(loaded, list)
    assert sum(len(batch[0]) if isinstance(batch, tuple) else 1 for batch in loaded) == len(originals(folder)) == 4


def result(name: str, size: int, throughput: float) -> timing.OneCore:
    return timing.OneCore(name, size, throughput, throughput, throughput, 1e3)


def test_the_throughput_of_a_schedule_averages_times() -> None:
    results = [result("a", 100, 100.0), result("a", 200, 25.0)]
    assert timing.over_schedule(results, "a", {100: 3, 200: 1}) == pytest.approx(4 / (3 / 100 + 1 / 25))
    between = round((100**2 / 2 + 200**2 / 2) ** 0.5)
    assert 1 / timing.over_schedule(results, "a", {between: 5}) == pytest.approx((0.01 + 0.04) / 2, rel=1e-2)


def test_ratios_are_to_plain_ffcv() -> None:
    throughput = {(PLAIN, 88): 100.0, ("b", 88): 250.0, (PLAIN, 176): 50.0, ("b", 176): 75.0}
    shown = timing.table([result(*key, value) for key, value in throughput.items()], {88: 1, 176: 1})
    assert [list(column.cells) for column in shown.columns][-2:] == [["1.00", "1.50"], ["1.00", "1.73"]]
