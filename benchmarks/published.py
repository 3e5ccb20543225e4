"""Published throughput, its machines, and what the model predicts for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import timm.layers
import torch
import yaml

from launcher.config.compose import compose
from launcher.config.gpus import Gpu, gpus
from launcher.config.groups import machines
from launcher.config.hardware import Hardware
from launcher.models.build import build_model
from launcher.plan.counted import CountedStep, Work, traced_samples
from launcher.plan.plan import Plan, plan_for
from launcher.prediction.machines import decoding_threads, thread_rate
from launcher.prediction.prediction import Prediction, Predictor, main_bound
from launcher.prediction.step_trace import trace_steps

_FILE = Path(__file__).with_name("published_rates.yaml")
_NETWORKS = Path(__file__).with_name("published_networks.yaml")
_BATCH = 256
# Kernels per parameter: zero and accumulate its gradient, and four of SGD with momentum; and the bytes that they move
# beyond those of a fused update, per byte of the gradient.
_UPDATE_KERNELS, _UPDATE_BYTES = 6, 10


@dataclass(frozen=True)
class Figure:
    """A published figure, images/s or minutes, and its machine; `fits` is empty if the figure is held out.

    `network` is the batch, image size and layout of a network of timm. `whole` minutes include the start, evaluations
    and checkpoints of the run. Figures of `ours` were measured with this program, in bf16; the others are of fp16.
    """

    name: str
    machine: str
    source: str
    step: str | None = None
    rate: float | None = None
    minutes: float | None = None
    epochs: int | None = None
    stack: str = "eager"
    loader: tuple[str, int, int, int] | None = None
    network: tuple[int, int, str] | None = None
    whole: bool = False
    ours: bool = False
    batch: int = _BATCH
    fits: str = ""

    @property
    def unit(self) -> str:
        return "min" if self.minutes else "images/s"

    @property
    def published(self) -> float:
        return float(self.minutes or self.rate or 0.0)


@cache
def _file() -> dict[str, Any]:
    return dict(yaml.safe_load(_FILE.read_text()))


def figures() -> list[Figure]:
    """Return the figures of published_rates.yaml and the networks of published_networks.yaml."""
    listed = [
        Figure(**{**entry, "loader": tuple(entry["loader"])} if "loader" in entry else entry)
        for entry in _file()["figures"]
    ]
    known = yaml.safe_load(_NETWORKS.read_text())
    return listed + [
        Figure(name, known["machine"], known["source"], rate=rate, network=(batch, size, layout),
               fits="eager" if name in known["fits"] else "")
        for name, (rate, batch, size, layout) in known["networks"].items()
    ]  # fmt: skip


def machine_of(figure: Figure) -> tuple[Hardware, Gpu]:
    """Return the figure's machine; the file has the values of GPUs that are not in conf/gpus.yaml."""
    facts = dict(_file()["machines"][figure.machine])
    gpu = gpus()[facts["gpu"]] if isinstance(facts["gpu"], str) else Gpu(**facts.pop("gpu"))
    known = replace(machines()["this_machine"], name=figure.machine, gpus=facts["gpus"], cores=facts["cores"])
    return known, gpu


@cache
def _predictor(step: str, gpu_count: int, batch: int, epochs: int | None, fused: bool, ours: bool) -> Predictor:
    words = ["cuda_graphs=off", *_file()["steps"][step], "dataset=imagenet", f"batch_size={gpu_count * batch}"]
    words += [f"epochs={epochs}"] if epochs else []
    words += [f"compile={'on' if fused else 'off'}"]
    words += [] if ours else ["precision=fp16"]
    plan = plan_for(compose(words).config, gpu_count)
    predictor = Predictor(plan)
    return predictor if ours else Predictor(plan, _updated_singly(plan, predictor.counted))


@cache
def _network(name: str, batch: int, size: int, layout: str) -> Predictor:
    """Trace a network of timm, with attention in several kernels as in 2022."""
    sizes = [f"image.train_size={size}", f"image.eval_size={size}", f"image.eval_resize={size}"]
    data = ["dataset=imagenet", "dataloader=synthetic", f"batch_size={batch}", "precision=fp16"]
    words = ["recipe=baseline", "compile=off", "cuda_graphs=off", *data, *sizes]
    words += ["model=timm", f"model.architecture={name}"]
    words += [f"algorithms={'[channels_last]' if layout == 'nhwc' else '[]'}"]
    plan = plan_for(compose(words).config, 1)
    before = timm.layers.use_fused_attn()
    timm.layers.set_fused_attn(False)
    try:
        return Predictor(plan, _updated_singly(plan, trace_steps(plan, traced_samples(plan))))
    finally:
        timm.layers.set_fused_attn(bool(before))


def _updated_singly(plan: Plan, counted: Sequence[CountedStep]) -> list[CountedStep]:
    """Add the kernels of PyTorch up to 1.12, which zeroed, accumulated and updated each parameter by itself."""
    config = plan.config
    assert config.dataset.classes is not None
    with torch.device("meta"):
        network = build_model(config.model, config.dataset.classes, config.loss, seed=0)
    count = _UPDATE_KERNELS * len(list(network.parameters()))
    return [
        replace(one, eager=[*one.eager, Work("other", _UPDATE_BYTES * one.gradient_bytes // count, 0, count)])
        for one in counted
    ]


def predicted(figure: Figure, values: Mapping[str, Any]) -> float:
    """Return the prediction of a figure, in its unit."""
    if figure.loader:
        machine, _ = machine_of(figure)
        kind, workers, size, operations = figure.loader
        threads = decoding_threads(kind, workers * (machine.gpus or 1), machine.cores, values)
        return threads * thread_rate(kind, size**2, operations, values)
    predictor, prediction = _prediction(figure, values)
    seconds = prediction.estimate.wall.seconds if figure.whole else prediction.steps_seconds
    images = predictor.plan.total_steps * predictor.plan.batch_size
    return seconds / 60 if figure.minutes else images / seconds


def _prediction(figure: Figure, values: Mapping[str, Any]) -> tuple[Predictor, Prediction]:
    machine, gpu = machine_of(figure)
    if figure.network:
        predictor = _network(figure.name, *figure.network)
    else:
        assert figure.step is not None
        assert machine.gpus is not None
        fused = figure.stack != "eager"
        predictor = _predictor(figure.step, machine.gpus, figure.batch, figure.epochs, fused, figure.ours)
    # note: published runs use FFCV's own loader, or Pillow's decoder, and other compilers
    known, stacks = values["loaders"], values["stacks"]
    loaders = {**known, "ffcv": known["ffcv_plain"], "torchvision": known["torchvision_other"]}
    stacks = stacks if figure.ours else {**stacks, "compiled": stacks["fused"]}
    return predictor, predictor.on(machine, gpu, {**values, "loaders": loaders, "stacks": stacks})


def waits_for_loader(figure: Figure, values: Mapping[str, Any]) -> bool:
    """Return whether loading is the predicted bottleneck of a figure."""
    return bool(figure.loader) or main_bound(_prediction(figure, values)[1].phases) == "loader"


def error(figure: Figure, values: Mapping[str, Any]) -> float:
    """Return the relative error of the prediction of a figure."""
    return predicted(figure, values) / figure.published - 1
