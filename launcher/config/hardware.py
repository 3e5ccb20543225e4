"""The machines of conf/hardware, the GPUs of conf/gpus.yaml, and how old a price is."""

from __future__ import annotations

import datetime
import re
from functools import cache

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from launcher import paths
from launcher.config.fields import STRICT, Positive
from launcher.config.groups import options, values
from launcher.config.schema import Hardware
from launcher.config.yaml_file import read_mapping
from launcher.errors import UserError

_YEAR = datetime.timedelta(days=365)


@dataclass(frozen=True, config=STRICT)
class Gpu:
    """The most that a GPU can do: `memory` in GB, its `bandwidth` in GB/s, `matrix_rate` in TFLOP/s of dense bf16.

    `product_rate` is what products of large matrices were measured to reach of it; `link` is to the other GPUs of its
    machine, in GB/s each way.
    """

    memory: Positive
    bandwidth: Positive
    matrix_rate: Positive
    product_rate: Positive
    link: Positive
    source: str


@cache
def gpus() -> dict[str, Gpu]:
    """Every GPU that is known, by the name that machines give."""
    return {name: Gpu(**facts) for name, facts in read_mapping(paths.CONF / "gpus.yaml").items()}


def machines() -> dict[str, Hardware]:
    """Every machine of conf/hardware, a user's own among them, by the name of its file.

    Raises:
        UserError: a file has values that no machine has.
    """
    return {name: _machine(name) for name in options("hardware")}


def _machine(name: str) -> Hardware:
    try:
        return TypeAdapter(Hardware).validate_python(values("hardware", name), strict=False)
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise UserError(f"hardware/{name}: {where}: {error.errors()[0]['msg']}") from None


def is_named(gpu: str | None, device: str) -> bool:
    """Whether a device such as `NVIDIA A100-SXM4-40GB` is a machine's GPU: a whole word, an A10 is no A100."""
    return gpu is not None and re.search(rf"\b{re.escape(gpu.split(' ')[0])}\b", device) is not None


def price_age(machine: Hardware, today: datetime.date | None = None) -> str:
    """When a machine's price was so: `2026-09-18`, `2022-07, over a year old` or `date not known`."""
    if machine.price_date is None:
        return "date not known"
    try:
        since = datetime.date.fromisoformat((machine.price_date + "-01-01")[:10])
    except ValueError:  # note: a user's own words, such as last week
        return machine.price_date
    return machine.price_date + ", over a year old" * ((today or datetime.date.today()) - since > _YEAR)
