import os
import pickle
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torchvision.models import resnet18

from launcher.config.compose import compose
from launcher.errors import UserError
from launcher.rank.group import Ranks, _store, broadcast_first, from_first, gather, join_ranks
from launcher.rank.signs import DEVICE, INTERFACE, STORE
from launcher.training.buckets import BUCKET_BYTES, GradientBuckets, in_buckets
from tests.two_ranks import on_ranks, on_two_ranks


def check_joining(rank: int, store: str) -> None:
    """Join two ranks by a file, and check the time limit, the interface, and that no value is unpickled."""
    dist.destroy_process_group()
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"}
    os.environ |= {DEVICE: "cpu", INTERFACE: "lo", STORE: store}
    # note: of a cluster, for runs on several nodes
    os.environ |= {"GLOO_SOCKET_IFNAME": "ib0", "NCCL_SOCKET_IFNAME": "ib0"}
    with join_ranks(compose(["launch.hang_timeout=3600"]).config):
        backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
        assert backend.options._timeout > timedelta(days=300)
        assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"
        assert os.environ["NCCL_SOCKET_IFNAME"] == "=lo"
        assert os.environ["NCCL_GRAPH_REGISTER"] == "0"
        value = {"rank": rank, "of": ("a" * 10 ** (4 * rank), None, 0.5), "tensor": torch.arange(rank + 2)}
        first, second = gather(value)
        assert (first["of"], second["of"]) == (("a", None, 0.5), ("a" * 10**4, None, 0.5))
        assert from_first(value)["rank"] == 0
        assert torch.equal(second["tensor"], torch.arange(3))
        with pytest.raises(pickle.UnpicklingError):
            gather(Path())
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def test_ranks_of_one_node_meet_in_a_file_and_unpickle_nothing(tmp_path: Path) -> None:
    on_two_ranks(check_joining, str(tmp_path / "store"))


def test_an_interface_of_another_machine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {STORE: "", INTERFACE: "lo", "GLOO_SOCKET_IFNAME": "lo,ib0"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="GLOO_SOCKET_IFNAME=ib0 is no network interface of this machine"):
        _store()


def check_gradients(rank: int, count: int) -> None:
    """Compare the means of gradients in both formats with the exact ones."""
    averages = {}
    for dtype in ("float32", "bfloat16"):
        torch.manual_seed(0)
        model = torch.nn.Linear(300, 20)
        buckets = GradientBuckets(model, Ranks(rank, count, rank, count, torch.device("cpu")), dtype)
        images = torch.randn(8, 300, generator=torch.Generator().manual_seed(rank))
        with buckets.averaging():
            model(images).square().sum().backward()
        averages[dtype] = model.weight.grad.double()
        own = torch.autograd.grad(model(images).square().sum(), model.weight)[0].double()
    magnitudes, exact = own.abs(), own.clone()
    dist.all_reduce(magnitudes)
    dist.all_reduce(exact)
    error = {
        dtype: ((average - exact / count).abs() / (magnitudes / count)).max() for dtype, average in averages.items()
    }
    assert error["float32"] < 2**-20
    assert 2**-12 < error["bfloat16"] <= (count + 1) / 256
    first = averages["bfloat16"].clone()
    dist.broadcast(first, src=0)
    assert torch.equal(first, averages["bfloat16"])


@pytest.mark.parametrize("count", [2, 3])
def test_bfloat16_gradients_stay_within_the_documented_error(count: int) -> None:
    on_ranks(count, check_gradients, count)


def test_buffers_are_sent_in_one_broadcast_per_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = resnet18(), resnet18()
    first(torch.randn(4, 3, 32, 32))
    sent = {
        dtype: torch.cat([b.flatten() for b in first.buffers() if b.dtype == dtype])
        for dtype in (torch.float32, torch.int64)
    }
    messages: list[torch.dtype] = []

    def receive(buffer: Tensor, src: int) -> None:
        messages.append(buffer.dtype)
        buffer.copy_(sent[buffer.dtype])

    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "broadcast", receive)
    broadcast_first(second.buffers())
    assert sorted(map(str, messages)) == ["torch.float32", "torch.int64"]
    assert all(map(torch.equal, first.buffers(), second.buffers()))


def test_buckets_have_the_order_and_sizes_of_ddp() -> None:
    parameters = list(resnet18().parameters())
    from_last = parameters[::-1]
    expected, _ = dist._compute_bucket_assignment_by_size(from_last, [*BUCKET_BYTES])
    groups = [[from_last[number] for number in group] for group in expected]
    assert [list(map(id, group)) for group in in_buckets(parameters)] == [list(map(id, group)) for group in groups]
    assert len(groups) > 2
