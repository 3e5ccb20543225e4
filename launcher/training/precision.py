"""Mixed precision: which number format a run computes in, and the context that does it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from launcher.config.schema import RunConfig
from launcher.errors import Problem, UserError

# At this size the last stage sees single pixels, of which PyTorch's bf16 convolution on a CPU takes wrong gradients:
# those of weights that meet padding alone are not zero but what was in the memory.
_WRONG_IN_BF16_ON_CPU = 16


@dataclass(frozen=True)
class Precision:
    """The compute dtype on a device type; float32 means no autocast, float16 a loss scaler (Micikevicius 2018)."""

    device_type: str
    dtype: torch.dtype

    def autocast(self) -> AbstractContextManager[object]:
        """The forward pass's context."""
        if self.dtype == torch.float32:
            return nullcontext()
        return torch.autocast(self.device_type, dtype=self.dtype)

    def scaler(self) -> LossScaler:
        """A loss scaler, enabled for float16 alone."""
        return LossScaler(self.device_type, enabled=self.dtype == torch.float16)


class LossScaler(torch.amp.GradScaler):
    """PyTorch's, which reads on the device whether a step was dropped, and so waits for nothing."""

    def counts(self) -> Tensor:
        """Whether gradients that overflow are more than its own business, as no smaller scale mends them; bool []."""
        scale, _ = self._check_scale_growth_tracker("counts")
        return scale <= 1

    def conclude(self, optimizer: torch.optim.Optimizer, dropped: Tensor, held: Tensor) -> None:
        """End a step: lower the scale where it was dropped, and keep it where steps are held.

        dropped, held: float32 [], 0 or 1.
        """
        state = self._check_scale_growth_tracker("conclude")
        before = [tensor.clone() for tensor in state]
        for found_inf in self._found_inf_per_device(optimizer).values():
            found_inf.copy_(dropped)
        self.update()
        for now, earlier in zip(state, before, strict=True):
            torch.where(held > 0, earlier, now, out=now)


def choose_precision(config: RunConfig, device: torch.device, smallest_side: int) -> Precision:
    """The config's precision; `auto` is bfloat16 on GPUs that have it, float16 on older ones, float32 on a CPU.

    Where a CPU gains by bfloat16, the start of a run has written that in the place of `auto`.

    Raises:
        UserError: images become so small that the CPU's bfloat16 would compute wrong gradients.
    """
    if config.precision == "bf16" and device.type == "cpu" and smallest_side <= _WRONG_IN_BF16_ON_CPU:
        message = f"bfloat16 computes wrong gradients on a CPU for images of {smallest_side} px; set precision=fp32"
        raise UserError(Problem(message, "precision", "bf16"))
    named = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
    if config.precision != "auto":
        return Precision(device.type, named[config.precision])
    if device.type != "cuda":
        return Precision(device.type, torch.float32)
    # note: older GPUs compute bfloat16 too, in emulation, many times slower than float16
    has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    return Precision(device.type, torch.bfloat16 if has_bf16 else torch.float16)
