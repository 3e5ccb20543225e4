"""Types and bounds of the run config. It has no defaults: conf/ and recipes/ hold all values."""

from __future__ import annotations

import re
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from launcher.config.algorithms import ALGORITHMS, Algorithms
from launcher.config.builtin import FOLDER, Kind
from launcher.config.choices import LoaderConfig, LoggerConfig, LossConfig, ModelConfig, OptimizerConfig, ScheduleConfig
from launcher.config.fields import (
    ABSOLUTE,
    EVALUATION,
    JOB,
    PLACE,
    RESUME,
    STRICT,
    AnyPath,
    Count,
    Duration,
    Edges,
    FolderName,
    HostPort,
    NotNegative,
    Positive,
    PositiveRange,
    Probability,
    ProbabilityRange,
    Role,
    Target,
    Url,
    host_and_port,
)
from launcher.config.hardware import Hardware
from launcher.config.options import Group, Unread
from launcher.config.targets import Callback
from launcher.config.tasks import TASKS, OwnMetric, TaskConfig
from launcher.errors import Problem, UserError
from launcher.plugins import LOGGERS

LOSSES = Group("loss", LossConfig, "losses")
LOGGER = Group("logger", LoggerConfig, "loggers", plugins=LOGGERS)
Views = Literal["centre", "5crop", "scales", "shifts"]
SizeT = TypeVar("SizeT", bound=float)
# The data sets that any files may be, and the most characters of the name of such files in the name of a run.
_OWN_FILES, _LONGEST = ("image_folder", "text"), 64
# Groups whose options are all values by name, each on or off.
SWITCHED = ("algorithms", "callbacks", "metrics")
GROUPS = ("model", "dataset", "dataloader", "optimizer", "schedule", "loss", "task", "launch", "hardware", "logger")


@dataclass(frozen=True, config=STRICT)
class Image:
    """Crops and resizes, in pixels for images of size `reference`; scaled to the data set's own `native_size`.

    Crops have the ratio of their size, which `ratio` changes; with `fit` pad or stretch the ratio of the image.
    `flip` is the probability of a horizontal flip in each epoch, or `alternating`: with probability 0.5 in the first
    epoch of an image, and then in every other epoch (Jordan 2024, arXiv:2404.00498).
    With an `eval_resize` that is not whole, the centre is cut before it is resized, as FFCV does. `eval_views`, whose
    outputs are averaged, are cut from the centred square of `eval_resize`, or are moved: `tasks.images` has them.
    """

    reference: Count
    fit: Literal["crop", "pad", "stretch"]
    train_size: Edges
    eval_resize: Count | Positive
    eval_size: Edges
    scale: ProbabilityRange
    ratio: PositiveRange
    flip: Probability | Literal["alternating"]
    interpolation: Literal["bilinear", "bicubic"]
    eval_interpolation: Literal["bilinear", "bicubic"]
    eval_flip_average: bool
    eval_views: Annotated[Views, RESUME, EVALUATION]


@dataclass(frozen=True, config=STRICT)
class Columns:
    """Columns of a table of images (CSV, JSONL, Parquet), or of text: null tries the usual names.

    A task with several labels or numbers an image reads lists, texts with a `separator`, or a list of columns.
    """

    image: str | None
    label: str | Annotated[list[str], Field(min_length=1)] | None
    split: str | None
    separator: Annotated[str, Field(min_length=1)]
    text: str | None


