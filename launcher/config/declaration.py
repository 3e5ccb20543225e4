"""Declarations of algorithms without tensors: where and when each acts in the loop, and what it excludes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self, get_args, get_type_hints

from pydantic.dataclasses import dataclass

from launcher.config.fields import STRICT, AnyPath
from launcher.errors import Problem

if TYPE_CHECKING:
    from launcher.config.schema import RunConfig

# The points of the loop, in its order: the methods of `launcher.algorithms.base.Algorithm` that it calls there.
POINTS = (
    "change_model",  # before the optimizer is built
    "change_loss",  # the loss of outputs and targets, once
    "change_order",  # which sample indices an epoch reads
    "change_image",  # one uint8 image in a loader's worker process, after crop and flip
    "before_step",  # which parameters are trained
    "change_batch",  # a batch on the device; at place 0 the task prepares it: images are uint8 before, normalized after
    "compute_gradients",  # forward and backward passes
    "change_gradients",  # before the optimizer's step, unscaled and averaged over ranks
    "after_step",  # after optimizer steps that were not dropped
    "evaluation_weights",  # the weights that evaluation and export use
)
# The task's own step among the changes of a batch.
PREPARE = "<prepare>"
# Of an input: height and width in pixels, or the length of a sequence. Its view is the shorter edge, or the length.
Size = tuple[int, ...]


class RunPlan(Protocol):
    """The part of a run's plan (`launcher.plan.plan.Plan`) that declarations use."""

    @property
    def config(self) -> RunConfig: ...
    @property
    def steps_per_epoch(self) -> int: ...
    @property
    def total_steps(self) -> int: ...
    @property
    def full_size(self) -> Size: ...
    @property
    def full_view(self) -> int: ...
    @property
    def rank_batch(self) -> int: ...
    @property
    def accumulation(self) -> int: ...
    @property
    def epochs(self) -> int: ...
    def view(self, step: int) -> int: ...
    def loaded_view(self, step: int) -> int: ...
    def schedule_steps(self, duration: str) -> int: ...
    def steps(self, duration: str) -> int: ...
    def every(self, duration: str) -> int: ...
    def part(self, step: int, parts: int) -> int: ...
    def epoch_start(self, step: int) -> int: ...


class Declaration:
    """Base of algorithms, optimizers, schedules and tasks: when they act, which values are invalid, and what to note.

    excludes: incompatible algorithms (for an optimizer: points of the loop), each with the reason.
    lacking: what it needs that a kind of device lacks, by the kind.
    """

    excludes: ClassVar[Mapping[str, str]] = {}
    lacking: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def option_names(cls) -> tuple[str, ...]:
        """Return the names of the options whose values are of this class."""
        kind: Any = cls
        return _literals_of_name(kind)

    def acts_at(self, plan: RunPlan, step: int) -> Any:
        """Return a number that steps of equal cost share, 0 for idle steps; None if all steps cost the same.

        step: may also be an array of steps, for an array of numbers, so combine conditions by `&`.
        """
        return None

    def problems(self, plan: RunPlan) -> Iterator[Problem]:
        """Yield the errors of its values; an algorithm's keys are its field names."""
        yield from ()

    def notes(self, plan: RunPlan) -> Iterator[str]:
        """Yield notes to read before the run."""
        yield from ()


class AlgorithmConfig(Declaration):
    """Declaration of an algorithm: its values are the fields of a frozen dataclass.

    name: that of its file if the class has it without underscores, else that of the class in lower case.
    places: its place at each point of the loop where it acts, in ascending order.
    needs_pretrained: it is useful only with pretrained weights.
    in_channels_last: it converts weights and images to channels-last memory order.
    acts_on: the parts of a record that it handles if it is for some records only (`TaskConfig.needs`).
    needs_classes: why it has no meaning for image regression. needs_rgb: why it is for 8-bit RGB images alone.
    """

    name: ClassVar[str]
    places: ClassVar[Mapping[str, int]] = {}
    needs_pretrained: ClassVar[bool] = False
    in_channels_last: ClassVar[bool] = False
    acts_on: ClassVar[tuple[str, ...]] = ()
    needs_classes: ClassVar[str | None] = None
    needs_rgb: ClassVar[str | None] = None

    def __init_subclass__(
        cls, *, excludes: Mapping[str, str] | None = None, acts_on: tuple[str, ...] = (), **places: int
    ) -> None:
        if "name" in vars(cls):
            return  # note: of a target, which has all else of its base
        file, own = cls.__module__.rpartition(".")[2], cls.__name__.lower()
        cls.name = file if file.replace("_", "") == own else own
        cls.places, cls.excludes, cls.acts_on = places, excludes or {}, acts_on

    @classmethod
    def option_names(cls) -> tuple[str, ...]:
        return (cls.name,) if cls.places else ()

    def place(self, point: str) -> int | None:
        """Return its place at a point; None if it does not act there."""
        return self.places.get(point)

    def loaded_view(self, plan: RunPlan, step: int) -> int | None:
        """Return the view of the samples that the loader produces at a step; None for any."""
        return None

    def size_after(self, plan: RunPlan, step: int, size: Size) -> Size:
        """Return the size of inputs of `size` after `change_batch` at a step; it never shrinks at later steps."""
        return size

    def samples_after(self, plan: RunPlan, step: int, samples: int) -> int:
        """Return how many of a rank's samples are left after `change_batch` at a step."""
        return samples

    def other_view(self, plan: RunPlan, step: int) -> tuple[str, int] | None:
        """Return the key and the view of an additional forward pass at a step; None without one."""
        return None

    def following(self, plan: RunPlan, step: int) -> Mapping[str, float]:
        """Return the values that follow the run, by the names of their lists, at a step."""
        return {}

    def probes(self, plan: RunPlan) -> bool:
        """Return whether only the last layer learns in the whole run."""
        return False

    def network_values(self) -> dict[str, Any] | None:
        """Return the values by which `change_model` changes what is evaluated; None if evaluation sees no change."""
        return None

    @classmethod
    def advice(cls, values: Self | None, bound: Literal["data", "step"]) -> str | None:
        """Return advice for a run whose bottleneck is data loading or the step; values: None if it is off."""
        return None


@cache
def _literals_of_name(kind: Any) -> tuple[str, ...]:
    return get_args(get_type_hints(kind)["name"])


@dataclass(config=STRICT)
class TeachingConfig(AlgorithmConfig):
    """Values of an algorithm that learns from another network: a run folder, an export, or a model of timm."""

    teacher: AnyPath | None
    teacher_sha256: str | None

    @property
    def key(self) -> str:
        """The key of the teacher, for errors."""
        return f"algorithms.{self.name}.teacher"
