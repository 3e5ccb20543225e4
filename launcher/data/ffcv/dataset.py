"""Paths and settings of a data set's FFCV files; imports neither FFCV nor torch."""

from dataclasses import asdict, dataclass
from pathlib import Path
from shlex import quote
from typing import Self

from launcher import paths
from launcher.config.schema import Dataset, RunConfig
from launcher.config.yaml_file import read_mapping
from launcher.data.builtin import shapes_folder
from launcher.data.ffcv.beton import Beton, manifest_path, open_beton
from launcher.data.loaders.ffcv import FFCVFile, FFCVLoader
from launcher.data.sources.layout import FFCV, is_no_folder
from launcher.errors import Problem, UserError
from launcher.files.disk import is_there

SPLITS = ("train", "val")
_SUFFIX = ".beton"


@dataclass(frozen=True)
class FFCVDataset:
    """The FFCV files of a data set; `seed` draws the validation split, as the images are `labelled`."""

    loader: FFCVLoader
    dataset: Dataset
    seed: int
    labelled: str

    @classmethod
    def of(cls, config: RunConfig) -> Self:
        """Return the files of a config with `dataloader=ffcv`.

        Raises UserError if images are other than 8-bit RGB.
        """
        assert isinstance(config.dataloader, FFCVLoader)
        if not config.dataset.is_rgb:
            message = f"has 8-bit RGB alone, not {config.dataset.channels} channels of {config.dataset.dtype}"
            raise UserError(Problem(f"{message}; set dataloader=torchvision", "dataloader", "ffcv"))
        return cls(config.dataloader, config.dataset, config.seed, config.task.labelled)

    def path(self, split: str) -> Path:
        """Return the path of a split's file: the one in the config, or the one named after its settings.

        Raises UserError if no folder is set.
        """
        file = getattr(self.loader, split)
        return Path(file) if file is not None else self._written(split)

    def open(self, split: str) -> Beton:
        """Open the file of a split.

        Raises UserError if the file is missing or damaged.
        """
        path = self.path(split)
        key = "dataloader.folder" if getattr(self.loader, split) is None else f"dataloader.{split}"
        file, upright = self._open(path, key), self.dataset.exif_orientation
        if file.manifest is not None and file.manifest.exif_orientation != upright:
            written = f"dataset.exif_orientation={str(not upright).lower()}"
            message = f"{path} was written with {written}; set it, or another dataloader.folder and run train prepare"
            raise UserError(Problem(message, "dataset.exif_orientation", upright))
        return file

    @property
    def are_missing(self) -> bool:
        """Whether some files are missing that a new run writes first; raises as `path`."""
        dataset, loader = self.dataset, self.loader
        if loader.train or loader.val or dataset.folds or not (dataset.is_built_in or dataset.path):
            return False
        return not all(is_there(path) for _, path in self.written())

    def are_written(self) -> bool:
        """Return whether all files of `train prepare` are there, with their manifests; raises as `path`."""
        if self.dataset.path is None:
            return False
        return all(is_written(path) for _, path in self.written())

    def written(self) -> list[tuple[str, Path]]:
        """Return split and path of each file that `train prepare` writes; raises as `path`."""
        return [(split, self.path(split)) for split in SPLITS]

    def _written(self, split: str) -> Path:
        """Return where `train prepare` writes a split."""
        fraction = self.dataset.val_split
        drawn = f"-val{100 * fraction:g}-seed{self.seed}" if fraction is not None else ""
        path = self._folder() / file_name(split, self.loader.files, drawn)
        if path.exists():
            return path
        # note: version 0.2 could write JPEGs with restart markers, which decode as others
        stem = file_name(split, self.loader.files).removesuffix(_SUFFIX)
        return next(iter(sorted(path.parent.glob(f"{stem}-restart*[0-9]{drawn}{_SUFFIX}"))), path)

    def _folder(self) -> Path:
        if self.loader.folder is not None:
            return Path(self.loader.folder)
        if self.dataset.is_built_in:
            return shapes_folder(self.dataset) / FFCV
        message = "missing; set dataloader.folder to the FFCV files or dataset.path to the images"
        if self.dataset.path is not None:
            if not is_no_folder(self.dataset.path):
                return Path(self.dataset.path) / FFCV
            message = f"missing, and FFCV files cannot be written to {self.dataset.path}; set a folder for them"
        raise UserError(Problem(message, "dataloader.folder", None))

    def _open(self, path: Path, key: str) -> Beton:
        if not path.is_file():
            raise UserError(
                Problem(f"{path.name} does not exist; a run writes it first, or type: {self.command}", key, path.parent)
            )
        return open_beton(path, key)

    @property
    def command(self) -> str:
        """The command that writes the files."""
        dataset, folder = self.dataset, self.loader.folder
        source = dataset.path or ("/data/images" if not dataset.is_built_in else None)
        words = f"train prepare dataset={dataset.name}" + (f" dataset.path={quote(source)}" if source else "")
        words += f" dataset.val_split={dataset.val_split} seed={self.seed}" if dataset.val_split is not None else ""
        words += "" if dataset.exif_orientation else " dataset.exif_orientation=false"
        words += f" dataloader.folder={quote(folder)}" if folder else ""
        usual = read_mapping(paths.CONF / "dataloader" / "ffcv.yaml")["files"]
        changed = {name: value for name, value in asdict(self.loader.files).items() if value != usual[name]}
        return words + "".join(f" dataloader.files.{name}={value}" for name, value in changed.items())


def is_written(path: Path) -> bool:
    """Return whether a file and its manifest are there."""
    return is_there(path) and is_there(manifest_path(path))


def file_name(split: str, files: FFCVFile, drawn: str = "") -> str:
    """Return a name such as train-500px-jpeg50-q90.beton; `drawn` describes the validation split."""
    return f"{split}-{files.max_side}px-jpeg{100 * files.jpeg_share:g}-q{files.quality}{drawn}{_SUFFIX}"
