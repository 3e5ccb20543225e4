"""A quality to stop at, as `top1:0.759`: the accuracy that an evaluation must reach, in [0, 1]."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator

_PATTERN = re.compile(r"top1:(\d?\.\d+|[01])")


def target_accuracy(text: str) -> float:
    """The top-1 accuracy of a target.

    Raises:
        ValueError: the text is no `top1:` followed by a number above 0 and at most 1.
    """
    match = _PATTERN.fullmatch(text.strip())
    if match is None or not 0 < float(match[1]) <= 1:
        raise ValueError("not a target: write the top-1 accuracy to stop at as top1:0.759, above 0 and at most 1")
    return float(match[1])


def _check(text: str) -> str:
    target_accuracy(text)
    return text


Target = Annotated[str, AfterValidator(_check)]
