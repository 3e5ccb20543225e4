"""Shampoo compared with the formulas of the submission to AlgoPerf, computed with numpy in float64."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from launcher.optimizers import shampoo
from launcher.optimizers.base import build_optimizer
from launcher.optimizers.shampoo import inverse_roots, layout, merged
from tests.formulas import PEAK, assert_follows, packaged, set_gradients, small_model
from tests.two_ranks import on_ranks


class Formula:
    """One tensor's steps: its blocks are the products of at most `longest` rows of each joined dimension."""

    def __init__(self, interval: int, longest: int):
        self.interval, self.longest = interval, longest

    def __call__(self, weight: Tensor, gradient: Tensor, lr: float, step: int, state: dict[str, Any]) -> Tensor:
        values, slopes = weight.numpy(), gradient.numpy()
        m = state["m"] = 0.9 * state.get("m", 0.0) + 0.1 * slopes
        v = state["v"] = 0.95 * state.get("v", 0.0) + 0.05 * slopes**2
        ahead = (0.9 * m + 0.1 * slopes) / (1 - 0.9**step)
        adam = ahead / (np.sqrt(v / (1 - 0.95**step)) + 1e-2)
        shape = merged(values.shape, self.longest)
        slopes, ahead, direction = (array.reshape(shape).copy() for array in (slopes, ahead, adam))
        rows = [np.array_split(np.arange(n), range(self.longest, n, self.longest)) for n in shape]
        for part in itertools.product(*rows):
            own: dict[Any, Any] = state.setdefault(str([min(row) for row in part]), {})
            index = np.ix_(*part)
            for dim in range(len(shape)):
                flat = np.moveaxis(slopes[index], dim, 0).reshape(len(part[dim]), -1)
                own[dim] = 0.95 * own.get(dim, 0.0) + 0.05 * flat @ flat.T
                if step % self.interval == 0:
                    lengths, basis = np.linalg.eigh(own[dim] / (1 - 0.95**step))
                    lengths += 1e-2 - min(lengths.min(), 0.0)
                    own["root", dim] = basis @ np.diag(lengths ** (-1 / (2 * len(shape)))) @ basis.T
            if step >= self.interval:
                block = ahead[index]
                for dim in range(len(shape)):
                    block = np.moveaxis(np.tensordot(own["root", dim], block, (1, dim)), 0, dim)
                direction[index] = block * np.linalg.norm(direction[index]) / np.linalg.norm(block)
        return torch.from_numpy(values - lr * (direction.reshape(values.shape) + 0.3 * values))


@pytest.mark.parametrize(("interval", "longest"), [(1, 20), (2, 4), (3, 20), (3, 1024), (100, 4)])
def test_shampoo_follows_the_formula_of_the_submission(interval: int, longest: int) -> None:
    values = {"beta1": 0.9, "beta2": 0.95, "epsilon": 1e-2, "weight_decay": 0.3}
    config = packaged("shampoo", **values, interval=interval, max_side=longest)
    assert_follows(config, Formula(interval, longest), tolerance=1e-4, rates=[PEAK / step for step in range(1, 8)])


@pytest.mark.parametrize(
    ("shape", "parts", "joined", "sizes"),
    [
        ((384, 3, 16, 16), 1, [384, 768], [(384, 768)]),
        ((1536, 384), 1, [1536, 384], [(1024, 384), (512, 384)]),
        ((1152, 384), 3, [1152, 384], [(384, 384)] * 3),
        ((1152,), 3, [1152], [(384,)] * 3),
        ((64, 3, 7, 7), 1, [192, 49], [(192, 49)]),
        ((512, 512, 3, 3), 1, [512, 512, 9], [(512, 512, 9)]),
        ((2048, 1, 3, 3), 1, [2048, 9], [(1024, 9), (1024, 9)]),
        ((1, 1, 384), 1, [384], [(384,)]),
        ((), 1, [1], [(1,)]),
    ],
)
def test_tensors_are_joined_and_split_as_in_the_submission(
    shape: tuple[int, ...], parts: int, joined: list[int], sizes: list[tuple[int, ...]]
) -> None:
    """Expected: what the submission's functions return; a layer with three projections is three tensors there."""
    form = layout(shape, 1024, parts)
    assert form.shape == joined
    stack = form.stack([torch.zeros(shape)] * 2)
    for number, part in enumerate(form.blocks):
        stack[part] += number + 1
    assert [tuple(stack[part].shape) for part in form.blocks] == [(2, *size) for size in sizes]
    assert all((stack[part] == number).all() for number, part in enumerate(form.blocks, 1))


