"""Decide whether a run writes the FFCV files of its images, first or while it trains, by its predicted times."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.config.choices import LoaderConfig
from launcher.config.gpus import gpus
from launcher.config.schema import Hardware
from launcher.data.loaders.ffcv import FFCVLoader
from launcher.installation import page
from launcher.measure.estimate import Span
from launcher.plan.plan import Plan
from launcher.records.progress import duration
from launcher_lab.predict.machines import decoding_threads, gpu_of
from launcher_lab.predict.prediction import Prediction, Predictor, efficiencies
from launcher_lab.predict.profiles import Correction, correction, gpu_named, read_profiles

# The part of a run that files must save to be worth a line.
_NOTED = 0.05


@dataclass(frozen=True)
class FilesFirst:
    """Whether a run writes files, first or `while_training`, and a line on that (empty if they save little).

    The others are its predictor and prediction, and how much the files take.
    """

    writes: bool
    while_training: bool
    line: str
    predictor: Predictor
    prediction: Prediction
    gigabytes: float = 0.0


# gigabytes -> bytes/s of the disk that files of this size are written to; None if unknown
Speed = Callable[[float], float | None]


def files_first(plan: Plan, files: LoaderConfig, machine: Hardware, speed: Speed = lambda _: None) -> FilesFirst | None:
    """Decide for a plan that reads images, and the loader of its files; None if it cannot be predicted here.

    machine: its `gpu` is a name of conf/gpus.yaml or of torch's, its `disk` what is free for the files. speed: called
    only if files are written unless the disk is too slow.
    """
    gpu = machine.gpu if machine.gpu in gpus() else gpu_named(str(machine.gpu))
    if gpu is None:
        return None
    try:
        profiles, _ = read_profiles(Path(plan.config.runs))
        corrected = correction(plan, gpu, profiles, efficiencies())
        return predicted(Predictor(plan), replace(machine, gpu=gpu), files, corrected, speed)
    except Exception:  # note: a network of the user's that cannot be traced must not stop a run
        return None


def predicted(
    predictor: Predictor,
    machine: Hardware,
    files: LoaderConfig | None,
    corrected: Correction,
    speed: Speed = lambda _: None,
) -> FilesFirst:
    """Predict a plan on a machine as it would run there: by the loader of `files` if it would write them."""

    def by(one: Predictor, *, writes: bool) -> FilesFirst:
        prediction = one.on(machine, gpu_of(machine), correction=corrected.factor, made_from=corrected.made_from)
        return FilesFirst(writes, False, "", one, prediction)

    images = by(predictor, writes=False)
    if files is None:
        return images
    plan = replace(predictor.plan, config=replace(predictor.plan.config, dataloader=files))
    return _faster(images, by(Predictor(plan, predictor.counted), writes=True), speed)


def _faster(images: FilesFirst, files: FilesFirst, speed: Speed) -> FilesFirst:
    """Return the fastest way, with a line on what files cost and save."""
    plan, values = images.predictor.plan, efficiencies()["prepare"]
    wall, minutes = images.prediction.estimate.wall.seconds, plan.config.stop.minutes
    # note: a run of limited minutes saves a part of them
    part = 1.0 if minutes is None else min(1.0, 60 * minutes / wall)
    saved = part * (wall - files.prediction.estimate.wall.seconds)
    if saved <= _NOTED * part * wall:
        return images
    samples = plan.train_samples + (plan.config.dataset.val_samples or 0)
    machine, gigabytes = images.prediction.machine, samples * values["bytes"] / 1e9
    gain = f"FFCV files would save {duration(saved)} of {duration(part * wall)}"
    if problem := _no_room(machine, gigabytes):
        return replace(images, line=f"reading the images: {gain}, but {problem}")
    disk, slow = values["disk"], "or twice as long on a slow disk"
    writing, while_training = _seconds(files, samples, disk)
    if saved >= values["margin"] * writing and (measured := speed(gigabytes)) and measured < disk:
        writing, while_training = _seconds(files, samples, measured)
        slow = f"as the disk writes {measured / 1e9:.2g} GB/s"
    takes = f"writing them takes some {duration(writing)} and {gigabytes:.1f} GB"
    if saved < values["margin"] * writing:
        pays = f"{takes}, {slow}; train prepare dataset.path=FOLDER writes them for several runs"
        return replace(images, line=f"reading the images: {gain}, but {pays}")
    when = "while the first epoch trains" if while_training else "first"
    line = f"{gain}, so they are written {when}; {takes}; their pixels are FFCV's ({page('data')})"
    line += "; dataloader=torchvision reads the images"
    line += ", train prepare dataset.path=FOLDER writes them first" if while_training else ""
    prediction = _with_writing(files.prediction, writing)
    return replace(files, while_training=while_training, line=line, prediction=prediction, gigabytes=gigabytes)


def _no_room(machine: Hardware, gigabytes: float) -> str:
    """Return why files of this size are not written; empty if they fit into the disk, if that is known, and memory."""
    if machine.disk is not None and gigabytes > machine.disk:
        return f"they need {gigabytes:.1f} GB, and the disk has {machine.disk:.1f}; set dataloader.folder to another"
    memory = efficiencies()["prepare"]["memory"] * (machine.memory or 0) * 2**30 / 1e9
    if gigabytes > memory:
        return f"their {gigabytes:.1f} GB do not fit into memory, and the disk may be slower than the images' decoding"
    return ""


def _seconds(files: FilesFirst, samples: int, disk: float) -> tuple[float, bool]:
    """Return the seconds that writing to a disk of so many bytes/s adds to a run, and whether it trains meanwhile."""
    values, machine = efficiencies()["prepare"], files.prediction.machine
    of_disk = samples * values["bytes"] / disk
    # note: cores and disk write at the same time
    first = max(samples * _of_all_cores(machine, values["stored"]), of_disk)
    meanwhile = _seconds_while_training(files, of_disk)
    return min(first, meanwhile), meanwhile < first


def _of_all_cores(machine: Hardware, images: float) -> float:
    """Return the seconds of all cores for an image, of which one does so many `images` a second alone."""
    values, cores = efficiencies(), machine.cores or 1
    threads = decoding_threads("torchvision", cores, cores, values) * values["loaders"]["share"]["torchvision"]
    return float(1 / (threads * images))


def _seconds_while_training(files: FilesFirst, of_disk: float) -> float:
    """Return the seconds by which writing prolongs the first epoch and evaluation; infinite where a run refuses it.

    Encoding is added to the loading of a step, which the step may hide. of_disk: the least seconds of the epoch.
    """
    plan, sizes = files.predictor.plan, files.prediction.estimate.sizes
    loader = plan.config.dataloader
    if not isinstance(loader, FFCVLoader) or loader.cannot_write(plan.config):
        return math.inf
    values = efficiencies()["prepare"]
    an_image = _of_all_cores(files.prediction.machine, values["core"] * values["threads"])
    at = {size.view: size for size in sizes}
    first = [at[plan.view(step)] for step in range(plan.epoch_steps.length(0))]
    more = plan.batch_size * an_image
    usual = sum(max(one.step_seconds, one.load_seconds) for one in first)
    writing = sum(max(one.step_seconds, one.load_seconds + more) for one in first)
    return max(writing, of_disk) - usual + (plan.config.dataset.val_samples or 0) * an_image


def _with_writing(prediction: Prediction, writing: float) -> Prediction:
    """Add the seconds of writing to a run."""
    spread, estimate = 1 + efficiencies()["spread"]["loader"], prediction.estimate
    wall = Span(
        estimate.wall.seconds + writing, estimate.wall.low + writing / spread, estimate.wall.high + writing * spread
    )
    longer = replace(estimate, wall=wall, start_seconds=estimate.start_seconds + writing)
    return replace(prediction, estimate=longer, writing=writing)
