"""Ranks on the cores near their GPUs, on machines made of files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher.config.compose import compose
from launcher.data.following import worker_count
from launcher.launch import elastic
from launcher.launch.devices import Binding, Devices, bind
from launcher.launch.terminal import PlainView
from launcher.probe import BOUND
from launcher.rank.main import DEVICE


def machine(system: Path, near: dict[str, str], threads: dict[int, str]) -> Path:
    """A tree as the kernel's: PCI address to its list of cores, core to its siblings."""
    for address, cores in near.items():
        folder = system / "bus" / "pci" / "devices" / address
        folder.mkdir(parents=True)
        (folder / "local_cpulist").write_text(f"{cores}\n")
    for core, siblings in threads.items():
        folder = system / "devices" / "system" / "cpu" / f"cpu{core}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{siblings}\n")
    return system


# Two nodes of four physical cores with two threads each, numbered as Linux does: 0-7, then their second threads.
THREADS = {core: f"{core % 8},{core % 8 + 8}" for core in range(16)}
NEAR = {
    "0000:07:00.0": "0-3,8-11",
    "0000:0f:00.0": "0-3,8-11",
    "0000:87:00.0": "4-7,12-15",
    "0000:90:00.0": "4-7,12-15",
}


def test_a_node_is_shared_by_its_ranks_in_whole_cores(tmp_path: Path) -> None:
    found = bind(list(NEAR), set(range(16)), machine(tmp_path, NEAR, THREADS))
    assert found.cores == ((0, 1, 8, 9), (2, 3, 10, 11), (4, 5, 12, 13), (6, 7, 14, 15))
    assert found.said == "cores by GPU: rank 0: 0-1,8-9; rank 1: 2-3,10-11; rank 2: 4-5,12-13; rank 3: 6-7,14-15"


def test_only_allowed_cores_are_given(tmp_path: Path) -> None:
    found = bind(list(NEAR)[1:3], {1, 2, 9, 10, 12}, machine(tmp_path, NEAR, THREADS))
    assert found.cores == ((1, 2, 9, 10), (12,))


def test_ranks_that_are_more_than_cores_share_them(tmp_path: Path) -> None:
    assert bind(list(NEAR)[:2] * 2, {1, 12}, machine(tmp_path, NEAR, THREADS)).cores == ((1,),) * 4


@pytest.mark.parametrize(
    ("addresses", "allowed", "said"),
    [
        (["0000:07:00.0", "0000:0f:00.0"], {0, 1, 8}, "all cores are near all GPUs: none is bound"),
        (
            ["0000:07:00.0", None],
            set(range(16)),
            "GPU 1 has no cores near it, as far as the system says: none is bound",
        ),
        (["0000:07:00.0", "0000:ff:00.0"], set(range(16)), "GPU 1 has no cores near it"),
        (["0000:07:00.0", "0000:87:00.0"], {0, 1}, "GPU 1 has no cores near it"),
    ],
)
def test_where_nothing_is_bound_it_says_why(
    tmp_path: Path, addresses: list[str | None], allowed: set[int], said: str
) -> None:
    found = bind(addresses, allowed, machine(tmp_path, NEAR, THREADS))
    assert found.cores == ()
    assert found.said.startswith(said)


def test_a_rank_takes_its_cores_and_counts_them_as_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import os; from launcher.rank.main import take_cores; take_cores(); print(sorted(os.sched_getaffinity(0)))"
    first = min(os.sched_getaffinity(0))
    environment = {**os.environ, BOUND: f";{first}", "LOCAL_RANK": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"[{first}]"
    loader = compose(["dataloader=ffcv"]).config.dataloader
    cores = len(os.sched_getaffinity(0))
    monkeypatch.delenv(BOUND, raising=False)
    assert worker_count(loader, 2) == max(1, cores // 2)
    monkeypatch.setenv(BOUND, "0;1")
    assert worker_count(loader, 2) == cores


@pytest.mark.parametrize(
    ("kind", "bound", "allocator"), [("cuda", "0,1;2", "expandable_segments:True"), ("cpu", "", None)]
)
def test_ranks_are_given_cores_and_an_allocator_as_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: Any, bound: str, allocator: str | None
) -> None:
    for name in (BOUND, DEVICE, "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        monkeypatch.setenv(name, "")  # note: so that it is put back
        monkeypatch.delenv(name)
    monkeypatch.setattr(elastic, "bind", lambda addresses, allowed: Binding(((0, 1), (2,)), "bound"))
    launch = compose(["launch.bind=auto", "launch.expandable_segments=true"]).config.launch
    devices = Devices(kind, 2, [{"address": address} for address in list(NEAR)[:2]])
    launcher = elastic.Launcher(tmp_path, devices, launch, PlainView())
    launcher._set_environment()
    assert (os.environ[DEVICE], os.environ[BOUND], os.environ.get("PYTORCH_CUDA_ALLOC_CONF")) == (
        kind,
        bound,
        allocator,
    )
    if kind == "cuda":
        monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF")
        monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:256")
        launcher._set_environment()
        assert "PYTORCH_CUDA_ALLOC_CONF" not in os.environ
