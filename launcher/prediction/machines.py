"""Select machines of conf/hardware with a known GPU; predict their loading throughput."""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from launcher.config.gpus import Gpu, gpus
from launcher.config.groups import gpu_model, machines
from launcher.config.schema import Hardware
from launcher.config.similar import nearest
from launcher.data.loaders.base import DecodingLoader
from launcher.data.loaders.ffcv import FFCVLoader
from launcher.data.loaders.torchvision import TorchvisionLoader
from launcher.errors import Problem, UserError
from launcher.plan.plan import Plan

ALL = "all"
_COUNTED = re.compile(r"\d+ *x")


class Place(NamedTuple):
    """Machines of one kind, by name."""

    nodes: int
    machine: str


def machine_named(word: str, known: Mapping[str, Hardware] | None = None) -> Place:
    """Return the machine for a name, or the cheapest for a number and a GPU such as 8xH100, H100:8, or H100 for one.

    A name may be its provider's, as g5.xlarge, or the only one of a series, as p4de. Several machines: by their number
    and one of these, as 2xp4d_24xlarge, or by more GPUs than one machine has, as 16xH100, of those with most GPUs and a
    known network. Raises UserError with the nearest machines if none fits.
    """
    known = known or rented()
    if word in machines() and word not in known:
        message = (
            "its GPU is not in conf/gpus.yaml; measure with `train estimate`, or choose one of `train ls hardware`"
        )
        raise UserError(Problem(message, "--on", word))
    series = _series(word, known)
    if len(series) == 1:
        return Place(1, series[0])
    number, name = _counted(word)
    series = _series(name, known)
    if number and (_COUNTED.match(name) or len(series) == 1):
        nodes, machine = machine_named(name, known)
        return Place(number * nodes, machine)
    with_gpu = [one for one in known.values() if _plain(name) in _names(str(one.gpu)) and one.gpus]
    able = with_gpu if number else []
    whole = [one for one in able if one.gpus == number] or [
        one for one in able if (one.gpus or 1) > 1 and number % (one.gpus or 1) == 0 and one.network is not None
    ]
    if whole:
        best = min(whole, key=lambda one: (-(one.gpus or 1), one.price_per_hour is None, one.price_per_hour))
        return Place(number // (best.gpus or 1), best.name)
    counts = _counts(known.values())
    near = ", ".join(series or _counts(with_gpu)) or nearest(word, [*known, *counts]) or nearest(f"1x{name}", counts)
    hint = f"did you mean {near}? " if near else ""
    message = f"no such machine; {hint}`train ls hardware` lists them, or {', '.join(counts)}"
    raise UserError(Problem(message, "--on", word))


def _counted(word: str) -> tuple[int, str]:
    """Return the number of GPUs or machines and their name: (8, "h100") for 8xH100 and H100:8, and 1 without one."""
    if match := re.fullmatch(r"(\d+) *x(.*)|(.*):(\d+)", word.lower()):
        return int(match[1] or match[4]), (match[2] or match[3] or "").strip()
    return 1, word.lower().strip()


def _series(word: str, known: Mapping[str, Hardware]) -> list[str]:
    """Return the machine of this name as its provider writes it; else those whose name starts with this series."""
    plain = _plain(word).removeprefix("standard")
    same = [name for name in known if _plain(name) == plain]
    return same or [name for name in known if _plain(name.partition("_")[0]) == plain]


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


def thread_rate(loader: str, size: int, operations: int, values: Mapping[str, Any]) -> float:
    """Return images/s of one thread of a busy machine, with `operations` augmentations of each image."""
    measured = values["loaders"]
    seconds = [1 / rate for rate in measured[loader]["rates"]]
    areas = [known**2 for known in measured["sizes"]]
    slope = (seconds[-1] - seconds[0]) / (areas[-1] - areas[0])
    alone = float(np.interp(size**2, areas, seconds)) + max(0, size**2 - areas[-1]) * slope
    share = measured["share"]["torchvision" if loader.startswith("torchvision") else "ffcv"]
    operation = measured["operation"]["seconds"] * (size / measured["operation"]["size"]) ** 2
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


def loading_rate(plan: Plan, machine: Hardware, size: int, values: Mapping[str, Any], *, trains: bool = True) -> float:
    """Return the images/s that the machines' workers load; infinite where nothing is loaded."""
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
    return plan.config.launch.nnodes * threads * thread_rate(kind, size, operations, values)
