"""Which cores each rank of this machine gets: those near its GPU, shared among the ranks of the same NUMA node."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_SYSTEM = Path("/sys")


@dataclass(frozen=True)
class Binding:
    """The cores of each local rank, none where nothing is bound, and a line that says what was done."""

    cores: tuple[tuple[int, ...], ...]
    said: str


def bind(addresses: Sequence[str | None], allowed: set[int], system: Path = _SYSTEM) -> Binding:
    """Bind a rank a GPU, given the GPUs' PCI addresses and the cores that this process may use."""
    near = [_near(address, system) & allowed for address in addresses]
    if not all(near):
        return Binding((), f"GPU {near.index(set())} has no cores near it, as far as the system says: none is bound")
    if len({frozenset(cores) for cores in near}) == 1 and near[0] == allowed:
        return Binding((), "all cores are near all GPUs: none is bound")
    ranks_at: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for rank, cores in enumerate(near):
        ranks_at[tuple(sorted(cores))].append(rank)
    shares: dict[int, tuple[int, ...]] = {}
    for node, ranks in ranks_at.items():
        whole = _physical(node, system)
        for number, rank in enumerate(ranks):
            mine = whole[number * len(whole) // len(ranks) : (number + 1) * len(whole) // len(ranks)]
            # note: with fewer cores than ranks each may use them all
            shares[rank] = tuple(sorted(core for cores in mine for core in cores)) or node
    told = "; ".join(f"rank {rank}: {_as_list(shares[rank])}" for rank in sorted(shares))
    return Binding(tuple(shares[rank] for rank in sorted(shares)), f"cores by GPU: {told}")


def _near(address: str | None, system: Path) -> set[int]:
    path = system / "bus" / "pci" / "devices" / str(address) / "local_cpulist"
    try:
        return _cores(path.read_text())
    except (OSError, ValueError):
        return set()


def _physical(cores: Sequence[int], system: Path) -> list[list[int]]:
    """The cores by physical core: its threads stay together."""
    found: dict[str, list[int]] = defaultdict(list)
    for core in cores:
        siblings = system / "devices" / "system" / "cpu" / f"cpu{core}" / "topology" / "thread_siblings_list"
        found[siblings.read_text() if siblings.exists() else str(core)].append(core)
    return list(found.values())


def _cores(text: str) -> set[int]:
    """The kernel's list of cores: `0-3,8`."""
    parts = [part.partition("-") for part in text.strip().split(",") if part]
    return {core for first, _, last in parts for core in range(int(first), int(last or first) + 1)}


def _as_list(cores: Sequence[int]) -> str:
    """The same list, written."""
    starts = [core for core in cores if core - 1 not in cores]
    ends = [core for core in cores if core + 1 not in cores]
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in zip(starts, ends, strict=True))
