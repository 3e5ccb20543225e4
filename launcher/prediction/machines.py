"""Select machines of conf/hardware with a known GPU; predict their loading throughput."""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from launcher.config.gpus import Gpu, gpus
from launcher.config.groups import gpu_model, machines
from launcher.config.hardware import Hardware
from launcher.config.similar import nearest
from launcher.data.loaders.base import DecodingLoader
from launcher.data.loaders.ffcv import FFCVLoader
from launcher.data.loaders.torchvision import TorchvisionLoader
from launcher.errors import Problem, UserError
from launcher.plan.plan import Plan

ALL = "all"


class Place(NamedTuple):
    """Machines of one kind, by name."""

    nodes: int
    machine: str


def machine_named(word: str, known: Mapping[str, Hardware] | None = None) -> Place:
    """Return the machine of a name, as p5_48xlarge and p5.48xlarge, or the cheapest with so many GPUs, as 8xH100.

    Several machines: 2xp4d_24xlarge, or more GPUs than one machine has, as 16xH100, on those with most GPUs and a known
    network. Raises UserError with the nearest machines if none fits.
    """
    known = known or rented()
    if word in machines() and word not in known:
        message = (
            "its GPU is not in conf/gpus.yaml; measure with `train estimate`, or choose one of `train ls hardware`"
        )
        raise UserError(Problem(message, "--on", word))
    counted = re.fullmatch(r"(\d+) *x *(.+)", word.lower())
    number, name = (int(counted[1]), counted[2]) if counted else (1, word)
    if number and (same := next((one for one in known if _plain(one) == _plain(name)), None)):
        return Place(number, same)
    with_gpu = [one for one in known.values() if _plain(name) in _names(str(one.gpu)) and one.gpus]
    able = with_gpu if counted and number else []
    whole = [one for one in able if one.gpus == number] or [
        one for one in able if (one.gpus or 1) > 1 and number % (one.gpus or 1) == 0 and one.network is not None
    ]
    if whole:
        best = min(whole, key=lambda one: (-(one.gpus or 1), one.price_per_hour is None, one.price_per_hour))
        return Place(number // (best.gpus or 1), best.name)
    counts = _counts(known.values())
    series = [one for one in known if name and _plain(one).startswith(_plain(name))]
    near = ", ".join(series or _counts(with_gpu)) or nearest(word, [*known, *counts]) or nearest(f"1x{name}", counts)
    hint = f"did you mean {near}? " if near else ""
    message = f"no such machine; {hint}`train ls hardware` lists them, or {', '.join(counts)}"
    raise UserError(Problem(message, "--on", word))


def _counts(known: Iterable[Hardware]) -> list[str]:
    """Return the numbers and GPUs of machines, as 8xH100."""
    return sorted({f"{one.gpus}x{gpu_model(str(one.gpu)).replace(' ', '')}" for one in known})


def rented() -> dict[str, Hardware]:
    """Return the machines of conf/hardware that have a GPU of conf/gpus.yaml."""
    return {name: machine for name, machine in machines().items() if machine.gpu in gpus()}


def _names(gpu: str) -> set[str]:
    """Return the accepted names of a GPU; a prefix is not one, as A10 and L4 are GPUs too."""
    names = {_plain(gpu), _plain(gpu).removesuffix("gb"), _plain(gpu_model(gpu))}
    return names | {name.removeprefix("rtx") for name in names}


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def gpu_of(machine: Hardware) -> Gpu:
    """Return the limits of the machine's GPU.

    Raises UserError if the machine has no GPU of conf/gpus.yaml.
    """
    gpu = gpus().get(machine.gpu or "")
    if gpu is None or machine.gpus is None:
        raise UserError(Problem(f"has no GPU of conf/gpus.yaml: {', '.join(gpus())}", "hardware", machine.name))
    return gpu


def thread_rate(loader: str, pixels: int, operations: int, values: Mapping[str, Any]) -> float:
    """Return images/s of one thread of a busy machine, loaded at so many pixels, with `operations` augmentations."""
    measured = values["loaders"]
    seconds = [1 / rate for rate in measured[loader]["rates"]]
    areas = [known**2 for known in measured["sizes"]]
    slope = (seconds[-1] - seconds[0]) / (areas[-1] - areas[0])
    alone = float(np.interp(pixels, areas, seconds)) + max(0, pixels - areas[-1]) * slope
    share = measured["share"]["torchvision" if loader.startswith("torchvision") else "ffcv"]
    operation = measured["operation"]["seconds"] * pixels / measured["operation"]["size"] ** 2
    return float(1 / (alone / share + operations * operation))


def decoding_threads(loader: str, workers: int, cores: int | None, values: Mapping[str, Any]) -> float:
    """Return the threads with a core of their own that equal `workers`; `cores` counts two threads per core."""
    loaders = values["loaders"]
    own = (cores or workers) / loaders["threads_a_core"]
    used = min(workers, cores or workers)
    return float(min(used, own) + loaders[loader]["second_thread"] * max(0.0, used - own))


def loader_kind(loader: DecodingLoader, *, trains: bool = True) -> str:
    """Return the loader's key in conf/efficiencies.yaml."""
    if isinstance(loader, TorchvisionLoader):
        fastest = loader.decoder in ("auto", "simplejpeg")
        return "torchvision" + ("_other" if not fastest else "_scaled" if trains and loader.dct_scaling else "")
    assert isinstance(loader, FFCVLoader)
    if loader.files.jpeg_share == 0:
        return "ffcv_pixels"
    scaled = "_scaled" if loader.dct_scaling else ""
    return "ffcv" + ("_jpeg" if loader.files.jpeg_share == 1 and not scaled else scaled)


def loading_rate(
    plan: Plan, machine: Hardware, pixels: int, values: Mapping[str, Any], *, trains: bool = True
) -> float:
    """Return the images/s of so many pixels that the machines' workers load; infinite where nothing is loaded."""
    loader = plan.config.dataloader
    if not isinstance(loader, DecodingLoader):
        return math.inf
    kind = loader_kind(loader, trains=trains)
    here = max(1, (machine.cores or 1) // (machine.gpus or 1))
    # note: without workers the rank loads
    workers = max(1, loader.worker_count(here)) * (machine.gpus or 1)
    of_images = [one for one in plan.config.algorithms.values() if one.place("change_image") is not None]
    operations = sum(getattr(one, "depth", 1) for one in of_images)
    threads = decoding_threads(kind, workers, machine.cores, values)
    return plan.config.launch.nnodes * threads * thread_rate(kind, pixels, operations, values)
