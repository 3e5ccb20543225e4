"""Mixed precision: which number format a run computes in, and the context that does it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from launcher.config.schema import RunConfig
from launcher.errors import Problem, UserError

# At this side the last stage sees single pixels, of which PyTorch's bf16 convolution on a CPU takes wrong gradients:
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

    def scaler(self) -> torch.amp.GradScaler:
        """A loss scaler, enabled for float16 alone."""
        return torch.amp.GradScaler(self.device_type, enabled=self.dtype == torch.float16)


def choose_precision(config: RunConfig, device: torch.device, smallest_side: int) -> Precision:
    """The config's precision; `auto` is bfloat16 on GPUs that have it, float16 on older ones, float32 on a CPU.

    Where a CPU gains by bfloat16, the start of a run has written that in the place of `auto`.

    Raises:
        UserError: images become so small that the CPU's bfloat16 would compute wrong gradients.
    """
    if config.precision == "bf16" and device.type == "cpu" and smallest_side <= _WRONG_IN_BF16_ON_CPU:
        message = f"has wrong gradients on a CPU for images of {smallest_side} px; precision=fp32 has not"
        raise UserError(Problem(message, "precision", "bf16"))
    named = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
    if config.precision != "auto":
        return Precision(device.type, named[config.precision])
    if device.type != "cuda":
        return Precision(device.type, torch.float32)
    # note: older GPUs compute bfloat16 too, in emulation, many times slower than float16
    has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    return Precision(device.type, torch.bfloat16 if has_bf16 else torch.float16)
