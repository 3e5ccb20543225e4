"""Mixed precision: the number format of a run, its autocast context, and its loss scaler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from launcher.accelerator import has_streams, interface
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

    def copies(
        self, model: nn.Module, split: Callable[[list[Tensor]], list[list[Tensor]]] = lambda weights: [weights]
    ) -> dict[str, Tensor]:
        """Return by name the weights that autocast would cast one by one, cast in few launches; the bits are equal.

        split: into groups; the gradients of a group are cast together as soon as all are there.
        """
        names: dict[Tensor, str] = {
            weight: f"{prefix}.{name}".lstrip(".")
            for prefix, layer in model.named_modules()
            # note: layers of other packages may compute with their weights in float32
            if isinstance(layer, nn.Conv2d | nn.Linear)
            and type(layer).__module__.startswith(("torch.nn.", "launcher."))
            for name, weight in layer.named_parameters(recurse=False)
            if weight.requires_grad
        }
        groups = split([*names])
        return {
            names[weight]: copy
            for group in groups
            for weight, copy in zip(group, _cast(group, self.dtype), strict=True)
        }

    def scaler(self) -> LossScaler:
        """Return a loss scaler, which is only enabled for float16."""
        return LossScaler(self.device_type, enabled=self.dtype == torch.float16)


class _Cast(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        context.set_materialize_grads(False)
        context.dtype = tensors[0].dtype
        return tuple(_copies(tensors, dtype))

    @staticmethod
    def backward(context: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        copies = iter(_copies([one for one in gradients if one is not None], context.dtype))
        return None, *(None if one is None else next(copies) for one in gradients)


def _cast(tensors: Sequence[Tensor], dtype: torch.dtype) -> Sequence[Tensor]:
    """Cast tensors of one dtype, and in the backward pass their gradients back, both in few launches."""
    copies: Sequence[Tensor] = _Cast.apply(dtype, *tensors)
    if node := copies[0].grad_fn:
        # note: else autograd leaves what the forward pass did first, as these casts, to the end
        node._set_sequence_nr(torch.iinfo(torch.int64).max)  # type: ignore[attr-defined]
    return copies


def _copies(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    copies = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
    torch._foreach_copy_(copies, list(tensors))
    return copies


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

    def conclude(self, optimizer: torch.optim.Optimizer, dropped: Tensor, held: Tensor) -> None:
        """End a step: lower the scale if the step was dropped, and keep it while steps are held.

        dropped, held: float32 [], 0 or 1.
        """
        state = self._check_scale_growth_tracker("conclude")
        before = [tensor.clone() for tensor in state]
        for found_inf in self._found_inf_per_device(optimizer).values():
            found_inf.copy_(dropped)
        self.update()
        for now, earlier in zip(state, before, strict=True):
            torch.where(held > 0, earlier, now, out=now)


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
