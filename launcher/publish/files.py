"""The files of a published model: the export, a model card, images and, if requested, an ONNX file."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from launcher.config.choices import HUB
from launcher.files.outputs import with_digest
from launcher.publish.card import as_text, card
from launcher.publish.timm_form import add_timm_config
from launcher.records.run_folder import RunFolder
from launcher.weights.card import CARD
from launcher.weights.export import export_run

README = "README.md"
_ONNX = "onnx"


class ModelFiles(NamedTuple):
    """What a folder has to publish: its files with their bytes, by name, and whether timm loads it."""

    files: dict[str, int]
    timm: bool


def write_files(
    folder: RunFolder,
    output: Path,
    place: str,
    *,
    best: bool,
    onnx: bool,
    report: Callable[[int, int], None],
) -> ModelFiles:
    """Write the files of a run's newest or best checkpoint into a new folder.

    place: hub:NAME/MODEL. report: as in `export_run`.

    Raises UserError as `export_run`, and if the run has no evaluation.
    """
    card(folder)
    export_run(folder, output, best=best, report=report)
    if onnx:
        export_run(folder, output / _ONNX, best=best, report=report, onnx=True)
    has_timm = add_timm_config(output, described := json.loads((output / CARD).read_bytes()))
    images = {"learning curve": folder.curve, "confusion matrix": folder.path / "confusion.png"}
    images = {title: path for title, path in images.items() if path.is_file()}
    for path in images.values():
        shutil.copyfile(path, output / path.name)
    use = [f"train predict {place} IMAGES", f"train model.weights={place}"]
    if has_timm:
        use += ["", f'timm.create_model("hf-hub:{place.removeprefix(HUB)}", pretrained=True)']
    if onnx:
        use += ["", *json.loads((output / _ONNX / CARD).read_bytes())["load"]]
    metadata, body = card(folder, step=described["step"], use=use, library="timm" if has_timm else None)
    parts = [body, *_pictures(images), *([described["note"]] if described["note"] else [])]
    text = as_text(metadata, "\n".join(parts).rstrip("\n") + "\n")
    (output / README).write_text(with_digest(text), encoding="utf-8")
    return ModelFiles(sizes(output), has_timm)


def _pictures(images: dict[str, Path]) -> Sequence[str]:
    return [f"![{title}]({path.name})\n" for title, path in images.items()]


def sizes(folder: Path) -> dict[str, int]:
    """Return the bytes of the files in and below a folder, by their names in it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}