def test_queries_keys_and_values_are_separate_tensors() -> None:
    """Steps of a layer with three projections are those of three layers."""
    torch.manual_seed(0)
    fused, *separate = (nn.ModuleDict({name: nn.Linear(4, 12 if name == "qkv" else 4)}) for name in ("qkv", *"abc"))
    whole = dict(fused["qkv"].named_parameters())
    for number, (name, model) in enumerate(zip("abc", separate, strict=True)):
        for kind, parameter in model[name].named_parameters():
            parameter.data = whole[kind].data.chunk(3)[number].clone()
    config = packaged("shampoo", interval=1, max_side=6, epsilon=1e-3)
    built = [build_optimizer(config, model, PEAK) for model in (fused, *separate)]
    for step in range(3):
        set_gradients(fused, step)
        for number, model in enumerate(separate):
            for name, parameter in model.named_parameters():
                gradient = whole[name.split(".")[1]].grad
                assert gradient is not None
                parameter.grad = gradient.chunk(3)[number].clone()
        for optimizer in built:
            optimizer.step()
    for kind, parameter in whole.items():
        expected = torch.cat(
            [dict(model[name].named_parameters())[kind] for name, model in zip("abc", separate, strict=True)]
        )
        torch.testing.assert_close(parameter.detach(), expected.detach(), rtol=1e-4, atol=1e-5)


def matrices() -> Tensor:
    rows = torch.randn(4, 6, 6, generator=torch.Generator().manual_seed(0))
    return rows @ rows.mT


def share(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    torch.save([inverse_roots(matrices()[:n], -0.5 / torch.arange(1, n + 1), 1e-3) for n in (4, 1)], folder / str(rank))


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_share_the_roots_and_all_get_the_same_bits(ranks: int, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    share(9, tmp_path)
    on_ranks(ranks, share, tmp_path)
    alone = torch.load(tmp_path / "9")
    assert (alone[0] @ alone[0] @ (matrices() + 1e-3 * torch.eye(6)))[0].allclose(torch.eye(6), atol=1e-2)
    for rank in range(ranks):
        assert all(map(torch.equal, torch.load(tmp_path / str(rank)), alone))


def test_matrices_that_do_not_converge_are_decomposed_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    eigh = torch.linalg.eigh

    def in_float64(matrix: Tensor) -> Any:
        if matrix.dtype == torch.float32:
            raise torch.linalg.LinAlgError("failed to converge")
        return eigh(matrix)

    exponents = torch.full((4,), -0.25)
    expected = inverse_roots(matrices(), exponents, 1e-3)
    monkeypatch.setattr(shampoo.torch.linalg, "eigh", in_float64)
    torch.testing.assert_close(inverse_roots(matrices(), exponents, 1e-3), expected, rtol=1e-3, atol=1e-4)


def test_factors_and_roots_are_multiplied_without_tf32() -> None:
    """On a GPU; here the setting is read at each product of a float32 matrix with itself."""
    seen = []

    class Products(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.overloadpacket.__name__ in ("bmm", "_linalg_eigh"):
                seen.append((func.overloadpacket.__name__, torch.get_float32_matmul_precision()))
            return func(*args, **(kwargs or {}))

    model = nn.Sequential(nn.Linear(5, 6, bias=False))
    built = build_optimizer(packaged("shampoo", interval=1, max_side=6), model, PEAK)
    set_gradients(model, 0)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        with Products():
            built.step()
    finally:
        torch.set_float32_matmul_precision(before)
    exact = [("bmm", "highest")] * 2
    decomposed = [("_linalg_eigh", "highest"), ("bmm", "highest")] * 2
    assert seen == [*exact, *decomposed, *[("bmm", "high")] * 2]


def test_a_dropped_first_root_leaves_the_step_of_nadamw() -> None:
    models = {name: small_model() for name in ("shampoo", "nadamw")}
    values = {"beta1": 0.9, "beta2": 0.95, "epsilon": 1e-3, "weight_decay": 0.0, "no_decay": "none"}
    for name, model in models.items():
        built = build_optimizer(packaged(name, **values, **({"interval": 2} if name == "shampoo" else {})), model, PEAK)
        for step in range(3):
            set_gradients(model, step)
            built.step_number, built.found_inf = step, torch.tensor(float(step == 1))
            built.step()
    torch.testing.assert_close(*(list(model.parameters()) for model in models.values()))
