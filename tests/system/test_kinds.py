"""Each kind of run, killed or stopped at any moment, resumes to the bits of a run without it."""

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random

import pytest

from tests.runs import Here, Train, draw_nothing, results, resumed_after_kill, same
from tests.system.kinds import KILLED, LIKE, STOPPED

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], Path]:
    """Return an uninterrupted run of a kind on some ranks."""

    @cache
    def run_of(name: str, ranks: int) -> Path:
        train = Train(tmp_path_factory.mktemp("whole"), before=(draw_nothing,))
        KILLED[name].write(train)
        train(*KILLED[name].words.split(), f"launch.nproc={ranks}", "run_name=whole")
        return train.folder / "runs" / "whole"

    return run_of


ON_RANKS = [(name, 3) for name in KILLED if name not in ("smp", "own_code")]
ON_RANKS += [("jsonl", 1), ("modded", 2), ("colours", 1), ("npy", 2), ("smp", 1), ("own_code", 2)]
ON_RANKS += [(name, ranks) for name in ("lines", "slices") for ranks in (1, 2)]


@pytest.mark.parametrize(("name", "ranks"), ON_RANKS)
def test_a_killed_run_resumes_to_the_same_bits(
    name: str, ranks: int, whole: Callable[[str, int], Path], tmp_path: Path
) -> None:
    random, train, kind = Random(f"{name} {ranks}"), Train(tmp_path, before=(draw_nothing,)), KILLED[name]
    kind.write(train)
    words = [*kind.words.split(), f"launch.nproc={ranks}"]
    run = resumed_after_kill(train, words, random.randrange(1, 9), later=random.uniform(0, 0.2))
    uninterrupted = whole(LIKE.get(name, name), ranks)
    assert same(train.decided(run), train.decided(uninterrupted))
    assert results(run)[-4:] == results(uninterrupted)[-4:]
    assert len({row[6] for row in results(run) if row[0] == "train"}) >= kind.views
    assert train.decided(run)["step"] == (18 if name == "own_code" else 12)


@pytest.mark.parametrize("name", STOPPED)
def test_a_stopped_run_resumes_to_the_same_bits(name: str, here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, whole, stopped = STOPPED[name], here.folder / "runs" / "whole", here.folder / "runs" / "stopped"
    for module in ("nets", "formulas", "typed"):
        # note: those of another case have the same names
        monkeypatch.delitem(sys.modules, module, raising=False)
    kind.write(here)
    here(*kind.words.split(), "run_name=whole")
    here(*kind.words.split(), "run_name=stopped", code=143, stop_after=kind.stop)
    assert kind.stop <= here.state(stopped)["step"] < here.state(whole)["step"]  # type: ignore[operator]
    here("resume", str(stopped))
    assert same(here.decided(whole), here.decided(stopped))
    assert same(here.state(whole)["callbacks"], here.state(stopped)["callbacks"])
    assert results(whole) == results(stopped)
    assert name != "archives" or here.state(whole)["classes"] == ["0", "1"]
