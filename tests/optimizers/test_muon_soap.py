"""Muon compared with its formula, timm and PyTorch; SOAP with its formula and with Adam in a given basis."""

from typing import Any

import pytest
import timm.optim
import torch
from timm import create_model
from torch import Tensor, nn
from torchvision.models import get_model

from launcher.optimizers import muon
from launcher.optimizers.base import build_optimizer, set_lr
from launcher.optimizers.muon import Muon, newton_schulz
from tests.formulas import PEAK, assert_follows, packaged, set_gradients, small_model


def polynomial(matrix: Tensor, steps: int) -> Tensor:
    """Return p(p(...p(s))) for each singular value s of a matrix over its Frobenius norm (Jordan et al. 2024)."""
    left, values, right = torch.linalg.svd(matrix / matrix.norm(), full_matrices=False)
    for _ in range(steps):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    return left * values @ right


@pytest.mark.parametrize("shape", [(3, 4, 9), (2, 9, 4), (1, 6, 6)])
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-5), (torch.bfloat16, 0.04)])
def test_newton_schulz_maps_singular_values_by_its_polynomial(
    dtype: torch.dtype, error: float, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(muon, "precision", lambda device: dtype)
    matrices = torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = torch.stack([polynomial(matrix, 5) for matrix in matrices])
    torch.testing.assert_close(newton_schulz(matrices, 5).double(), expected, rtol=error, atol=error)


class MuonFormula:
    def __init__(self, nesterov: bool, iterations: int):
        self.nesterov, self.iterations = nesterov, iterations

    def __call__(self, weight: Tensor, gradient: Tensor, lr: float, step: int, state: dict[str, Any]) -> Tensor:
        decay = 0.3 if weight.ndim > 1 else 0.0
        if weight.ndim < 2 or weight.shape == (5, 6):
            state["m"] = 0.9 * state.get("m", 0.0) + 0.1 * gradient
            state["v"] = 0.95 * state.get("v", 0.0) + 0.05 * gradient**2
            update = state["m"] / (1 - 0.9**step) / ((state["v"] / (1 - 0.95**step)).sqrt() + 1e-8)
            return weight - lr * (update + decay * weight)
        state["b"] = 0.8 * state.get("b", 0.0) + 0.2 * gradient
        ahead = 0.2 * gradient + 0.8 * state["b"] if self.nesterov else state["b"]
        flat = ahead.flatten(1)
        update = 0.2 * max(flat.shape) ** 0.5 * polynomial(flat, self.iterations)
        return weight - lr * (update.view_as(weight) + decay * weight)


@pytest.mark.parametrize(("nesterov", "iterations"), [(False, 5), (True, 5), (True, 3)])
def test_muon_is_orthogonal_for_convolutions_and_adamw_for_vectors_and_the_head(
    nesterov: bool, iterations: int
) -> None:
    config = packaged("muon", momentum=0.8, nesterov=nesterov, iterations=iterations, weight_decay=0.3)
    assert_follows(config, MuonFormula(nesterov, iterations), tolerance=1e-4)


def twins(shape: tuple[int, int]) -> tuple[nn.Module, nn.Module]:
    def network() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(*shape, bias=False), nn.Linear(shape[1], 1, bias=False))

    return network(), network()


