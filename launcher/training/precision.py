"""Mixed precision: the number format of a run, its autocast context, and its loss scaler."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from launcher.compute.accelerator import has_streams, interface
from launcher.config.schema import RunConfig


@dataclass(frozen=True)
class Precision:
    """The compute dtype on a type of device: float32 has no autocast, float16 a loss scaler (Micikevicius 2018)."""

    device_type: str
    dtype: torch.dtype

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context of a forward pass."""
        if self.dtype == torch.float32:
            return nullcontext()
        return torch.autocast(self.device_type, dtype=self.dtype)

    def scaler(self) -> LossScaler:
        """Return a loss scaler, which is only enabled for float16."""
        return LossScaler(self.device_type, enabled=self.dtype == torch.float16)


class LossScaler(torch.amp.GradScaler):
    """PyTorch's loss scaler, without host-device synchronization: dropped steps are counted on the device."""

    def start_step(self) -> None:
        """Discard the state of an unfinished step, such as that of a failed capture."""
        if self.is_enabled():
            self._per_optimizer_states.clear()

    def counts(self) -> Tensor:
        """Return whether an overflow counts as a non-finite step, since the scale cannot shrink further; bool []."""
        scale, _ = self._check_scale_growth_tracker("counts")
        return scale <= 1

    def conclude(self, optimizer: torch.optim.Optimizer, dropped: Tensor, dropping: Tensor) -> None:
        """End a step: lower the scale if the step was dropped, and keep it while the steps after one are dropped.

        dropped, dropping: float32 [], 0 or 1.
        """
        state = self._check_scale_growth_tracker("conclude")
        before = [tensor.clone() for tensor in state]
        for found_inf in self._found_inf_per_device(optimizer).values():
            found_inf.copy_(dropped)
        self.update()
        for now, earlier in zip(state, before, strict=True):
            torch.where(dropping > 0, earlier, now, out=now)


def choose_precision(config: RunConfig, device: torch.device) -> Precision:
    """Return the config's precision: `auto` is bfloat16 on GPUs that support it, float16 on older ones, else float32.

    If bfloat16 is faster on this CPU, the start of the run has already replaced `auto`.
    """
    formats = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
    if config.precision != "auto":
        return Precision(device.type, formats[config.precision])
    if not has_streams(device):
        return Precision(device.type, torch.float32)
    # note: older GPUs emulate bfloat16, many times slower than float16
    has_bf16 = interface(device).is_bf16_supported(including_emulation=False)
    return Precision(device.type, torch.bfloat16 if has_bf16 else torch.float16)
