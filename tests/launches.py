"""Count on a CPU the kernels that an operation would launch on a GPU."""

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Launches(TorchDispatchMode):
    """Count operations that compute: a foreach function once if all its tensors are alike, else once per tensor.

    They are alike by the condition of PyTorch's fast path (ATen/native/ForeachUtils.h): one dtype, and for each tensor
    and its partners in the other lists one shape and one layout.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        lists = [argument for argument in args if isinstance(argument, list | tuple) and _tensors(argument)]
        if func._schema.name.startswith("aten::_foreach"):
            self.count += 1 if _alike(lists) else len(lists[0])
        elif not any(a.alias_info is not None and not a.alias_info.is_write for a in func._schema.arguments):
            self.count += 1
        return func(*args, **(kwargs or {}))


def _tensors(values: Any) -> bool:
    return len(values) > 0 and all(isinstance(value, Tensor) for value in values)


def _alike(lists: list[list[Tensor]]) -> bool:
    dtypes = {tensor.dtype for tensors in lists for tensor in tensors}
    partners = zip(*lists, strict=True)
    return len(dtypes) == 1 and all(len({(t.shape, t.stride()) for t in group}) == 1 for group in partners)
