"""What the simulated device must show of plain torch: each hazard with its fault, and none without it."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.simulated_gpu.torch_sim import (
    MEMORY,
    Capture,
    Event,
    Graph,
    Memory,
    Stream,
    StreamContext,
    Waited,
    current_stream,
    native,
    refused_waits,
    set_stream,
)


def is_refused(function: Callable[[], object], text: str) -> bool:
    try:
        function()
    except (RuntimeError, Waited, torch.OutOfMemoryError) as error:
        return text in str(error)
    return False


def trained(device: str) -> list[Tensor]:
    """Train a small network in channels-last order for three steps, and return its state on the host."""
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)
    network = nn.Sequential(*layers).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(network.parameters(), 0.1, momentum=0.9)
    for number in range(3):
        images = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(number))
        images = images.contiguous(memory_format=torch.channels_last).to(device)
        loss = nn.functional.cross_entropy(network(images), torch.tensor([0, 1, 2, 0]).to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [one.cpu() for one in network.state_dict().values()]


def trains_to_the_bits_of_the_cpu() -> bool:
    orders = ("eager", "lazy", "others_first", "random")
    expected, ours = trained("cpu"), []
    for order in orders:
        native.order(order, 1)
        ours.append(trained("sim"))
    return all(torch.equal(*pair) for state in ours for pair in zip(state, expected, strict=True))


def on_side_stream(*, waits: bool) -> bool:
    """Return whether the main stream sees a sum of a side stream."""
    native.order("lazy", 0)
    side = Stream("sim:0")
    x = torch.ones(1000, device="sim")
    side.wait_stream(current_stream())
    with StreamContext(side):
        y = x + 1
    if waits:
        current_stream().wait_stream(side)
    return torch.equal(y.cpu(), torch.full((1000,), 2.0))


def freed_memory(*, recorded: bool) -> bool:
    """Return whether a product keeps its value though its input was freed and its memory reused on a side stream."""
    native.order("others_first", 0)
    side = Stream("sim:0")
    with StreamContext(side):
        x = torch.ones(1000, device="sim")
    current_stream().wait_stream(side)
    y = x * 3
    if recorded:
        x.record_stream(current_stream())
    del x
    with StreamContext(side):
        torch.full((1000,), 7.0, device="sim")
    return torch.equal(y.cpu(), torch.full((1000,), 3.0))


def pinned_memory(*, waits: bool) -> bool:
    """Return whether a copy has the values of pinned memory from before it was overwritten."""
    native.order("lazy", 0)
    buffer, x = torch.ones(1000).pin_memory(), torch.empty(1000, device="sim")
    x.copy_(buffer, non_blocking=True)
    if waits:
        current_stream().synchronize()
    buffer.fill_(5)
    return float(x.cpu()[0]) == 1


def freed_pinned_memory_is_reused_after_its_copy() -> bool:
    native.order("lazy", 0)
    copies = [torch.full((1000,), float(n)).pin_memory().to("sim", non_blocking=True) for n in range(8)]
    return [float(one.cpu()[0]) for one in copies] == list(range(8))


def a_copy_to_the_host_is_there_after_its_event() -> bool:
    native.order("lazy", 0)
    x = torch.full((10,), 2.0, device="sim")
    host = torch.empty(10, pin_memory=True).copy_(x, non_blocking=True)
    event = Event(blocking=True)
    event.record(current_stream())
    before = bool(host.isnan().all()) and not event.query()
    event.synchronize()
    return before and torch.equal(host, torch.full((10,), 2.0))


def captured(function: Callable[[], Any]) -> tuple[Graph, Any]:
    graph, stream = Graph(), Stream()
    stream.wait_stream(current_stream())
    with Capture(graph, None, stream):
        outputs = function()
    return graph, outputs


def captures_refuse_waits_and_other_streams() -> bool:
    x, side = torch.ones(3, device="sim"), Stream("sim:0")

    def elsewhere() -> Tensor:
        with StreamContext(side):
            return x + 1

    def unjoined() -> None:
        side.wait_stream(current_stream())
        elsewhere()

    before = current_stream()
    unjoined_is_refused = is_refused(lambda: captured(unjoined), "unjoined work")
    set_stream(before)  # note: a failed end of a capture leaves its stream
    return (
        unjoined_is_refused
        and is_refused(lambda: captured(lambda: x.sum().item()), "stream is capturing")
        and is_refused(lambda: captured(lambda: torch.ones(3).to("sim")), "stream is capturing")
        and is_refused(lambda: captured(elsewhere), "not captured")
    )


def branch_of_a_graph(*, waits: bool) -> bool:
    """Return whether the main stream of a graph sees what a branch has written."""
    native.order("lazy", 0)
    side, x, y = Stream("sim:0"), torch.ones(1000, device="sim"), torch.zeros(1000, device="sim")

    def function() -> Tensor:
        side.wait_stream(current_stream())
        with StreamContext(side):
            y.add_(x)
        if waits:
            current_stream().wait_stream(side)
        double = y * 2
        current_stream().wait_stream(side)
        return double

    graph, double = captured(function)
    graph.replay()
    return torch.equal(double.cpu(), torch.full((1000,), 2.0))


def a_graph_reads_its_inputs_and_draws_anew_at_each_replay() -> bool:
    inputs = [torch.ones(4, device="sim")]
    torch.manual_seed(5)
    expected = [torch.rand(4, device="sim").cpu() for _ in range(2)]
    torch.manual_seed(5)
    graph, (double, drawn) = captured(lambda: (inputs[0] * 2, torch.rand(4, device="sim")))
    results = [bool(double.cpu().isnan().all())]  # note: a capture runs nothing
    draws = []
    for number in (1, 2, 3):
        if number == 3:
            torch.manual_seed(5)
        inputs[0].fill_(number)
        graph.replay()
        results.append(float(double.cpu()[0]) == 2 * number)
        draws.append(drawn.cpu())
    results += [torch.equal(*pair) for pair in zip(draws, [*expected, expected[0]], strict=True)]
    inputs.clear()
    other = torch.full((4,), 50.0, device="sim")
    graph.replay()
    return all(results) and not torch.equal(*expected) and float(double.cpu()[0]) == 2 * float(other.cpu()[0])


def many_tensors_are_one_launch_if_they_are_alike() -> bool:
    tensors = [torch.ones(3, device="sim") for _ in range(5)]
    before = native.launches()
    torch._foreach_add_(tensors, 1)
    alike = native.launches() - before
    torch._foreach_add_(tensors, [torch.ones(3, device="sim", dtype=torch.float64) for _ in range(5)])
    return alike == 1 and native.launches() - before == 1 + 5 + 5


def fused_optimizers_refuse_other_strides() -> bool:
    weights = [torch.zeros(2, 3, 4, 4, device="sim").contiguous(memory_format=torch.channels_last)]
    others = [torch.ones(2, 3, 4, 4, device="sim")]
    how = {"weight_decay": 0.0, "momentum": 0.9, "lr": 0.1, "dampening": 0.0, "nesterov": False, "maximize": False}
    buffers = [torch.zeros_like(weights[0])]
    return is_refused(lambda: torch._fused_sgd_(weights, others, buffers, **how, is_first_step=False), "layout")


def memory_is_limited_and_new_memory_is_nan() -> bool:
    new = bool(torch.empty(5, device="sim").cpu().isnan().all())
    Memory.set_limit(native.memory()[2] + 2**20)
    refused = is_refused(lambda: torch.empty(2**22, device="sim"), "out of memory")
    Memory.set_limit(MEMORY)
    return new and refused


def tensors_and_generators_of_the_host_are_refused() -> bool:
    x, generator = torch.ones(10, device="sim"), torch.Generator()
    refused = is_refused(lambda: x + torch.ones(10), "same device") and is_refused(
        lambda: x.uniform_(generator=generator), "device type for generator"
    )
    # note: torch copies indices
    return refused and len(x[torch.tensor([0, 1])]) == 2


def waits_are_refused() -> bool:
    x = torch.ones(10, device="sim")
    with refused_waits():
        return is_refused(lambda: x.sum().item(), "_local_scalar_dense") and is_refused(lambda: x[x > 0], "nonzero")


HAZARDS: dict[str, Callable[[], bool]] = {
    "it trains to the bits of the CPU": trains_to_the_bits_of_the_cpu,
    "a missing wait_stream": lambda: not on_side_stream(waits=False) and on_side_stream(waits=True),
    "a missing record_stream": lambda: not freed_memory(recorded=False) and freed_memory(recorded=True),
    "pinned memory overwritten early": lambda: not pinned_memory(waits=False) and pinned_memory(waits=True),
    "pinned memory freed early": freed_pinned_memory_is_reused_after_its_copy,
    "a copy read before its event": a_copy_to_the_host_is_there_after_its_event,
    "captures": captures_refuse_waits_and_other_streams,
    "a branch of a graph joined late": lambda: not branch_of_a_graph(waits=False) and branch_of_a_graph(waits=True),
    "replays": a_graph_reads_its_inputs_and_draws_anew_at_each_replay,
    "launches": many_tensors_are_one_launch_if_they_are_alike,
    "fused optimizers": fused_optimizers_refuse_other_strides,
    "memory": memory_is_limited_and_new_memory_is_nan,
    "other devices": tensors_and_generators_of_the_host_are_refused,
    "waits": waits_are_refused,
}


def shown() -> dict[str, bool]:
    """Return of each hazard whether the device shows it."""
    torch.set_num_threads(1)
    results = {}
    for name, hazard in HAZARDS.items():
        native.order("eager", 0)
        results[name] = hazard()
    return results
