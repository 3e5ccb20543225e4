"""torch.sim: the names of torch.cuda for the simulated device "sim", by which `launcher.compute.accelerator` finds it.

Import it before anything that builds tensors, in a process of its own: torch's accelerator is then this device.
"""

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any, ParamSpec, TypeVar

import torch
import torch.distributed as dist

from tests.simulated_gpu.build import load

P = ParamSpec("P")
R = TypeVar("R")

DEVICES = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) + 1  # note: one more, whose use is an error that shows
MEMORY = 80 << 30
# Threads whose waits hold no step.
ASIDE = ("decode", "save")

native = load()
native.init(DEVICES)
torch.utils.rename_privateuse1_backend("sim")


class Waited(AssertionError):
    """The host waits for the device where it must not."""


# note: shared by the threads of the backward pass, which belong to the step
WAITS = SimpleNamespace(counts=Counter[str](), refused=False, allowed=0)


def _on_wait(what: str) -> None:
    if WAITS.allowed or threading.current_thread().name.startswith(ASIDE):
        return
    if WAITS.refused:
        raise Waited(what)
    WAITS.counts[what] += 1


native.on_wait(_on_wait)


@contextmanager
def refused_waits() -> Iterator[None]:
    """Raise Waited where the host waits, except within `may_wait`."""
    WAITS.refused = True
    try:
        yield
    finally:
        WAITS.refused = False


