"""Faults of the kinds that only a GPU shows, as edits of the product's source, and the runs that must show them."""

from dataclasses import dataclass, replace

from tests.simulated_gpu.cases import ORDERS, Case, plain_and_captured, recipe

PLAIN = (recipe("mild"),)
GRAPHS = tuple(plain_and_captured(recipe("hot")))
DEPTH = tuple(plain_and_captured(recipe("hot", "algorithms.stochastic_depth=on")))
RANKS = tuple(plain_and_captured(replace(recipe("mild", "launch.gradient_dtype=bfloat16"), ranks=2)))
BATCH, BUCKETS, METERS = "launcher.data.batch", "launcher.training.buckets", "launcher.training.meters"
STEP, CAPTURED, SAVING = (f"launcher.training.{name}" for name in ("step", "captured", "saving"))
BEAT = "HEARTBEAT.beat()\n"
EVENT = """\
self._copied = device.Event(blocking=True)
self._copied.record(device.current_stream(values.device))
"""
COPY = "self._values = torch.empty_like(values, device='cpu', pin_memory=True).copy_(values, non_blocking=True)\n"


@dataclass(frozen=True)
class Fault:
    """Statements of a module and what replaces them, and cases that must differ, wait or fail in some of the orders."""

    module: str
    old: str
    new: str
    cases: tuple[Case, ...] = PLAIN
    orders: tuple[str, ...] = ORDERS


FAULTS = {
    "batches without record_stream": Fault(BATCH, "tensor.record_stream(current)", "pass"),
    "batches without wait_stream": Fault(BATCH, "current.wait_stream(self._stream)", "pass"),
    "the values of a step read without its event": Fault(METERS, "self._copied.synchronize()", "pass"),
    "the event before the copy": Fault(METERS, COPY + EVENT, EVENT + COPY),
    "one pinned buffer for the numbers of all steps": Fault(
        STEP,
        "self._numbers.copy_(numbers.pin_memory() if self._pins else numbers, non_blocking=True)",
        "own = self.__dict__.setdefault('own', numbers.pin_memory()).copy_(numbers)\n"
        "self._numbers.copy_(own, non_blocking=True)",
    ),
    "a checkpoint copied without a wait": Fault(SAVING, "synchronize(device)", "pass"),
    "a wait in the step": Fault(STEP, BEAT, f"{BEAT}values[0].item()"),
    "a boolean index in the step": Fault(STEP, BEAT, f"{BEAT}values[values > 0]"),
    "one fused update on other strides": Fault(
        STEP,
        (step := "if self._drops_by_flag or not dropped:\n    self.optimizer.step()\n"),
        f"for one in self._parameters:\n    one.grad = None if one.grad is None else one.grad.contiguous()\n{step}",
    ),
    "a side stream of captured steps that nothing waits for": Fault(
        CAPTURED, "main.wait_stream(self._stream)", "pass", GRAPHS
    ),
    "a graph's inputs not copied": Fault(CAPTURED, "buffer.copy_(tensor)", "pass", GRAPHS),
    "one graph for all kinds of steps": Fault(
        CAPTURED, "key = kind, *map(_layout, tensors)", "key = None, *map(_layout, tensors)", GRAPHS
    ),
    "a bucket sent before its copy": Fault(
        BUCKETS,
        "if missing:\n    break\nbucket.fill()\nself._works.append(bucket.all_reduce())",
        "if missing:\n    break\nself._works.append(bucket.all_reduce())\nbucket.fill()",
        RANKS,
    ),
    # note: the all-reduce of the flags joins them later
    "buckets that nothing waits for before they are read": Fault(BUCKETS, "work.wait()", "pass", RANKS),
    "a learning rate captured as a number": Fault(
        STEP, "set_lr(self.optimizer, self._numbers[0])", "set_lr(self.optimizer, lr)", GRAPHS
    ),
    "a wait in a captured step": Fault(
        STEP,
        "flags = self._flags(values)",
        "flags = self._flags(values)\nbool(flags[0])",
        GRAPHS,
    ),
    "masks of stochastic depth at new addresses": Fault(
        "launcher.algorithms.stochastic_depth",
        "masks = self._masks.setdefault(masks.shape, torch.empty_like(masks)).copy_(masks)",
        "masks = masks.clone()",
        DEPTH,
    ),
    "memory on the device of another rank": Fault(
        BATCH,
        (recorded := "tensor.record_stream(current)\n"),
        f"{recorded}torch.zeros(1, device='sim:1')",
    ),
}
