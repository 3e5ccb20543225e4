"""Tensors without values: what a call returns is derived in shape alone, by PyTorch's own rules for its meta device.

They say that they lie on the CPU, so that a step runs on them as it does there, with autocast and autograd. A call on
shapes that were seen before is answered from memory, which takes a fifth of the time of PyTorch's fake tensors.
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
_new_storages = itertools.count(1, 2)  # note: those of real tensors have addresses, which are even
_FORWARD, _BACKWARD = torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default
_GEOMETRY = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")


class Form(NamedTuple):
    """What a tensor is besides its values."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype


class Shape(Tensor):
    """A tensor on the CPU that has no values; `home` is the number of the storage that it would lie in."""

    home: int

    @staticmethod
    def __new__(cls, form: Form, home: int) -> Shape:
        made: Shape = Tensor._make_wrapper_subclass(
            cls, form.size, strides=form.stride, storage_offset=form.offset, dtype=form.dtype
        )
        made.home = home
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise TypeError(f"{func} of a tensor without values, outside of nothing_computed")


def storage_of(tensor: Tensor) -> int:
    """The number of a tensor's storage; once that is freed another may have it."""
    return tensor.home if isinstance(tensor, Shape) else tensor.untyped_storage()._cdata


class _Made(NamedTuple):
    """A tensor that a call returns; `of`: which of the tensors that it was given is in the same storage, if one is."""

    form: Form
    of: int | None


class _Shapes(TorchDispatchMode):
    """Every call returns shapes; one that changes a tensor in place leaves it as it is, a real one too."""

    def __init__(self) -> None:
        super().__init__()
        self._answers: dict[Any, Any] = {}
        self._kept: list[Tensor] = []  # note: a freed storage's number would be given to another

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "profiler":
            return func(*args, **kwargs)
        if torch.Tag.inplace_view in func.tags:
            with torch._C._DisableTorchDispatch():
                func(*args, **kwargs)
            return args[0]
        changed = _changed(func)
        if changed is not None:
            given = [kwargs[name] if name in kwargs else args[place] for place, name in changed]
            return given[0] if len(given) == 1 else tuple(given) or None
        tensors: list[Tensor] = []
        key = (func, _key(args, tensors), _key(tuple(kwargs.items()), tensors))
        if key not in self._answers:
            self._answers[key] = _derived(func, args, kwargs)
        return self._made(self._answers[key], tensors)

    def _made(self, answer: Any, tensors: Sequence[Tensor]) -> Any:
        if not isinstance(answer, _Made):
            return [self._made(one, tensors) for one in answer] if isinstance(answer, list) else answer
        if answer.of is None:
            return Shape(answer.form, next(_new_storages))
        whole = tensors[answer.of]
        self._kept += [whole] * (not isinstance(whole, Shape))
        return Shape(answer.form, storage_of(whole))


@cache
def _changed(func: Any) -> list[tuple[int, str]] | None:
    """Where the arguments are that a call returns since it has changed their values; None if it makes something."""
    if not {torch.Tag.inplace, torch.Tag.out} & set(func.tags):
        return None
    written = [argument.alias_info is not None and argument.alias_info.is_write for argument in func._schema.arguments]
    places = [(place, argument.name) for place, argument in enumerate(func._schema.arguments) if written[place]]
    return places[: len(func._schema.returns)]


def _key(value: Any, tensors: list[Tensor]) -> Any:
    """What decides the shapes that come of an argument; its tensors are added to those found before."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return _form(value)
    if isinstance(value, list | tuple):
        return tuple([_key(one, tensors) for one in value])
    return None if isinstance(value, torch.Generator) else (type(value), value)


def _form(tensor: Tensor) -> Form:
    return Form(tuple(tensor.size()), tensor.stride(), int(tensor.storage_offset()), tensor.dtype)


def _derived(func: Any, args: Any, kwargs: Any) -> Any:
    """What a call returns, by PyTorch's rules, with `_Made` for each tensor."""
    places: dict[int, int] = {}

    def meta(tensor: Tensor) -> Tensor:
        form = _form(tensor)
        extent = 1 + sum((size - 1) * stride for size, stride in zip(form.size, form.stride, strict=True))
        whole = torch.empty(form.offset + max(extent, 0), dtype=form.dtype, device=_META)
        places[storage_of(whole)] = len(places)
        kept.append(whole)
        return whole.as_strided(form.size, form.stride, form.offset)

    def made(tensor: Tensor) -> _Made:
        return _Made(_form(tensor), places.get(storage_of(tensor)))

    kept: list[Tensor] = []
    with_meta, named = tree_map_only(Tensor, meta, (args, kwargs))
    names = {argument.name for argument in func._schema.arguments}
    if "device" in names:
        named["device"] = _META
    named.pop("generator", None)
    out = func(*with_meta, **named)
    if func in (_FORWARD, _BACKWARD) and args[0].ndim > 3:  # note: those over one dimension are always contiguous
        out = _laid_out(func, args, out)
    if "output_mask" in names:
        # note: the rule of batch norm forgets that nobody asks for the gradient of frozen layers' input
        out = [one if wanted else None for one, wanted in zip(out, args[-1], strict=True)]
    return tree_map_only(Tensor, made, list(out) if isinstance(out, tuple) else out)


def _laid_out(func: Any, args: Any, out: Any) -> Any:
    """A convolution's results in the order of pixels and channels that it has on a CPU, which no meta tensor tells."""
    images, weight = args[:2] if func is _FORWARD else args[1:3]
    geometry = dict(zip(_GEOMETRY, args[3:9] if func is _FORWARD else args[4:10], strict=True))
    bias = {"bias": args[2]} if func is _FORWARD else {"bias": None, "bias_sizes": args[3]}
    backend = torch._C._select_conv_backend(images, weight, **geometry, **bias)
    order = torch._C._conv_determine_backend_memory_format(images, weight, backend)
    if func is _FORWARD:
        return out.to(memory_format=order)
    *products, last = out
    return [*(made if made is None else made.to(memory_format=order) for made in products), last]


@contextmanager
def nothing_computed() -> Iterator[None]:
    """Shapes in the place of all that is made; what was kept of them for later steps is forgotten at the end."""
    # note: weights are real, as a module of shapes cannot be moved; nothing is computed with them all the same
    known: list[Any] = _foreach_supported_types  # note: else torch takes tensors one by one
    with _Shapes():
        known.append(Shape)
        try:
            yield
        finally:
            known.remove(Shape)
            forget_constants()