@dataclass(frozen=True, config=STRICT)
class Dataset:
    """Images in class folders `train/` and `val/` below `path`, in archives or a table; null counts are read there.

    The class of an image in nested folders is the first or last of them, or the path of all (`class_level`). `skip_bad`
    skips unreadable images. `val_split` is the fraction of each class's training images that replaces `val/`; `folds`
    are those of cross-validation, of which `fold` is held out, counted from 1; images of one of the `groups` stay
    together, by a column of a table or the level of a folder below the class. `test_path` has images to evaluate only
    the finished run on. `exif_orientation` rotates images by their EXIF data. `sampling` is uniform, each image once an
    epoch, or balanced: each class equally often. `links` out of the split's folder are refused, or followed. Text
    becomes tokens by the file `tokenizer`, or bytes; then `classes` are those of the vocabulary. Images have `channels`
    of type `dtype`; `mean` and `std` are of fractions of its largest value, of float32 as stored; null computes them.
    """

    name: str
    kind: Kind
    path: Annotated[AnyPath | None, RESUME, EVALUATION, ABSOLUTE]
    columns: Columns
    class_level: Literal["first", "last", "path"]
    classes: Count | None
    train_samples: Count | None
    val_samples: Count | None
    val_split: Annotated[float, Field(gt=0, lt=1)] | None
    folds: Annotated[int, Field(ge=2)] | None
    fold: Count | None
    groups: Annotated[int, Field(ge=1)] | Annotated[str, Field(min_length=1)] | None
    test_path: Annotated[AnyPath | None, RESUME, ABSOLUTE]
    skip_bad: bool
    exif_orientation: bool
    sampling: Literal["uniform", "balanced"]
    native_size: Count
    channels: Annotated[int, Field(ge=1, le=256)]
    dtype: Literal["uint8", "uint16", "float32"]
    mean: list[float] | None
    std: list[Positive] | None
    links: Annotated[Literal["refuse", "follow"], RESUME]
    tokenizer: Annotated[AnyPath | None, ABSOLUTE]

    def __post_init__(self) -> None:
        if self.folds is None and (unused := [name for name in ("fold", "groups") if getattr(self, name) is not None]):
            message = "is for cross-validation; set dataset.folds=5 too"
            raise UserError(*(Problem(message, f"dataset.{name}", getattr(self, name)) for name in unused))
        if self.folds is not None and self.val_split is not None:
            message = "draws other images than dataset.folds; remove one of them"
            raise UserError(Problem(message, "dataset.val_split", self.val_split))
        if self.folds is not None and not 1 <= (self.fold or 0) <= self.folds:
            message = f"must be a fold from 1 to {self.folds}; set dataset.fold=1"
            raise UserError(Problem(message, "dataset.fold", self.fold))

    @property
    def title(self) -> str:
        """The name of the data in names of runs and headings: for files of one's own, that of their folder or file."""
        own = Path(self.path or "").name.partition(".")[0] if self.name in _OWN_FILES else ""
        return re.sub(r"[^\w-]+", "_", own, flags=re.ASCII).strip("_")[:_LONGEST] or self.name

    @property
    def is_built_in(self) -> bool:
        """Whether this program makes the samples."""
        return self.kind != FOLDER

    @property
    def is_divided(self) -> bool:
        """Return whether the validation images are drawn from those for training."""
        return self.val_split is not None or self.folds is not None

    @property
    def is_rgb(self) -> bool:
        """Whether images are RGB of 8 bits, to which files of other kinds are converted."""
        return (self.channels, self.dtype) == (3, "uint8")

    @property
    def largest(self) -> int:
        """The value of a sample that is 1 for `mean` and `std`."""
        return {"uint8": 255, "uint16": 65535, "float32": 1}[self.dtype]

    @property
    def normalization(self) -> tuple[list[float], list[float]]:
        """Mean and deviation by channel, which a run's config has."""
        assert self.mean is not None
        assert self.std is not None
        return self.mean, self.std


@dataclass(frozen=True, config=STRICT)
class Launch:
    """Processes of this node and their rendezvous with other nodes; `rdzv` is HOST:PORT, times are in seconds."""

    name: str
    device: Literal["auto", "cpu", "cuda", "mps"]
    nproc: Count | Literal["auto"]
    nnodes: Annotated[Count, JOB]
    rdzv: Annotated[HostPort | None, JOB]
    rdzv_timeout: Count
    max_restarts: Annotated[int, Field(ge=0)]
    gradient_dtype: Literal["float32", "bfloat16"]
    rehearsal: Literal["on", "off"]
    numa: Literal["on", "off"]
    hang_timeout: Positive | None

    @property
    def nodes_here(self) -> int:
        """How many nodes are on this machine: all that meet at its own loopback address, else one."""
        host = host_and_port(self.rdzv)[0] if self.rdzv else ""
        with suppress(ValueError):
            return self.nnodes if host == "localhost" or ip_address(host).is_loopback else 1
        return 1