@pytest.mark.parametrize("shape", [(24, 16), (16, 24)])
@pytest.mark.parametrize("library", ["timm", "torch"])
def test_muon_computes_the_same_as_timm_and_pytorch(
    library: str, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(muon, "precision", lambda device: torch.bfloat16)
    if library == "torch" and not hasattr(torch.optim, "Muon"):
        pytest.skip("this PyTorch has no Muon")
    model, reference = twins(shape)
    theirs: torch.optim.Optimizer
    if library == "torch":
        theirs = torch.optim.Muon([reference[0].weight], PEAK, weight_decay=0.3, adjust_lr_fn="match_rms_adamw")
    else:
        settings = {"adjust_lr_fn": "match_rms_adamw", "ns_coefficients": "original"}
        theirs = timm.optim.Muon([reference[0].weight], PEAK, weight_decay=0.3, nesterov=True, **settings)
    ours = build_optimizer(packaged("muon", weight_decay=0.3), model, PEAK)
    for step in range(3):
        for network, one in ((model, ours), (reference, theirs)):
            set_gradients(network, step)
            set_lr(one, PEAK / (step + 1))
            one.step()
    torch.testing.assert_close(model[0].weight, reference[0].weight, rtol=1e-3, atol=1e-4)


def test_muon_excludes_heads_positions_and_depthwise_convolutions() -> None:
    resnet = get_model("resnet18")
    assert set(Muon.separate_parameters(resnet)) == {n for n, p in resnet.named_parameters() if p.ndim == 4}
    vit = create_model("test_vit", num_classes=5)
    kernels = {name for name, p in vit.named_parameters() if p.ndim in (2, 4) and "head" not in name}
    assert set(Muon.separate_parameters(vit)) == kernels
    convnext = create_model("test_convnext", num_classes=5)
    assert not [name for name in Muon.separate_parameters(convnext) if "conv_dw" in name]


class SOAPFormula:
    """Computes algorithm 3 of Vyas et al. 2024 for each dimension of a tensor, with the identity as initial basis."""

    def __init__(self, interval: int):
        self.interval = interval

    def __call__(self, weight: Tensor, gradient: Tensor, lr: float, step: int, state: dict[str, Any]) -> Tensor:
        dims = [dim for dim in range(weight.ndim) if weight.ndim > 1 and weight.shape[dim] > 1]
        bases = state.setdefault("bases", {dim: torch.eye(weight.shape[dim]).double() for dim in dims})
        factors = state.setdefault("factors", dict.fromkeys(dims, 0))

        def rotated(tensor: Tensor, back: bool = False) -> Tensor:
            for dim, basis in bases.items():
                tensor = torch.tensordot(tensor, basis.T if back else basis, dims=([dim], [0])).movedim(-1, dim)
            return tensor

        state["m"] = 0.9 * state.get("m", 0.0) + 0.1 * gradient
        state["v"] = 0.9 * state.get("v", 0.0) + 0.1 * rotated(gradient) ** 2
        update = rotated(state["m"]) / (1 - 0.9**step) / ((state["v"] / (1 - 0.9**step)).sqrt() + 1e-3)
        weight = weight - lr * (rotated(update, back=True) + (0.3 if weight.ndim > 1 else 0.0) * weight)
        for dim in dims:
            rows = gradient.movedim(dim, 0).flatten(1)
            factors[dim] = 0.9 * factors[dim] + 0.1 * rows @ rows.T
            if (step - 1) % self.interval == 0:
                order = (bases[dim].T @ factors[dim] @ bases[dim]).diagonal().argsort(descending=True)
                bases[dim] = torch.linalg.qr(factors[dim] @ bases[dim][:, order]).Q
                state["v"] = state["v"].index_select(dim, order)
        return weight


@pytest.mark.parametrize("interval", [1, 2, 100])
def test_soap_follows_its_formula(interval: int) -> None:
    config = packaged("soap", beta1=0.9, beta2=0.9, epsilon=1e-3, weight_decay=0.3, interval=interval)
    assert_follows(config, SOAPFormula(interval), tolerance=5e-3)


def test_soap_finds_the_eigenbasis_of_its_factors() -> None:
    model = nn.Sequential(nn.Linear(6, 4, bias=False))
    built = build_optimizer(packaged("soap", interval=1), model, PEAK)
    torch.manual_seed(1)
    left, right = (torch.linalg.qr(torch.randn(n, n)).Q for n in (4, 6))
    values = torch.zeros(4, 6)
    for number in range(200):
        values.diagonal().copy_(torch.tensor([8.0, 4.0, 2.0, 1.0]))
        model[0].weight.grad = left @ values @ right.T
        built.step_number = number
        built.step()
    state = built.state[model[0].weight]
    torch.testing.assert_close((state["basis_1"].T @ left).abs(), torch.eye(4), rtol=0, atol=1e-3)
    torch.testing.assert_close((state["basis_2"].T @ right).abs()[:4, :4], torch.eye(4), rtol=0, atol=1e-3)


def test_soap_has_no_basis_for_long_dimensions() -> None:
    model = nn.Sequential(nn.Linear(6, 4, bias=False))
    built = build_optimizer(packaged("soap", max_side=5), model, PEAK)
    set_gradients(model, 0)
    built.step()
    assert set(built.state[model[0].weight]) == {"exp_avg", "exp_avg_sq", "basis_1", "factor_1"}


def test_soap_without_bases_is_adamw_with_decay_before_the_step() -> None:
    ours, adamw = (nn.Sequential(nn.Linear(6, 4, bias=False)) for _ in range(2))
    adamw.load_state_dict(ours.state_dict())
    before = ours[0].weight.detach().clone()
    built = build_optimizer(packaged("soap", max_side=1, weight_decay=0.3), ours, PEAK)
    values = {"betas": (built.beta1, built.beta2), "eps": built.epsilon}
    theirs = torch.optim.AdamW(adamw.parameters(), PEAK, weight_decay=0.3, **values)
    for network in (ours, adamw):
        set_gradients(network, 0)
    built.step()
    theirs.step()
    torch.testing.assert_close(ours[0].weight, adamw[0].weight)
    step = ours[0].weight - before * (1 - PEAK * 0.3)
    assert not torch.allclose(ours[0].weight, (before + step) * (1 - PEAK * 0.3), atol=1e-3), "as published"


def test_a_tensors_update_does_not_depend_on_others_of_its_shape() -> None:
    for name in ("muon", "soap"):
        both = small_model()
        both.append(nn.Conv2d(4, 6, 2))
        alone = small_model()
        for network in (both, alone):
            built = build_optimizer(packaged(name), network, PEAK)
            for step in range(3):
                set_gradients(network, step)
                built.step_number = step
                built.step()
        torch.testing.assert_close(both[2].weight, alone[2].weight, rtol=1e-3, atol=1e-4)
