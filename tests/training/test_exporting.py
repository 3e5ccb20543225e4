"""`export_run` on small runs: what it writes, and that a model which differs from the run's is never kept."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torchvision.models import resnet18

from launcher.algorithms.blurpool import BlurPool
from launcher.config import resolved
from launcher.config.compose import compose
from launcher.errors import UserError
from launcher.rank.group import Ranks
from launcher.records.folder import RunFolder, create, save_name
from launcher.training import checkpoint, exporting
from launcher.training.export_check import _hits
from launcher.training.exporting import export_run
from launcher.training.trainer import build_trainer

SMALL = [
    *("recipe=mild", "model=resnet18", "launch=cpu", "batch_size=8", "epochs=40", "dataloader.workers=0"),
    *("dataset=shapes", "dataset.train_samples=32", "dataset.val_samples=20", "dataset.native_size=32"),
]


def finished(runs: Path, *words: str) -> RunFolder:
    """A run of no steps that was evaluated and saved, as a run of one rank leaves it."""
    config = compose([*SMALL, *words]).config
    folder = create(runs, "small", unique=False)
    resolved.write(config, folder.config)
    run = build_trainer(config, Ranks(0, 1, 0, 1, torch.device("cpu")))
    result = run.evaluate(should_stop=lambda: False)
    assert result is not None
    run.loaders.close()
    start = {"kind": "start", "step": 0, "time": 0.0, "world_size": 1, "total_steps": 160, "epochs": 40}
    rows = [
        {**start, "device": "cpu", "precision": str(run.train_step.precision.dtype).removeprefix("torch.")},
        {"kind": "eval", "step": 0, "time": 0.0, "epoch": 0.0, "seconds": 1.0, "train_seconds": 1.0, **vars(result)},
    ]
    folder.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    checkpoint.save(run.state_dict(), folder.checkpoints / save_name(0))
    return folder


def export(folder: RunFolder, output: Path) -> dict[str, object]:
    """The card."""
    export_run(folder, output, best=False, report=lambda done, total: None)
    card: dict[str, object] = json.loads((output / "model_card.json").read_text())
    return card


def say_that_the_run_recorded(folder: RunFolder, top1: float) -> None:
    lines = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    lines[-1]["top1"] = top1
    folder.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    yield
    os.umask(before)


def test_what_is_written_and_for_whom(tmp_path: Path) -> None:
    folder, output = finished(tmp_path, "image.eval_flip_average=true"), tmp_path / "a" / "b"
    with umask(0o022):
        card = export(folder, output)
    assert {path.name for path in output.iterdir()} == {"model.safetensors", "model.py", "model_card.json"}
    assert {path.stat().st_mode & 0o777 for path in output.iterdir()} == {0o644}
    recorded = json.loads(folder.metrics.read_text().splitlines()[-1])
    assert card["checked"] == {"on": "validation pictures", "pictures": 20, "top1": recorded["top1"]}
    assert (card["top1"], card["pictures"], card["precision"]) == (recorded["top1"], 20, "float32")
    assert (card["recipe"], card["scores"], card["flip_average"]) == ("mild", "sigmoid", True)
    assert card["classes"][::8] == ["arrow", "star"]  # type: ignore[index]
    assert {key: card["input"][key] for key in ("resize", "size", "interpolation", "mean", "std")} == {  # type: ignore[index]
        **{"resize": 32, "size": 32, "interpolation": "bilinear"},
        **{"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]},
    }
    assert list(card["surgery"]) == ["blurpool"]  # type: ignore[call-overload]


def refused(folder: RunFolder, reason: str) -> None:
    """The export ends with a line, and leaves neither a file nor a folder."""
    output = folder.path / "new" / "export"
    with pytest.raises(UserError, match=reason) as error:
        export(folder, output)
    assert len(error.value.problems) == 1
    assert not output.parent.exists()


def test_a_model_that_differs_from_the_runs_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = finished(tmp_path, "precision=fp32")
    with monkeypatch.context() as patch:
        patch.setattr(BlurPool, "surgery", lambda self: None)
        refused(folder, "logits are not those of the run's own network")
    with monkeypatch.context() as patch:
        card = exporting._card
        patch.setattr(exporting, "_card", lambda *all: card(*all) | {"input": card(*all)["input"] | {"resize": 40}})
        refused(folder, "prepares pictures in another way")
    with monkeypatch.context() as patch:
        patch.setattr(exporting, "_card", lambda *all: card(*all) | {"classes": ["one"]})
        refused(folder, "fails where this project is not: .*size mismatch")
    say_that_the_run_recorded(folder, 0.95)
    refused(folder, r"top-1 of .* on the 20 validation pictures, where the run recorded 95.00%")
    text = folder.config.read_text()
    folder.config.write_text(text.replace("min_channels: 16", "min_channels: 17"))
    refused(folder, "a run with other values than this folder's config.yaml")


def test_without_the_pictures_logits_are_compared_and_classes_told(tmp_path: Path) -> None:
    folder = finished(tmp_path, "algorithms=[ghost_batchnorm,ema]", "loss=cross_entropy")
    (tmp_path / "file").write_text("")
    folder.config.write_text(folder.config.read_text().replace("path: null", f"path: {tmp_path}/file/pictures"))
    card = export(folder, tmp_path / "export")
    assert card["checked"] == {"on": "noise", "pictures": 8, "top1": None}
    assert card["classes"][0] == "arrow"  # type: ignore[index]
    assert (card["surgery"], card["scores"]) == ({}, "softmax")
    code = str(card["load"])
    assert code.startswith("network = torchvision.models.resnet18(num_classes=10); ")
    import safetensors.torch
    import torchvision

    names = {"torchvision": torchvision, "safetensors": safetensors}
    here = Path.cwd()
    os.chdir(tmp_path / "export")
    try:
        exec(code, names)
    finally:
        os.chdir(here)
    assert isinstance(names["network"], type(resnet18()))


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    folder = finished(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot export to .*/file/export: Not a directory"):
        export(folder, tmp_path / "file" / "export")


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_run_of_lower_precision_exports(precision: str, tmp_path: Path) -> None:
    card = export(
        finished(tmp_path, f"precision={precision}", "algorithms.progressive_resizing=off"), tmp_path / "export"
    )
    assert card["precision"] == {"bf16": "bfloat16", "fp16": "float16"}[precision]
    assert card["checked"]["on"] == "validation pictures"  # type: ignore[index]


def test_what_counts_as_right_but_for_rounding() -> None:
    logits = torch.tensor([[4.0, 3.9, 0.0], [4.0, 3.0, 0.0], [3.9, 4.0, 0.0], [3.0, 4.0, 0.0]])
    labels = torch.zeros(4, dtype=torch.int64)
    assert _hits(logits, labels, 0.0).tolist() == [2, 2, 2]
    assert _hits(logits, labels, 0.05).tolist() == [2, 1, 3]