def may_wait(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function within which the host may wait, uncounted."""

    def call(*arguments: P.args, **named: P.kwargs) -> R:
        WAITS.allowed += 1
        try:
            return function(*arguments, **named)
        finally:
            WAITS.allowed -= 1

    return call


def number(device: Any = None) -> int:
    index = device if isinstance(device, int | None) else torch.device(device).index
    return int(native.current_device() if index is None else index)


class Device:
    """torch.cuda.device."""

    def __init__(self, device: Any):
        self._number = number(device)

    def __enter__(self) -> None:
        self._before = native.exchange_device(self._number)

    def __exit__(self, *_: object) -> None:
        native.exchange_device(self._before)


class Stream(torch.Stream):
    def __new__(cls, device: Any = None, priority: int = 0, **named: Any) -> "Stream":
        named = named or {"device": torch.device("sim", number(device))}
        return super().__new__(cls, **named)  # type: ignore[return-value]


class Event(torch.Event):
    def __new__(cls, enable_timing: bool = False, blocking: bool = False) -> "Event":
        return super().__new__(cls, device="sim", enable_timing=enable_timing, blocking=blocking)  # type: ignore[return-value]


def current_stream(device: Any = None) -> torch.Stream:
    return torch.accelerator.current_stream(torch.device("sim", number(device)))


def set_stream(stream: torch.Stream) -> None:
    if stream.device_index != native.current_device():
        native.set_device(stream.device_index)  # note: creates a context, as torch's C++ does
    torch.accelerator.set_stream(stream)


class StreamContext:
    """torch.cuda.stream: leaving it in a new thread selects that thread's first device, 0."""

    def __init__(self, stream: torch.Stream):
        self._stream = stream

    def __enter__(self) -> None:
        self._before = current_stream()
        self._there = current_stream(self._stream.device_index)
        set_stream(self._stream)

    def __exit__(self, *_: object) -> None:
        if self._before.device_index != self._stream.device_index:
            set_stream(self._there)
        set_stream(self._before)


class Graph:
    """torch.cuda.CUDAGraph."""

    number: int | None = None
    launches = 0

    def replay(self) -> None:
        native.replay(self.number)

    def reset(self) -> None:
        if self.number is not None:
            native.reset(self.number)
        self.number = None

    def __del__(self) -> None:
        self.reset()


class Capture:
    """torch.cuda.graph."""

    def __init__(self, graph: Graph, pool: Any = None, stream: Any = None, capture_error_mode: str = "global"):
        self._graph, self._pool = graph, pool or native.new_pool()
        self._stream = StreamContext(stream or Stream())

    def __enter__(self) -> None:
        may_wait(native.synchronize)(native.current_device())
        native.empty_cache()
        self._stream.__enter__()
        native.begin_capture(self._pool)

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._graph.number, self._graph.launches = native.end_capture()
        else:
            native.abandon_capture()
        self._stream.__exit__()


class Memory:
    """The functions of a device's memory, and its limit in bytes."""

    limit = MEMORY

    @classmethod
    def set_limit(cls, size: int) -> None:
        cls.limit = size
        native.limit_memory(size)

    @classmethod
    def info(cls, device: Any = None) -> tuple[int, int]:
        return cls.limit - native.memory()[2], cls.limit


def _module() -> ModuleType:
    module, initialized = ModuleType("torch.sim"), [False]
    properties = SimpleNamespace(name="Simulated GPU", total_memory=MEMORY, major=9, minor=0, multi_processor_count=132)

    def set_device(device: Any) -> None:
        initialized[0] = True
        native.set_device(number(device))

    def memory(place: int) -> Callable[..., int]:
        return lambda device=None: native.memory()[place]

    def generator(device: Any = None) -> torch.Generator:
        return module.default_generators[number(device)]  # type: ignore[no-any-return]

    names = {
        "is_available": lambda: True,
        "is_initialized": lambda: initialized[0],
        "_is_in_bad_fork": lambda: False,
        "_lazy_init": lambda: None,
        "device_count": lambda: DEVICES,
        "current_device": native.current_device,
        "set_device": set_device,
        "device": Device,
        "get_device_name": lambda device=None: properties.name,
        "get_device_properties": lambda device=None: properties,
        "get_amp_supported_dtype": lambda: [torch.bfloat16, torch.float16, torch.float32],
        "is_bf16_supported": lambda including_emulation=True: True,
        "synchronize": lambda device=None: native.synchronize(number(device)),
        "manual_seed": lambda seed: generator().manual_seed(seed),
        "manual_seed_all": lambda seed: [one.manual_seed(seed) for one in module.default_generators],
        "get_rng_state": lambda device=None: generator(device).get_state(),
        "set_rng_state": lambda state, device=None: generator(device).set_state(state),
        "Stream": Stream,
        "Event": Event,
        "current_stream": current_stream,
        "set_stream": set_stream,
        "stream": StreamContext,
        "graph_pool_handle": native.new_pool,
        "is_current_stream_capturing": native.is_capturing,
        "CUDAGraph": Graph,
        "graph": Capture,
        "empty_cache": native.empty_cache,
        "memory_allocated": memory(0),
        "max_memory_allocated": memory(1),
        "memory_reserved": memory(2),
        "max_memory_reserved": memory(3),
        "reset_peak_memory_stats": lambda device=None: native.reset_peak(),
        "mem_get_info": Memory.info,
    }
    vars(module).update(names)
    return module


_SIM = _module()
torch._register_device_module("sim", _SIM)
sys.modules["torch.sim"] = _SIM
_SIM.default_generators = [native.default_generator(index) for index in range(DEVICES)]
torch.utils.generate_methods_for_privateuse1_backend(unsupported_dtype=None)


def _backend(store: dist.Store, rank: int, size: int, timeout: Any, *_: Any) -> Any:
    return native.with_streams(dist.ProcessGroupGloo(dist.PrefixStore("sim", store), rank, size, timeout))


def _draining(function: Callable[P, R]) -> Callable[P, R]:
    def call(*arguments: P.args, **named: P.kwargs) -> R:
        if not any(isinstance(one, torch.Tensor) and one.device.type == "sim" for one in arguments):
            native.drain()
        return function(*arguments, **named)

    return call


def register_collectives() -> None:
    """Register the process group of the device, which goes on computing while the host waits for other ranks."""
    dist.Backend.register_backend("simccl", _backend, devices=["sim"])
    waiting = ("all_gather_object", "broadcast_object_list", "all_gather", "all_reduce", "barrier", "broadcast")
    for name in (*waiting, "destroy_process_group"):
        setattr(dist, name, _draining(getattr(dist, name)))
