"""Faults of the kinds that only a GPU shows, as edits of the product's source, and the runs that must show them."""

from dataclasses import dataclass, replace

from tests.simulated_gpu.cases import ORDERS, Case, plain_and_captured, recipe

PLAIN = (recipe("mild"),)
GRAPHS = tuple(plain_and_captured(recipe("hot")))
DEPTH = tuple(plain_and_captured(recipe("hot", "algorithms.stochastic_depth=on")))
RANKS = tuple(plain_and_captured(replace(recipe("mild", "launch.gradient_dtype=bfloat16"), ranks=2)))
BUCKETS, BATCH, METERS, STEP = (
    "launcher.rank.buckets",
    "launcher.data.batch",
    "launcher.training.meters",
    "launcher.training.step",
)
CAPTURED, SAVING = "launcher.training.captured", "launcher.training.saving"
BEAT = "        HEARTBEAT.beat()\n"
EVENT = """\
            # note: a busy wait would take a core that loader workers need
            self._copied = device.Event(blocking=True)
            self._copied.record(device.current_stream(values.device))
"""
COPY = """\
            self._values = torch.empty_like(values, device="cpu", pin_memory=True).copy_(values, non_blocking=True)
"""
SEND = """\
        self._numbers.copy_(numbers.pin_memory() if self._pins else numbers, non_blocking=True)
"""


@dataclass(frozen=True)
class Fault:
    """A text of a module and what replaces it, and cases that must differ, wait or fail in some of the orders."""

    module: str
    old: str
    new: str
    cases: tuple[Case, ...] = PLAIN
    orders: tuple[str, ...] = ORDERS


FAULTS = {
    "batches without record_stream": Fault(BATCH, "tensor.record_stream(current)", "pass"),
    "batches without wait_stream": Fault(BATCH, "current.wait_stream(self._stream)", "pass"),
    "nvJPEG writes memory that is still read": Fault(
        "launcher.data.device_jpeg",
        "interface(self._device).current_stream(self._device).synchronize()",
        "pass",
        (recipe("baseline", loader="nvjpeg"),),
        ("eager", "random:1", "random:2"),
    ),
    "the values of a step read without its event": Fault(METERS, "self._copied.synchronize()", "pass"),
    "the event before the copy": Fault(METERS, COPY + EVENT, EVENT + COPY),
    "one pinned buffer for the numbers of all steps": Fault(
        STEP,
        SEND,
        "        own = self.__dict__.setdefault('own', numbers.pin_memory()).copy_(numbers)\n"
        "        self._numbers.copy_(own, non_blocking=True)\n",
    ),
    "a checkpoint copied without a wait": Fault(SAVING, "        synchronize(device)\n", "        pass\n"),
    "a wait in the step": Fault(STEP, BEAT, f"{BEAT}        values[0].item()\n"),
    "a boolean index in the step": Fault(STEP, BEAT, f"{BEAT}        values[values > 0]\n"),
    "one fused update on other strides": Fault(
        STEP,
        "        # note: the host reads the flag only where the device cannot\n",
        "        for one in self._parameters:\n"
        "            one.grad = None if one.grad is None else one.grad.contiguous()\n",
    ),
    "a side stream of captured steps that nothing waits for": Fault(
        CAPTURED, "        main.wait_stream(self._stream)\n", "        pass\n", GRAPHS
    ),
    "a graph's inputs not copied": Fault(CAPTURED, "buffer.copy_(tensor)", "pass", GRAPHS),
    "one graph for all kinds of steps": Fault(
        CAPTURED, "key = kind, *map(_layout, tensors)", "key = None, *map(_layout, tensors)", GRAPHS
    ),
    "a bucket sent before its copy": Fault(
        BUCKETS,
        "            bucket.fill()\n            self._works.append(bucket.all_reduce())\n",
        "            self._works.append(bucket.all_reduce())\n            bucket.fill()\n",
        RANKS,
    ),
    # note: the all-reduce of the flags joins them later
    "buckets that nothing waits for before they are read": Fault(BUCKETS, "work.wait()", "pass", RANKS),
    "a learning rate captured as a number": Fault(
        STEP, "set_lr(self.optimizer, self._numbers[0])", "set_lr(self.optimizer, lr)", GRAPHS
    ),
    "a wait in a captured step": Fault(
        STEP,
        "        flags = self._flags(values)\n",
        "        flags = self._flags(values)\n        bool(flags[0])\n",
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
        "            yield inputs, labels, indices\n            self.waited",
        "            torch.zeros(1, device='sim:1')\n"
        "            yield inputs, labels, indices\n            self.waited",
    ),
}
