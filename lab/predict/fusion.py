"""The kernels that a step's calls become: one each when they are launched as they come, fewer when they are compiled.

The rule of compiled calls, after Inductor's: what works element by element joins a kernel over as many elements that
makes or reads what it reads; what a reduction finds is for later kernels alone; only what others read is written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from lab.predict.trace import Call

# A kernel that does several things is called by the first of these that it does.
_NAMED_BY = ("batch norm", "reduction", "pool", "gather", "elementwise")
_ALONE = ("convolution", "matmul", "attention", "foreach")
# What Inductor leaves to ATen (the pool's backward pass where channels come last), or writes a kernel for.
_OPAQUE = (
    *("sort", "topk", "nonzero", "scatter", "index_put", "_index_put", "index_copy", "cumsum"),
    *("max_pool2d_with_indices_backward", "_upsample"),
)
_COMPILED = ("prepare", "network")


@dataclass(frozen=True)
class Kernel:
    """What a device does in one go: bytes moved, matrix operations, and the number of its last call in the trace."""

    kind: str
    phase: str
    moved: int
    operations: int
    last_call: int


def eager_kernels(calls: Sequence[Call]) -> list[Kernel]:
    """A kernel a call, which reads its inputs and writes its outputs.

    Batch norm reads its inputs twice, as its sums come first; both kernels of a convolution's backward pass read the
    output's gradient.
    """
    return [
        Kernel(call.kind, call.phase, sum(call.reads.values()) + sum(call.writes.values()) + _again(call),
               call.operations, number)
        for number, call in enumerate(calls)
    ]  # fmt: skip


def _again(call: Call) -> int:
    if call.kind == "batch norm":
        return sum(_large(call).values())
    both = call.name == "convolution_backward" and len(call.writes) > 1
    return next(iter(call.reads.values())) if both else 0


def _large(call: Call) -> dict[int, int]:
    """What a norm reads over all pixels, not its weights and statistics."""
    most = max(call.reads.values(), default=0)
    return {storage: size for storage, size in call.reads.items() if 2 * size >= most}


def compiled_kernels(calls: Sequence[Call]) -> list[Kernel]:
    """The kernels if all but the update were compiled: what prepares a batch, and apart from it the network."""
    groups = _Groups()
    for number, call in enumerate(calls):
        for part in _parts(call, number):
            groups.place(part, number)
    return groups.kernels()


@dataclass(frozen=True)
class _Part:
    """A call, or one of a norm's two halves: sums, and what is made with them."""

    call: Call
    reads: dict[int, int]
    writes: dict[int, int]
    operations: int
    reduces: bool = False


def _parts(call: Call, number: int) -> Iterator[_Part]:
    if call.kind != "batch norm" or call.phase != "network":
        yield _Part(call, call.reads, call.writes, call.operations, call.kind == "reduction")
        return
    sums = {-1 - number: 0}  # note: no storage has such a number
    yield _Part(call, _large(call), sums, 0, reduces=True)
    yield _Part(call, call.reads | sums, call.writes, call.operations)


@dataclass(eq=False)
class _Group:
    """The calls of a kernel to be; `level` is above those of all that it waits for."""

    level: int
    call: Call
    open: bool
    reads: dict[int, int] = field(default_factory=dict)
    writes: dict[int, int] = field(default_factory=dict)
    late: set[int] = field(default_factory=set)
    kinds: set[str] = field(default_factory=set)
    again: int = 0
    operations: int = 0
    last_call: int = 0

    def add(self, part: _Part, number: int) -> None:
        self.reads |= {s: size for s, size in part.reads.items() if s not in self.writes and s not in self.reads}
        self.writes |= part.writes
        self.late |= part.writes.keys() if part.reduces else set()
        self.kinds.add(part.call.kind)
        self.operations += part.operations
        self.again += _again(part.call) if not self.open else 0
        self.last_call = number


class _Groups:
    """Kernels to be, in the order in which they were begun."""

    def __init__(self) -> None:
        self._all: list[_Group] = []
        self._writer: dict[int, _Group] = {}
        self._readers: dict[int, list[_Group]] = defaultdict(list)
        self._there_before: set[int] = set()

    def place(self, part: _Part, number: int) -> None:
        """Add a part of call `number` to the kernel that it joins, or to a new one."""
        call = part.call
        fuses = call.phase in _COMPILED and call.kind not in _ALONE and not call.name.startswith(_OPAQUE)
        group = self._joined(part) if fuses else None
        if group is None:
            level = max((self._writer[s].level + 1 for s in part.reads if s in self._writer), default=0)
            group = _Group(level, call, fuses)
            self._all.append(group)
        group.add(part, number)
        for storage in part.reads:
            if storage not in self._writer:
                self._there_before.add(storage)
            self._readers[storage].append(group)
        for storage in part.writes:
            self._writer[storage] = group

    def _joined(self, part: _Part) -> _Group | None:
        """The latest of the kernels that make or read what this part reads, if that can still hold it."""
        near = {id(g): g for s in part.reads for g in [*self._readers[s], *filter(None, [self._writer.get(s)])]}
        fit = [g for g in near.values() if self._fits(g, part)]
        return max(fit, key=lambda group: group.level, default=None)

    def _fits(self, group: _Group, part: _Part) -> bool:
        alike = group.call.elements == part.call.elements and group.call.phase == part.call.phase
        made = ((s, self._writer[s]) for s in part.reads if s in self._writer)
        ready = all(s not in group.late if maker is group else maker.level < group.level for s, maker in made)
        return group.open and alike and ready

    def kernels(self) -> list[Kernel]:
        return [
            Kernel(
                next((kind for kind in _NAMED_BY if kind in group.kinds), group.call.kind), group.call.phase,
                sum(group.reads.values()) + sum(self._written(group)) + group.again, group.operations, group.last_call,
            )
            for group in self._all
        ]  # fmt: skip

    def _written(self, group: _Group) -> Iterator[int]:
        """The bytes of what another kernel reads, and of what was there before, such as weights."""
        for storage, size in group.writes.items():
            if storage in self._there_before or any(reader is not group for reader in self._readers[storage]):
                yield size
