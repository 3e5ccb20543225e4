"""What is known of an algorithm without its tensors: where in the loop it acts, when, and with what not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, Self

from launcher.errors import Problem

if TYPE_CHECKING:
    from launcher.config.schema import RunConfig

# The points of the loop, in its order: the methods of `launcher.algorithms.base.Algorithm` that it calls there.
POINTS = (
    "change_model",  # surgery, before the optimizer and DDP see the parameters
    "change_order",  # which sample indices an epoch reads
    "change_image",  # one uint8 image in a loader's worker process, after crop and flip
    "before_step",  # which parameters learn
    "change_batch",  # a batch on the device, normalised at place 0: uint8 before it, floating point after it
    "compute_gradients",  # forward and backward passes
    "change_gradients",  # before the optimizer's step, unscaled and averaged over ranks
    "after_step",  # after each optimizer step
    "evaluation_weights",  # what evaluation and export use
)
# The loop's own work among what changes a batch.
NORMALIZE = "<normalize>"
# Height and width in pixels.
Size = tuple[int, int]


class RunPlan(Protocol):
    """What a declaration may ask of a run's plan (`launcher.plan.plan.Plan`)."""

    @property
    def config(self) -> RunConfig: ...
    @property
    def steps_per_epoch(self) -> int: ...
    @property
    def total_steps(self) -> int: ...
    @property
    def train_size(self) -> int: ...
    @property
    def rank_batch(self) -> int: ...
    @property
    def accumulation(self) -> int: ...
    def steps(self, duration: str) -> int: ...
    def every(self, duration: str) -> int: ...


class Declaration:
    """What algorithms, optimizers and tasks state of themselves: when they act, what cannot work, and what to look at.

    excludes: with what it has no defined meaning, and why: of an algorithm others, of an optimizer points of the loop.
    """

    excludes: ClassVar[Mapping[str, str]] = {}

    def acts_at(self, plan: RunPlan, step: int) -> int | None:
        """For one that does more at some steps: 0 at the others, else a number that steps of equal cost share."""
        return None

    def problems(self, plan: RunPlan) -> Iterator[Problem]:
        """What cannot work about its values; an algorithm's keys are its fields' names."""
        yield from ()

    def notes(self, plan: RunPlan) -> Iterator[str]:
        """What works but is worth a look before the run."""
        yield from ()


class AlgorithmConfig(Declaration):
    """An algorithm's declaration: its values are the fields of a frozen dataclass; the launcher reads the rest.

    places: at each point of the loop at which it acts, its place among the algorithms there; smaller ones come first.
    spares_pretrained: it is of use only with pretrained weights.
    in_channels_last: it puts weights and images into channels-last memory order.
    """

    places: ClassVar[Mapping[str, int]] = {}
    spares_pretrained: ClassVar[bool] = False
    in_channels_last: ClassVar[bool] = False

    def __init_subclass__(cls, *, excludes: Mapping[str, str] | None = None, **places: int) -> None:
        cls.places, cls.excludes = places, excludes or {}

    def place(self, point: str) -> int | None:
        """Its place at a point with these values; None: it does not act there."""
        return self.places.get(point)

    def loaded_size(self, plan: RunPlan, step: int) -> int | None:
        """Size in pixels of the crops that it has the loader make for a step; None: any."""
        return None

    def size_after(self, plan: RunPlan, step: int, size: Size) -> Size:
        """Size of images of `size` after `change_batch` at a step; at later steps it is never smaller."""
        return size

    @classmethod
    def advice(cls, values: Self | None, bound: Literal["data", "step"]) -> str | None:
        """What to change about it in a run that loading or the steps bound; values: None where it is off."""
        return None
