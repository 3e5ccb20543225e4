"""Tensors without values: PyTorch's rules for its meta device give the shapes that a call returns.

Their device is the CPU, so a step runs on them as on a CPU, with autocast and autograd. Results for known shapes are
cached, which takes a fifth of the time of PyTorch's fake tensors.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._foreach_utils import _foreach_supported_types
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from launcher.data.batch import forget_constants

_META = torch.device("meta")
_new_storages = itertools.count(1, 2)  # note: the numbers of real tensors are addresses, which are even
_FORWARD, _BACKWARD = torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default
_ITEM = torch.ops.aten._local_scalar_dense.default
# What the host reads instead of a value: a step number or learning rate of an optimizer, not 0 nor 1.
_READ = 0.5
_GEOMETRY = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")


class TensorForm(NamedTuple):
    """The properties of a tensor without its values."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype


class Shape(Tensor):
    """A tensor on the CPU without values; `home` is the number of its storage."""

    home: int

    @staticmethod
    def __new__(cls, form: TensorForm, home: int) -> Shape:
        shape: Shape = Tensor._make_wrapper_subclass(
            cls, form.size, strides=form.stride, storage_offset=form.offset, dtype=form.dtype
        )
        shape.home = home
        return shape

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise TypeError(f"{func} of a tensor without values, outside of nothing_computed")

    def tolist(self) -> list[float]:
        return [_READ] * self.numel()


def storage_of(tensor: Tensor) -> int:
    """Return the number of a tensor's storage; a later storage can reuse it once it is freed."""
    return tensor.home if isinstance(tensor, Shape) else tensor.untyped_storage()._cdata


class _Result(NamedTuple):
    """A tensor that a call returns; `of` is the index of the input tensor with the same storage, if any."""

    form: TensorForm
    of: int | None


class _Shapes(TorchDispatchMode):
    """A mode in which every call returns shapes; calls in place change no tensor, not even a real one."""

    def __init__(self) -> None:
        super().__init__()
        self._answers: dict[Any, Any] = {}
        self._kept: list[Tensor] = []  # note: keeps storages alive, since freed numbers are reused

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "profiler":
            return func(*args, **kwargs)
        if torch.Tag.inplace_view in func.tags:
            with torch._C._DisableTorchDispatch():
                func(*args, **kwargs)
            return args[0]
        if func is _ITEM:
            return False if args[0].dtype == torch.bool else _READ
        changed = _changed(func)
        if changed is not None:
            outputs = [kwargs[name] if name in kwargs else args[place] for place, name in changed]
            return outputs[0] if len(outputs) == 1 else tuple(outputs) or None
        tensors: list[Tensor] = []
        key = (func, _key(args, tensors), _key(tuple(kwargs.items()), tensors))
        if key not in self._answers:
            self._answers[key] = _derived(func, args, kwargs)
        return self._made(self._answers[key], tensors)

    def _made(self, result: Any, tensors: Sequence[Tensor]) -> Any:
        if not isinstance(result, _Result):
            return [self._made(one, tensors) for one in result] if isinstance(result, list) else result
        if result.of is None:
            return Shape(result.form, next(_new_storages))
        whole = tensors[result.of]
        if not isinstance(whole, Shape):
            self._kept.append(whole)
        return Shape(result.form, storage_of(whole))


@cache
def _changed(func: Any) -> list[tuple[int, str]] | None:
    """Return the positions of the arguments that a call changes in place and returns; None for other calls."""
    if not {torch.Tag.inplace, torch.Tag.out} & set(func.tags):
        return None
    written = [argument.alias_info is not None and argument.alias_info.is_write for argument in func._schema.arguments]
    places = [(place, argument.name) for place, argument in enumerate(func._schema.arguments) if written[place]]
    return places[: len(func._schema.returns)]


def _key(value: Any, tensors: list[Tensor]) -> Any:
    """Return a key of an argument that determines the resulting shapes; append its tensors to the list."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return _form(value)
    if isinstance(value, list | tuple):
        return tuple([_key(one, tensors) for one in value])
    return None if isinstance(value, torch.Generator) else (type(value), value)


def _form(tensor: Tensor) -> TensorForm:
    return TensorForm(tuple(tensor.size()), tensor.stride(), int(tensor.storage_offset()), tensor.dtype)


def _derived(func: Any, args: Any, kwargs: Any) -> Any:
    """Return the results of a call by PyTorch's rules, with `_Result` for each tensor."""
    places: dict[int, int] = {}

    def meta(tensor: Tensor) -> Tensor:
        form = _form(tensor)
        extent = 1 + sum((size - 1) * stride for size, stride in zip(form.size, form.stride, strict=True))
        whole = torch.empty(form.offset + max(extent, 0), dtype=form.dtype, device=_META)
        places[storage_of(whole)] = len(places)
        alive.append(whole)
        return whole.as_strided(form.size, form.stride, form.offset)

    def result(tensor: Tensor) -> _Result:
        return _Result(_form(tensor), places.get(storage_of(tensor)))

    alive: list[Tensor] = []
    with_meta, named = tree_map_only(Tensor, meta, (args, kwargs))
    names = {argument.name for argument in func._schema.arguments}
    if "device" in names:
        named["device"] = _META
    named.pop("generator", None)
    out = func(*with_meta, **named)
    if func in (_FORWARD, _BACKWARD) and args[0].ndim > 3:  # note: one-dimensional convolutions are always contiguous
        out = _laid_out(func, args, out)
    if "output_mask" in names:
        # note: PyTorch's rule for batch norm ignores that the input of frozen layers needs no gradient
        out = [one if needed else None for one, needed in zip(out, args[-1], strict=True)]
    return tree_map_only(Tensor, result, list(out) if isinstance(out, tuple) else out)


def _laid_out(func: Any, args: Any, out: Any) -> Any:
    """Give a convolution's results the memory format of the CPU, which the meta device does not compute."""
    images, weight = args[:2] if func is _FORWARD else args[1:3]
    geometry = dict(zip(_GEOMETRY, args[3:9] if func is _FORWARD else args[4:10], strict=True))
    bias = {"bias": args[2]} if func is _FORWARD else {"bias": None, "bias_sizes": args[3]}
    backend = torch._C._select_conv_backend(images, weight, **geometry, **bias)
    order = torch._C._conv_determine_backend_memory_format(images, weight, backend)
    if func is _FORWARD:
        return out.to(memory_format=order)
    *products, last = out
    return [*(one if one is None else one.to(memory_format=order) for one in products), last]


@contextmanager
def nothing_computed() -> Iterator[None]:
    """Make all new tensors shapes without values; clear the cache at the end."""
    # note: weights are real, since a module of shapes cannot be moved; nothing is computed with them
    known: list[Any] = _foreach_supported_types  # note: otherwise torch handles tensors one by one
    with _Shapes():
        known.append(Shape)
        try:
            yield
        finally:
            known.remove(Shape)
            forget_constants()
