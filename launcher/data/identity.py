"""What tells one data set from another: the names and sizes of its pictures, wherever they lie; imports no torch.

The fingerprint of a split is kept in the user's cache with the times at which its folders last changed: a second start
looks at the folders only. A file that is overwritten in place, at another size, is seen once its folder changes.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from launcher import atomic, paths
from launcher.config.layers import leaves
from launcher.config.resolved import as_mapping
from launcher.config.schema import FFCVLoader, RunConfig
from launcher.data.ffcv.file import Beton, FFCVDataset
from launcher.data.folder import Folder, is_folder, scan, sizes, splits, without
from launcher.data.shapes import drawn_as, ensure_folder
from launcher.data.sources.source import quiet
from launcher.data.unreadable import find_skipped
from launcher.errors import UserError

COUNTS = ("dataset.classes", "dataset.train_samples", "dataset.val_samples")
# note: what changed this lately may change again without another time
_SETTLED_NS = 2_000_000_000


def identity(config: RunConfig, skipped: Collection[str] | None = None) -> str:
    """Equal for equal pictures: on every machine, below any path, and in the FFCV files that were written from them.

    It counts the pictures that a run reads: without those `skipped`, which are found if None is given.

    Raises:
        UserError: the data set is not there, or cannot be read.
    """
    values = dict(leaves(as_mapping(config)))
    if isinstance(config.dataloader, FFCVLoader):
        return _of_splits(*(_of_file(FFCVDataset.of(config).open(split)) for split in ("train", "val")))
    if (known := built_in(values)) is not None:
        return known
    dataset = config.dataset
    path = ensure_folder(dataset)
    if skipped is None:
        skipped = find_skipped(dataset, config.seed, path, quiet)
    if dataset.val_split is not None:
        lists = (zip(part.files, sizes(part), strict=True) for part in splits(path, dataset, config.seed, skipped))
        known = divided(itertools.chain(*lists), dataset.val_split)
        return _of_splits(known, known)
    return _of_splits(*(_of_folder(path, split, skipped) for split in ("train", "val")))


def identity_if_there(config: RunConfig, skipped: Collection[str] | None = None) -> str | None:
    """The same; None where the data set is not on this machine, or not given. Nothing is drawn."""
    path = config.dataset.path
    if path is not None and config.dataset.kind == "shapes" and not is_folder(Path(path)):
        return None
    try:
        return identity(config, skipped)
    except UserError:
        return None


def built_in(values: Mapping[str, Any]) -> str | None:
    """The identity of pictures that are made here, by the dotted values that determine them; None of any others."""
    if values.get("dataloader.name") == "synthetic":
        return "-".join(["synthetic", *(str(values.get(key)) for key in (*COUNTS, "dataloader.batches"))])
    if values.get("dataset.kind") != "shapes" or values.get("dataset.path") is not None:
        return None
    drawn = drawn_as(*(values.get(key) for key in (*COUNTS[1:], "dataset.native_size")))
    return _of_splits(drawn, drawn)


def fingerprint(pictures: Iterable[tuple[str, int | None]]) -> str:
    """SHA-256 of one split's list of pictures: CLASS/NAME, and bytes where they are known."""
    digest = hashlib.sha256()
    for name, size in pictures:
        digest.update(f"{name}\0{size}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def divided(pictures: Iterable[tuple[str, int | None]], share: float) -> str:
    """What stands for the lists of both splits where a share is drawn for validation: all pictures, whoever was drawn.

    The seed draws them; runs of several seeds are on one data set all the same.
    """
    return f"{fingerprint(sorted(pictures, key=lambda one: one[0]))} val_split {share!r}"


def _of_splits(train: str, val: str) -> str:
    return hashlib.sha256(f"{train}\n{val}\n".encode()).hexdigest()


def _of_file(file: Beton) -> str:
    """The fingerprint of the pictures that an FFCV file was written from; if that is not known, of what it holds."""
    if file.manifest is not None and file.manifest.source is not None:
        return file.manifest.source
    return hashlib.sha256(np.ascontiguousarray(file.rows).tobytes()).hexdigest()


def _of_folder(path: Path, split: str, skipped: Collection[str]) -> str:
    if any(name.startswith(f"{split}/") for name in skipped):
        return _of_pictures(without(scan(path, split), skipped))
    root = path / split
    stamp, kept = _stamp(root), _kept(root)
    if stamp is not None and (known := _read(kept, stamp)) is not None:
        return known
    found = _of_pictures(scan(path, split))
    if stamp is not None:
        _write(kept, stamp, found)
    return found


def _of_pictures(folder: Folder) -> str:
    return fingerprint(zip(folder.files, sizes(folder), strict=True))


def _stamp(root: Path) -> str | None:
    """Changes when a picture or class is added, removed or renamed; None where that could still go unseen."""
    try:
        with os.scandir(root) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir())
        facts = [(name, (found := (root / name).stat()).st_ino, found.st_mtime_ns) for name in ["", *names]]
    except OSError:
        return None
    if max(changed for _, _, changed in facts) > time.time_ns() - _SETTLED_NS:
        return None
    return hashlib.sha256(repr(facts).encode(errors="surrogateescape")).hexdigest()


def _kept(root: Path) -> Path:
    name = hashlib.sha256(os.fsencode(root.resolve())).hexdigest()[:32]
    return paths.cache() / "fingerprints" / f"{name}.json"


def _read(kept: Path, stamp: str) -> str | None:
    try:
        found = json.loads(kept.read_bytes())
        return str(found["fingerprint"]) if found["stamp"] == stamp else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(kept: Path, stamp: str, found: str) -> None:
    # note: without a cache the next start looks again
    with suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        atomic.write_text(kept, json.dumps({"stamp": stamp, "fingerprint": found}), shared=True)
