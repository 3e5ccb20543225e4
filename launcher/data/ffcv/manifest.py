"""What is written beside an FFCV file: what it holds, how it was written, and its checksum."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from launcher import atomic
from launcher.errors import UserError

_CHUNK = 1 << 24


@dataclass(frozen=True)
class Manifest:
    """`values` are those of dataloader.files; `converted` counts pictures by what they were; `skipped` are left out.

    `source` is the fingerprint of the pictures' list (launcher.data.identity); files of before lack it.
    `exif_orientation` is dataset's: whether pictures were turned; None, in older manifests, is not.
    """

    split: str
    samples: int
    classes: list[str]
    values: dict[str, float | int]
    converted: dict[str, int]
    skipped: dict[str, str]
    bytes: int
    sha256: str
    source: str | None = None
    exif_orientation: bool | None = None


def manifest_path(path: Path) -> Path:
    """The manifest of an FFCV file."""
    return path.with_name(path.name + ".json")


def read_manifest(path: Path) -> Manifest | None:
    """The manifest of an FFCV file, or None where there is none.

    Raises:
        UserError: it is damaged.
    """
    file = manifest_path(path)
    if not file.exists():
        return None
    try:
        return TypeAdapter(Manifest).validate_json(file.read_bytes(), strict=True)
    except ValueError:
        raise UserError(f"{file} is damaged; remove it to read {path.name} without one, or write both again") from None


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write the manifest of an FFCV file, atomically."""
    atomic.write_text(manifest_path(path), json.dumps(dataclasses.asdict(manifest), indent=1) + "\n")


def checksum(path: Path, advance: Callable[[int], object]) -> str:
    """SHA-256 of a file, in hexadecimal; `advance` is told the bytes of each part read."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(_CHUNK):
            digest.update(part)
            advance(len(part))
    return digest.hexdigest()
