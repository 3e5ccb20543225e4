"""The training images of a run's steps, by its own loader, draws and algorithms, without a network."""

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from launcher.algorithms.base import Algorithm, Context, Transform
from launcher.algorithms.engine import Engine
from launcher.config.declaration import PREPARE, Size
from launcher.data.batch import Batch, Moment, to_device
from launcher.data.images import ImageReader
from launcher.data.loaders.torchvision import TorchvisionLoader
from launcher.data.loading import Loaders, build_loaders
from launcher.data.masks.values import IGNORED
from launcher.data.sampling import Request, Shard, train_requests
from launcher.plan.plan import Plan
from launcher.rank.group import single_rank
from launcher.tasks import build_task
from launcher.tasks.images import displayed
from launcher.tasks.pixels import overlaid

LOADED, ALL = "as loaded", "all together"
_CPU = torch.device("cpu")
_VISIBLE = 0.005  # weight of a class above that of the others
_MOST_WEIGHTS = 6  # of a target
_MOST_TRIED = 50  # images of a class, if files cannot be decoded


@dataclass(frozen=True)
class Example:
    """A training image at a step: uint8 pixels [H, W, 3] by algorithm, its label, and its target after all of them.

    Both map classes to weights, of the target's the largest, or numbers to their values.
    """

    label: dict[int, float]
    index: int
    step: int
    versions: dict[str, np.ndarray]
    target: dict[int, float]


def loaders_here(plan: Plan, skipped: Collection[str] = ()) -> Loaders:
    """Return the loaders of a run, in this process."""
    loader = plan.config.dataloader
    # note: few images are decoded before worker processes would start
    values = replace(loader, workers=0) if isinstance(loader, TorchvisionLoader) else loader
    here = replace(plan, config=replace(plan.config, dataloader=values))
    return build_loaders(here, single_rank(_CPU), skipped=skipped)


def examples(
    plan: Plan, reader: ImageReader, classes: Sequence[int], each: int, steps: Sequence[int]
) -> list[list[Example]]:
    """Return for each step the images of the classes that a run trains on at it, or at the nearest steps of its epoch.

    each: images of a class; of a task with numbers, of all images.

    Raises UserError if the images cannot be read.
    """
    run = _Run(plan, reader)
    return [list(run.near(step, classes, each)) for step in steps]


