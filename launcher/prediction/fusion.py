"""The kernels of a step's calls: one per call in eager mode, fewer when compiled.

The rule for compiled calls follows Inductor: an elementwise call joins a kernel over as many elements that writes or
reads its inputs; later kernels read the results of a reduction; only what other kernels read is written.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from launcher.prediction.trace import Call

# A kernel with several kinds of calls has the first of these kinds.
_NAMED_BY = ("batch norm", "reduction", "pool", "gather", "elementwise")
_ALONE = ("convolution", "matmul", "attention", "foreach")
# Calls that Inductor leaves to ATen (the backward pass of a channels-last pool), or compiles to a kernel each.
_OPAQUE = (
    *("sort", "topk", "nonzero", "scatter", "index_put", "_index_put", "index_copy", "cumsum"),
    *("max_pool2d_with_indices_backward", "_upsample"),
)
_COMPILED = ("prepare", "network")


@dataclass(frozen=True)
class Kernel:
    """One kernel: bytes moved, matrix operations, and the number of its last call in the trace."""

    kind: str
    phase: str
    moved: int
    operations: int
    last_call: int


def eager_kernels(calls: Sequence[Call]) -> list[Kernel]:
    """Return one kernel per call, which reads its inputs and writes its outputs.

    Batch norm reads its inputs twice, because its sums come first; both kernels of a convolution's backward pass read
    the output's gradient.
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
    """Return the bytes that a norm reads over all pixels, without weights and statistics."""
    largest = max(call.reads.values(), default=0)
    return {storage: size for storage, size in call.reads.items() if 2 * size >= largest}


def compiled_kernels(calls: Sequence[Call]) -> list[Kernel]:
    """Return the kernels with batch preparation and network compiled separately, and the update eager."""
    groups = _Groups()
    for number, call in enumerate(calls):
        for part in _parts(call, number):
            groups.place(part, number)
    return groups.kernels()


@dataclass(frozen=True)
class _Part:
    """A call, or one of the two halves of a norm: its sums, and the normalization."""

    call: Call
    reads: dict[int, int]
    writes: dict[int, int]
    operations: int
    reduces: bool = False


def _parts(call: Call, number: int) -> Iterator[_Part]:
    if call.kind != "batch norm" or call.phase != "network":
        yield _Part(call, call.reads, call.writes, call.operations, call.kind == "reduction")
        return
    sums = {-1 - number: 0}  # note: storages have positive numbers
    yield _Part(call, _large(call), sums, 0, reduces=True)
    yield _Part(call, call.reads | sums, call.writes, call.operations)


@dataclass(eq=False)
class _Group:
    """The calls of a future kernel; `level` is above the levels of the kernels that it depends on."""

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
    """Future kernels, in the order of their first calls."""

    def __init__(self) -> None:
        self._all: list[_Group] = []
        self._writer: dict[int, _Group] = {}
        self._readers: dict[int, list[_Group]] = defaultdict(list)
        self._there_before: set[int] = set()

    def place(self, part: _Part, number: int) -> None:
        """Add a part of call `number` to the kernel that it can join, or to a new one."""
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
        """Return the last kernel that writes or reads an input of this part, if the part can join it."""
        near = {id(g): g for s in part.reads for g in [*self._readers[s], *filter(None, [self._writer.get(s)])]}
        fit = [g for g in near.values() if self._fits(g, part)]
        return max(fit, key=lambda group: group.level, default=None)

    def _fits(self, group: _Group, part: _Part) -> bool:
        equal = group.call.elements == part.call.elements and group.call.phase == part.call.phase
        inputs = ((s, self._writer[s]) for s in part.reads if s in self._writer)
        ready = all(s not in group.late if writer is group else writer.level < group.level for s, writer in inputs)
        return group.open and equal and ready

    def kernels(self) -> list[Kernel]:
        return [
            Kernel(
                next((kind for kind in _NAMED_BY if kind in group.kinds), group.call.kind), group.call.phase,
                sum(group.reads.values()) + sum(self._written(group)) + group.again, group.operations, group.last_call,
            )
            for group in self._all
        ]  # fmt: skip

    def _written(self, group: _Group) -> Iterator[int]:
        """Return the bytes that another kernel reads, and those of earlier storages, such as weights."""
        for storage, size in group.writes.items():
            if storage in self._there_before or any(reader is not group for reader in self._readers[storage]):
                yield size
