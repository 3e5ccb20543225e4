"""The GPUs of conf/gpus.yaml, and which of them, with which driver, the torch of conf/torch.yaml runs on."""

import math
from functools import cache
from typing import Any

from pydantic.dataclasses import dataclass

from launcher import paths
from launcher.config.fields import STRICT, Count, Positive
from launcher.config.groups import machines
from launcher.config.hardware import Hardware
from launcher.config.yaml_file import read_mapping
from launcher.errors import Problem, UserError


@dataclass(frozen=True, config=STRICT)
class Gpu:
    """A GPU's limits: `memory` in GB, its `bandwidth` in GB/s, `matrix_rate` in TFLOP/s of dense bf16.

    `product_rate` is the measured throughput of large matrix products, `vector_rate` that of fp32 without matrix units,
    both in TFLOP/s; `link` is to the other GPUs of the machine, in GB/s per direction. Without `bf16` it trains in
    fp16. `capability` is CUDA's compute capability. `bandwidth_factor` multiplies the efficiency of memory, where this
    GPU's differs.
    """

    memory: Positive
    bandwidth: Positive
    matrix_rate: Positive
    product_rate: Positive
    vector_rate: Positive
    link: Positive
    source: str
    bf16: bool = True
    capability: Positive = math.inf
    bandwidth_factor: Positive = 1.0

    @property
    def cycles(self) -> float:
        """Cycles of all multiprocessors per second: each has 64 units of fp32 up to capability 8.0, 128 above."""
        units = 64 if self.capability <= 8 else 128
        return 1e12 * self.vector_rate / (2 * units)


@dataclass(frozen=True, config=STRICT)
class Torch:
    """The major version of CUDA of the locked torch, its oldest compute capability, and NVIDIA's oldest drivers."""

    cuda: Count
    capability: Positive
    drivers: dict[int, Count]


@cache
def gpus() -> dict[str, Gpu]:
    """Return the GPUs of conf/gpus.yaml by the name that machines use."""
    return {name: Gpu(**facts) for name, facts in read_mapping(paths.CONF / "gpus.yaml").items()}


@cache
def efficiencies() -> dict[str, Any]:
    """Return the values of conf/efficiencies.yaml: of GPUs, loaders and writers, from measurements."""
    return read_mapping(paths.CONF / "efficiencies.yaml")


@cache
def locked_torch() -> Torch:
    """Return the needs of the locked torch, of conf/torch.yaml."""
    return Torch(**read_mapping(paths.CONF / "torch.yaml"))


def unsupported(gpu: str | None) -> str:
    """Return why the locked torch cannot use a GPU; empty if it can, or the GPU is not in conf/gpus.yaml."""
    known, oldest = gpus().get(gpu or ""), locked_torch().capability
    if known is None or known.capability >= oldest:
        return ""
    return f"torch has no kernels for {gpu}: compute capability {known.capability}, below {oldest}"


def check_gpu(machine: Hardware, key: str = "hardware") -> None:
    """Refuse a machine whose GPUs the locked torch cannot use.

    Raises UserError with the cheapest machine of as many GPUs that are not slower, or of any number.
    """
    if reason := unsupported(machine.gpu):
        rate = gpus()[str(machine.gpu)].product_rate
        able = [one for one in machines().values() if one.gpu in gpus() and not unsupported(one.gpu)]

        def distance(one: Hardware) -> tuple[bool, bool, float]:
            slower = gpus()[str(one.gpu)].product_rate < rate
            return one.gpus != machine.gpus, slower, math.inf if one.price_per_hour is None else one.price_per_hour

        nearest = min(able, key=distance).name
        raise UserError(Problem(f"{reason}; set {key}={nearest}, the nearest that works", key, machine.name))
