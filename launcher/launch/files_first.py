"""Write the FFCV files that a run reads before it starts, and note what files would save a run without them."""

from collections.abc import Sequence
from typing import NamedTuple

from launcher import paths
from launcher.compute.probe import usable_cores
from launcher.config.compose import AUTO, Composed
from launcher.config.gpus import efficiencies
from launcher.config.schema import RunConfig
from launcher.config.yaml_file import read_mapping
from launcher.console import console
from launcher.counts import count_of
from launcher.data.ffcv.dataset import FFCVDataset
from launcher.data.index import Images
from launcher.data.loaders.ffcv import FFCVFile, FFCVLoader
from launcher.data.sources.layout import is_no_folder
from launcher.data.workers import Report
from launcher.errors import UserError
from launcher.files.disk import line
from launcher.files.locks import Held, lock, note_holder
from launcher.plan.plan import Plan
from launcher.records.progress import duration

# Of the folder of files, while a process writes them.
LOCK = ".writing"
# Seconds of loading that files must save to be worth a line.
_NOTED = 60
_LOADERS = ("ffcv", "torchvision")


class Cost(NamedTuple):
    """What files take to write, and the seconds of a run's loading on all cores: from files, and from the images."""

    writing: float
    gigabytes: float
    loading_files: float
    loading_images: float

    def __str__(self) -> str:
        return f"some {duration(self.writing)} and {self.gigabytes:.1f} GB"


def write_first(config: RunConfig, images: Sequence[Images], report: Report) -> bool:
    """Write the FFCV files that a run reads if they are missing, as `train prepare`; return whether they were.

    One process writes; others wait for it. images: those of training and validation if they are listed.

    Raises UserError if they cannot be written, or an image cannot be decoded.
    """
    if not (data := _missing(config)):
        return False
    from launcher.data.ffcv.prepare import prepare  # note: OpenCV

    folder = data.path("train").parent
    # note: a label of several numbers is stored as a row of them
    listed = images[:2] if data.labelled == "class" and not data.dataset.skip_bad else ()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / LOCK).open("a+b") as file:
            try:
                release = lock(file.fileno(), folder / LOCK)
            except Held as holder:
                _show(f"{holder} writes FFCV files in {folder}; waiting for them")
                release = lock(file.fileno(), folder / LOCK, wait=True)
            try:
                note_holder(file.fileno())
                # note: another process may have written them meanwhile
                if data.are_missing:
                    _show(f"writing the FFCV files in {folder} first; if it is stopped, the same command continues")
                for path, _ in prepare(data, report, listed):
                    _show(f"{path} is written")
            finally:
                release()
    except OSError as error:
        raise UserError(line(error, folder)) from None
    return True


def note_on_files(composed: Composed, plan: Plan) -> list[str]:
    """Return a note on the files that a run writes first, or that `train prepare` could write for `dataloader=auto`."""
    cost = cost_on(plan, usable_cores())
    if data := _missing(plan.config):
        return [f"the FFCV files in {data.path('train').parent} are missing, and the run writes them first: {cost}"]
    if composed.origins.get("dataloader.name") != AUTO or isinstance(plan.config.dataloader, FFCVLoader):
        return []
    saved = cost.loading_images - cost.loading_files
    dataset, task = plan.config.dataset, plan.config.task
    if saved < max(_NOTED, efficiencies()["prepare"]["margin"] * cost.writing) or not _may_be_beside(plan.config):
        return []
    values = read_mapping(paths.CONF / "dataloader" / "ffcv.yaml")
    loader = FFCVLoader(**{**values, "files": FFCVFile(**values["files"])})
    command = FFCVDataset(loader, dataset, plan.config.seed, task.labelled).command
    return [
        f"reading the images: to load {count_of(plan.epochs, 'epoch')} takes {count_of(usable_cores(), 'core')} "
        f"{duration(cost.loading_images)}, and {duration(cost.loading_files)} from FFCV files, which take {cost} "
        f"once: {command}"
    ]


def gigabytes_first(plan: Plan) -> float:
    """Return the size of the FFCV files that a run reads, and writes first where they are missing; 0 without any."""
    return cost_on(plan, 1).gigabytes if isinstance(plan.config.dataloader, FFCVLoader) else 0.0


def cost_on(plan: Plan, cores: int) -> Cost:
    """Predict the cost of a plan's FFCV files on so many cores, from the measurements of conf/efficiencies.yaml."""
    values, loaders = efficiencies()["prepare"], efficiencies()["loaders"]

    def images_a_second(loader: str, rate: float) -> float:
        threads = cores * (1 + loaders[loader]["second_thread"]) / loaders["threads_a_core"]
        return float(threads * loaders["share"][loader] * rate)

    images = plan.train_samples + (plan.config.dataset.val_samples or 0)
    encoding, disk = (
        images / images_a_second("torchvision", values["stored"]),
        images * values["bytes"] / values["disk"],
    )
    loading = (plan.train_samples * plan.epochs / images_a_second(one, loaders[one]["rates"][-1]) for one in _LOADERS)
    # note: cores and disk write at the same time
    return Cost(max(encoding, disk), images * values["bytes"] / 1e9, *loading)


def check_written(config: RunConfig) -> None:
    """Raise UserError if a config reads files that only a run, or `train prepare`, writes."""
    if data := _missing(config):
        data.open("train")
        data.open("val")


def _may_be_beside(config: RunConfig) -> bool:
    """Return whether files of a config's images may be beside these."""
    dataset = config.dataset
    is_known = dataset.path is not None and not is_no_folder(dataset.path)
    return is_known and dataset.is_rgb and not dataset.folds and config.task.labelled == "class"


def _missing(config: RunConfig) -> FFCVDataset | None:
    """Return the files of a config if it reads files that are missing, and can be written here."""
    if not isinstance(config.dataloader, FFCVLoader):
        return None
    data = FFCVDataset.of(config)
    return data if data.are_missing else None


def _show(text: str) -> None:
    console().print(f"note: {text}", style="yellow", markup=False, soft_wrap=True)
