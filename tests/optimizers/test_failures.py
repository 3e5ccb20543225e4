"""Matrices that cannot be decomposed: the last ones stay, and are counted."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from launcher.optimizers import muon
from launcher.optimizers.base import build_optimizer
from launcher.optimizers.muon import newton_schulz
from launcher.optimizers.shampoo import inverse_roots
from tests.formulas import PEAK, packaged, set_gradients, small_model
from tests.runs import SMALL, Here, same

# A squared gradient above float32's range.
_TOO_LARGE = 1e25


def fail(matrix: Tensor) -> Any:
    raise torch.linalg.LinAlgError("failed to converge")


def test_roots_of_matrices_of_low_rank_are_exact() -> None:
    """LAPACK fails for a fifth of them in float32, or returns NaN; the entries are down to denormal numbers."""
    draws = torch.Generator().manual_seed(0)
    for number in range(60):
        rows = torch.randn(144, 8, generator=draws) * 10 ** (-3 - 0.25 * number)
        rows[torch.rand(144, generator=draws) < 0.5] = 0
        root = inverse_roots((rows @ rows.mT)[None], torch.tensor([-0.25]), 1e-8)[0]
        basis, lengths, _ = torch.linalg.svd(rows.double(), full_matrices=False)
        expected = 1e2 * torch.eye(144) + basis * ((lengths**2 + 1e-8) ** -0.25 - 1e2) @ basis.mT
        torch.testing.assert_close(root.double(), expected, rtol=0, atol=0.1)


@pytest.mark.parametrize("name", ["shampoo", "soap"])
def test_matrices_that_overflow_keep_the_last_ones(name: str) -> None:
    model = small_model()
    built = build_optimizer(packaged(name, interval=1), model, PEAK)
    set_gradients(model, 0)
    built.step()
    assert built.failures == 0
    before = copy.deepcopy(built.state_dict()["state"])
    for dropped in (1.0, 0.0):
        set_gradients(model, 1, _TOO_LARGE)
        built.found_inf = torch.tensor(dropped)
        built.step()
        assert (built.failures > 0) == (not dropped)
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    kept = [(state, key) for state, values in before.items() for key in values if key.startswith(("root", "basis"))]
    assert kept
    assert all(torch.equal(before[state][key], built.state_dict()["state"][state][key]) for state, key in kept)


def test_one_failure_does_not_keep_the_roots_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    eigh, matrices = torch.linalg.eigh, torch.stack([torch.eye(3), 2 * torch.eye(3), 4 * torch.eye(3)])

    def without_the_second(matrix: Tensor) -> Any:
        is_second = matrix.dtype == torch.float64 or matrix.flatten()[0] == 2
        return fail(matrix) if matrix.ndim == 3 or is_second else eigh(matrix)

    monkeypatch.setattr(torch.linalg, "eigh", without_the_second)
    roots = inverse_roots(matrices, torch.full((3,), -0.5), 0.0)
    assert roots.isfinite().all(dim=(1, 2)).tolist() == [True, False, True]
    torch.testing.assert_close(roots[2], torch.eye(3) / 2)


def test_a_run_warns_and_resumes_to_the_same_bits(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    eigh = torch.linalg.eigh
    monkeypatch.setattr(torch.linalg, "eigh", lambda matrix: (fail if matrix.shape[-1] == 64 else eigh)(matrix))
    words = [*SMALL, "epochs=1", "schedule.warmup=0ba", "optimizer=shampoo", "optimizer.interval=2"]
    shown = here(*words, "run_name=whole").stdout
    assert "warning: optimizer=shampoo could not compute " in shown
    here(*words, "run_name=cut", stop_after=3, code=143)
    here("resume", "runs/cut")
    cut, whole = (here.folder / "runs" / name for name in ("cut", "whole"))
    assert same(here.decided(cut), here.decided(whole))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_newton_schulz_is_finite_for_all_finite_matrices(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    monkeypatch.setattr(muon, "precision", lambda device: dtype)
    matrices = torch.randn(77, 16, 40, generator=torch.Generator().manual_seed(0))
    matrices[:, 5:9] = 0
    matrices *= torch.logspace(-39, 37, 77)[:, None, None]
    assert newton_schulz(matrices, 5).isfinite().all()
    assert newton_schulz(torch.zeros(1, 4, 4), 5).isfinite().all()