@dataclass(frozen=True, config=STRICT)
class Stop:
    """What ends a run early: `patience` evaluations without a gain of more than `min_delta` in `metric`, or `minutes`.

    A new run has the most epochs, up to its own, that fit in the minutes by the measured time of its steps.
    """

    minutes: Positive | None
    patience: Count | None
    min_delta: NotNegative
    metric: str | None


@dataclass(frozen=True, config=STRICT)
class Checkpoint:
    """When to save checkpoints, besides at the end and on a stop; `every_minutes` counts from the last checkpoint."""

    every: Duration
    every_minutes: Positive | None
    keep: Count
    best: bool
    asynchronous: bool
    on_failure: Literal["continue", "stop"]
    mirror: Url | None


@dataclass(frozen=True, config=STRICT)
class NonFinite:
    """The reaction to a loss or gradients that are not finite; after `limit` in a row the run ends."""

    policy: Literal["skip", "stop"]
    limit: Count


@dataclass(frozen=True, config=STRICT)
class RunConfig:
    """One training run, complete. `batch_size` is global: the number of GPUs never changes the mathematics.

    `auto` is replaced by a number, measured on this machine's GPUs, before a run is written; that of `compile` and
    `cuda_graphs` by `on` where it is predicted to be faster on them, and is else `off`.
    """

    recipe: str | None
    code: Annotated[list[str], RESUME, PLACE]
    code_sha256: list[str]
    fidelity: Literal["ours", "published"]
    epochs: Annotated[Count, RESUME]
    batch_size: Count | Literal["auto"]
    eval_batch_size: Annotated[Count, RESUME, EVALUATION]
    device_batch_size: Annotated[Count | None, RESUME]
    eval_every: Annotated[Duration, RESUME]
    metric: str | None
    target: Annotated[Target | None, RESUME]
    seed: Annotated[int, Field(ge=0, lt=2**63)]
    precision: Literal["auto", "bf16", "fp16", "fp32"]
    deterministic: Annotated[bool, RESUME]
    compile: Literal["auto", "off", "on", "require"]
    cuda_graphs: Annotated[Literal["auto", "off", "on", "require"], RESUME]
    runs: Annotated[AnyPath, RESUME, PLACE, JOB]
    run_name: Annotated[FolderName | None, RESUME, PLACE, JOB]
    image: Image
    model: Annotated[ModelConfig, Group("model", ModelConfig, "models"), Role("resume", ("checkpointing",))]
    dataset: Dataset
    dataloader: Annotated[
        LoaderConfig,
        Group("dataloader", LoaderConfig, "data.loaders"),
        Role("resume", ("workers", "prefetch")),
        Role("evaluation", ("workers", "prefetch")),
        Role("absolute", ("folder", "train", "val")),
    ]
    optimizer: Annotated[OptimizerConfig, Group("optimizer", OptimizerConfig, "optimizers")]
    schedule: Annotated[ScheduleConfig, Group("schedule", ScheduleConfig, "schedules")]
    loss: Annotated[LossConfig, LOSSES]
    task: Annotated[TaskConfig, TASKS]
    algorithms: Annotated[Algorithms, ALGORITHMS]
    callbacks: Annotated[dict[str, Callback], Group("callbacks", Callback, many=dict), RESUME]
    metrics: Annotated[dict[str, OwnMetric], Group("metrics", OwnMetric, many=dict)]
    stop: Annotated[Stop, RESUME]
    checkpoint: Annotated[Checkpoint, RESUME]
    nonfinite: Annotated[NonFinite, RESUME]
    launch: Annotated[Launch, RESUME, EVALUATION]
    hardware: Annotated[Hardware, RESUME]
    logger: Annotated[LoggerConfig, LOGGER, RESUME]

    def __post_init__(self) -> None:
        if not isinstance(self.task, Unread):
            self.task.set_metrics(self.metrics, self.metric)
            self.task.check_views(self)

    def scaled_size(self, size: SizeT) -> SizeT | int:
        """Scale a size of `image` to the data set's native size, in steps of four pixels.

        A size already specified for the native size stays unchanged.
        """
        reference, native = self.image.reference, self.dataset.native_size
        return size if reference == native else max(4, round(size * native / reference / 4) * 4)
