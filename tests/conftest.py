import ctypes
import gc
import math
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, settings

from launcher.compute import probe
from launcher.compute.host_memory import usable_memory
from tests import kept_compositions
from tests.data.sources.buckets import _s3_server, s3
from tests.forked import fork_probes
from tests.made_runs import make_run
from tests.other_machine import simulate
from tests.runs import Cold, Here, Train
from tests.skips import pytest_sessionfinish, pytest_terminal_summary

__all__ = ["_s3_server", "make_run", "pytest_sessionfinish", "pytest_terminal_summary", "s3"]

# What plain `pytest` leaves out and `pytest --rest` runs; files that are named on the command line run whole.
_REST = "(system or slow or sweep or sim or gpu) and not skeleton"

_COMPUTING = ("benchmarks", "training")
_SLOWEST = ("test_real_slurm.py", "test_gpu_script.py", "test_ranks.py", "test_core_alone.py")
# Memory that a test may leave occupied.
_LEFT_MIB = 40
_WORKER_BYTES, _SERVER_BYTES = 1.2e9, 0.9e9
_min_mib = math.inf

# note: timings on a shared machine are unreliable, and a failure in CI must be reproducible
# note: a busy machine draws slowly
settings.register_profile("project", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("project")

# note: tests would inherit ignored signals from nohup or a background job, and the data folder of a Docker image
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
os.environ.pop("TRAIN_DATA", None)
simulate()
kept_compositions.keep()
fork_probes()

with suppress(AttributeError):
    # note: glibc's M_ARENA_MAX; gaps in the arenas of threads are not reused
    ctypes.CDLL(None).mallopt(-8, 1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rest", action="store_true", help="run the cases that plain pytest leaves out")
    parser.addoption("--listed-skips", action="store_true", help="fail if a skip is not in tests/skips.txt")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.option.rest:
        config.option.markexpr = _REST
    elif config.args_source is not pytest.Config.ArgsSource.ARGS and not config.option.markexpr:
        config.option.markexpr = f"not ({_REST})"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return a worker a core, as far as memory goes; three for two cores where they wait for processes."""
    cores, fitting = probe.usable_cores(), (usable_memory().available - _SERVER_BYTES) // _WORKER_BYTES
    return max(1, min(cores * 3 // 2 if config.option.rest else cores, int(fitting)))


def pytest_collection_finish() -> None:
    # note: imported objects stay, so the garbage collector can skip them
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    # note: otherwise libraries report leaks at exit
    gc.unfreeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with slow files, the slowest first, in turn one that computes and one that waits for processes."""
    computing = dict.fromkeys(item.path for item in items if item.path.parent.name in _COMPUTING)
    starts = (item.path for item in items if item.get_closest_marker("system") or item.path.parent.name == "launch")
    waiting = sorted(
        dict.fromkeys(path for path in starts if path not in computing), key=lambda path: path.name not in _SLOWEST
    )
    turns = [path for pair in zip_longest(computing, waiting) for path in pair]
    items.sort(key=lambda item: turns.index(item.path) if item.path in turns else len(turns))


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    base = tmp_path_factory.getbasetemp()
    # note: all workers share it
    cache = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cache"
    cache.mkdir(exist_ok=True)
    os.environ["XDG_CACHE_HOME"] = str(cache)


@pytest.fixture(autouse=True)
def _memory_returned() -> Iterator[None]:
    """Return free memory to the system; otherwise a worker keeps the maximum of all tests."""
    global _min_mib
    yield
    _min_mib = min(_min_mib, _resident_mib())
    if _resident_mib() > _min_mib + _LEFT_MIB:
        gc.collect()
        with suppress(AttributeError):
            # note: glibc only
            ctypes.CDLL(None).malloc_trim(0)
        # note: the rest remains in use, such as imported libraries
        _min_mib = _resident_mib()


def _resident_mib() -> float:
    return psutil.Process().memory_info().rss / 2**20


@pytest.fixture
def tiny_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace every network of a config by a tiny one."""
    from tests.networks import tiny

    monkeypatch.setattr("launcher.models.resnet.library_network", tiny)


@pytest.fixture
def train(tmp_path: Path) -> Train:
    return Train(tmp_path)


@pytest.fixture
def cold(tmp_path: Path) -> Cold:
    return Cold(tmp_path)


@pytest.fixture
def here(tmp_path: Path) -> Here:
    return Here(tmp_path)
