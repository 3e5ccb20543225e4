"""Which number format a run has."""

import pytest
import torch

from launcher.config.compose import compose
from launcher.training.precision import choose_precision


@pytest.mark.parametrize(("native", "dtype"), [(True, torch.bfloat16), (False, torch.float16)])
def test_auto_does_not_select_emulated_bfloat16(
    monkeypatch: pytest.MonkeyPatch, native: bool, dtype: torch.dtype
) -> None:
    # note: with emulation torch returns True on a T4 or V100
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: native or including_emulation)
    assert choose_precision(compose([]).config, torch.device("cuda")).dtype == dtype