class _Run:
    """A run's order, images and algorithms, on the CPU and in float32."""

    def __init__(self, plan: Plan, reader: ImageReader):
        config = plan.config
        self._plan, self._is_readable, self._reader = plan, reader.is_readable, reader
        self._engine = Engine(Context(plan, config.task.outputs(config.dataset)))
        self._task = build_task(config, facts=config.task.of_training(reader.labels))
        self._in_workers, self._in_step = (config.algorithms.acting(at) for at in ("change_image", "change_batch"))
        # note: what a forward pass changes depends on the weights then
        seen = {name: one for name, one in self._engine.active.items() if not one.runs_others}
        self._names = [name for name in (*self._in_workers, *self._in_step) if name in seen]

    def near(self, step: int, classes: Sequence[int], each: int) -> Iterator[Example]:
        """Yield images of each class at the steps nearest to a step, in the order of classes."""
        plan, labels, everything = self._plan, self._reader.labels, Shard(0, 1, 0, 0, _CPU)
        epoch, number = divmod(step, plan.steps_per_epoch)
        requests = train_requests(plan, everything, labels, epoch, 0, self._engine.change_order)
        order = np.concatenate([request.indices for request in requests])
        nearest = np.argsort(np.abs(np.arange(len(order)) // plan.batch_size - number), kind="stable")
        of = labels[order[nearest] % len(labels)]
        chosen: list[int] = []
        for label in classes:
            has = of == label if of.ndim == 1 else of[:, label] > 0 if of.dtype == np.uint8 else np.ones(len(of), bool)
            some = (place for place in nearest[has][:_MOST_TRIED].tolist() if self._is_readable(order[place]))
            chosen += itertools.islice((place for place in some if place not in chosen), each)
        shown: dict[int, Example] = {}
        # note: a rank's batch at a step is a run of samples in this order
        for part in dict.fromkeys(place // plan.rank_batch for place in chosen):
            first = part * plan.rank_batch
            at, rank = divmod(part, plan.world_size)
            moment = Moment(plan.config.seed, epoch, step - number + at, plan.total_steps, rank)
            inside = [place - first for place in chosen if place // plan.rank_batch == part]
            found = self._examples(moment, order[first : first + plan.rank_batch], inside)
            shown |= {first + place: example for place, example in found}
        yield from (shown[place] for place in chosen if place in shown)

    def _examples(self, moment: Moment, whole: np.ndarray, places: list[int]) -> Iterator[tuple[int, Example]]:
        """Yield the images at some places of a rank's batch, whose samples are `whole`, int64 [B].

        Only these images and those mixed with them are loaded.
        """
        view, size = self._plan.loaded_view(moment.step), self._plan.loaded_size(moment.step)
        mixed = [order for order in self._orders(moment, len(whole), size) if order is not None]
        with_others = {place: {place, *(int(order[place]) for order in mixed)} for place in places}
        places = [place for place in places if all(self._is_readable(whole[one]) for one in with_others[place])]
        loaded = np.array(sorted(set().union(*(with_others[place] for place in places))), np.int64)
        if not len(loaded):
            return
        request = Request(moment, whole[loaded], view)
        images, labels, indices = next(iter(self._reader.batches([request])))
        batch = Batch(images, self._task.targets(labels), indices, moment)
        choices = {LOADED: [], **{name: [name] for name in self._names}, ALL: self._names}
        batches = {name: self._changed(batch, chosen, len(whole), loaded) for name, chosen in choices.items()}
        pixels = {name: self._pixels(one) for name, one in batches.items()}
        for place in places:
            row = int(np.searchsorted(loaded, place))
            versions = {name: images[row] for name, images in pixels.items()}
            label, target = (self._values(of) for of in (batch.targets[row], batches[ALL].targets[row]))
            yield place, Example(label, int(indices[row]), moment.step, versions, target)

    def _values(self, target: Tensor) -> dict[int, float]:
        """Return what stands out in a target: an index [], weights [classes], numbers [K], or shares of pixels."""
        if self._task.labelled == "pixels":
            counts = torch.bincount(target[target != IGNORED], minlength=1)
            return {n: count / max(1, int(counts.sum())) for n, count in enumerate(counts.tolist()) if count}
        if self._task.labelled != "numbers":
            return _largest(target)
        names = [*map(str, range(len(target)))]
        return {int(name): value for name, value in self._task.predictions(target[None], names, len(names))[0]}

    def _changed(self, batch: Batch, names: Collection[str], count: int, loaded: np.ndarray) -> Batch:
        """Return the batch after some algorithms, in the run's order; `loaded` are its places in one of `count`."""
        for name in self._in_workers:
            if name in names:
                rows = zip(batch.inputs.permute(0, 2, 3, 1).numpy(), batch.indices.tolist(), strict=True)
                changed = [self._engine.active[name].change_image(one, at, batch.moment) for one, at in rows]
                batch = replace(batch, inputs=torch.from_numpy(np.stack(changed)).permute(0, 3, 1, 2))
        for name in self._in_step:
            if name == PREPARE:
                batch = self._task.prepare(batch)
            elif name in names:
                transform = self._transform(self._engine.active[name], batch, count, loaded)
                batch = transform.apply(batch, *to_device(*transform.arrays, device=_CPU)) if transform else batch
        return batch

    def _transform(self, algorithm: Algorithm, batch: Batch, count: int, loaded: np.ndarray) -> Transform | None:
        """Return an algorithm's change of the images at the places `loaded` of a batch of `count`."""
        height, width = batch.inputs.shape[-2:]
        whole, order = _whole(algorithm, batch.moment, count, (height, width))
        if whole is None or order is None:
            return algorithm.change_batch(batch, (height, width))
        # note: images that are loaded only to be mixed with others may get a wrong one themselves
        rows = np.minimum(np.searchsorted(loaded, order[loaded]), len(loaded) - 1)
        return replace(whole, arrays=[rows if array is order else array for array in whole.arrays])

    def _orders(self, moment: Moment, count: int, size: Size) -> Iterator[np.ndarray | None]:
        """Yield the orders in which algorithms mix a batch of images of a size, also of that after other algorithms."""
        after = size
        for name in self._in_step:
            if name in self._names:
                algorithm = self._engine.active[name]
                yield from (_whole(algorithm, moment, count, one)[1] for one in {size, after})
                after = algorithm.size_after(self._plan, moment.step, after)

    def _pixels(self, batch: Batch) -> np.ndarray:
        """Return normalized images as uint8 [B, H, W, 3], under the colours of their masks if they have some."""
        mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in self._plan.config.dataset.normalization)
        pixels = displayed(batch.inputs * std + mean, self._plan.config.dataset)
        if self._task.labelled != "pixels":
            return pixels
        return np.stack([overlaid(*pair) for pair in zip(pixels, batch.targets.byte().numpy(), strict=True)])


def _whole(algorithm: Algorithm, moment: Moment, count: int, size: Size) -> tuple[Transform | None, np.ndarray | None]:
    """Return an algorithm's change of a rank's batch, and the order of samples in it, if it mixes them.

    The batch has one sample number, so that of all arrays only such an order has its length.
    """
    one, everything = np.zeros(1, np.int64), np.arange(count)
    images, labels = torch.empty(1).expand(count, 1, *size), torch.zeros(count, dtype=torch.int64)
    transform = algorithm.change_batch(Batch(images, labels, one, moment), size)
    arrays = transform.arrays if transform and count > 1 else ()
    orders = (array for array in arrays if array.shape == (count,) and np.array_equal(np.sort(array), everything))
    return transform, next(orders, None)


def _largest(target: Tensor) -> dict[int, float]:
    """Return the classes of a target, an index [] or weights [classes], that stand out, the largest first."""
    if target.ndim == 0:
        return {int(target): 1.0}
    values, numbers = target.float().topk(min(_MOST_WEIGHTS, len(target)))
    # note: of several labels all may be set; smoothing moves 0 and 1 by the same
    background = min(float(target.min()), 1 - float(target.max())) + _VISIBLE
    return {int(n): float(v) for n, v in zip(numbers, values, strict=True) if v > background}
