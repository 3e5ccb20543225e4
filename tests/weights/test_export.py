"""`export_run` on small runs: the files it writes, and that it refuses a model that differs from the run's."""

import csv
import json
import math
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.models import resnet18
from torchvision.transforms._presets import ImageClassification

from launcher.algorithms.blurpool import BlurPool
from launcher.config import resolved
from launcher.config.compose import compose
from launcher.config.keys import path_keys
from launcher.config.validate import validate
from launcher.errors import UserError
from launcher.installation import how_to_add
from launcher.records.run_folder import RunFolder
from launcher.tasks import Task
from launcher.weights import export as export_module
from launcher.weights.export import export_run
from launcher.weights.export_check import agrees
from tests.commands import execute
from tests.commands import refused as refused_command
from tests.forked import CARD_LINES, python
from tests.saved_runs import finished
from tests.trainers import alone


def export(folder: RunFolder, output: Path) -> dict[str, object]:
    """Export the newest checkpoint and return its model card."""
    export_run(folder, output, best=False, report=lambda done, total: None)
    card: dict[str, object] = json.loads((output / "model_card.json").read_text())
    return card


def set_recorded_top1(folder: RunFolder, top1: float) -> None:
    lines = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    lines[-1]["metrics"]["top1"] = top1
    folder.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    yield
    os.umask(before)


def test_an_export_has_two_files_for_everyone_and_a_card_that_describes_the_run(
    tmp_path: Path, tiny_networks: None
) -> None:
    folder, output = finished(tmp_path, "image.eval_flip_average=true"), tmp_path / "a" / "b"
    with umask(0o022):
        card = export(folder, output)
    assert {path.name for path in output.iterdir()} == {"model.safetensors", "model_card.json"}
    assert {path.stat().st_mode & 0o777 for path in output.iterdir()} == {0o644}
    recorded = json.loads(folder.metrics.read_text().splitlines()[-1])
    assert card["checked"] == {"on": "validation images", "images": 20, "value": recorded["metrics"]["top1"]}
    assert (card["top1"], card["images"], card["precision"]) == (recorded["metrics"]["top1"], 20, "float32")
    assert (card["recipe"], card["scores"], card["flip_average"]) == ("mild", "sigmoid", True)
    assert card["classes"][::8] == ["arrow", "star"]  # type: ignore[index]
    assert {key: card["input"][key] for key in ("resize", "size", "interpolation", "mean", "std")} == {  # type: ignore[index]
        **{"resize": 32, "size": 32, "interpolation": "bilinear"},
        **{"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]},
    }
    assert list(card["surgery"]) == ["blurpool"]  # type: ignore[call-overload]


def assert_no_place(export: Path) -> None:
    """Check that no file of an export has a path of this machine or the word SECRET."""
    places = (Path("SECRET"), export.parent, Path(__file__).parents[2], Path(torch.__file__).parents[1])
    for path in export.iterdir():
        assert not [place for place in places if str(place).encode() in path.read_bytes()], path.name


def test_an_export_removes_what_a_killed_one_left(tmp_path: Path, tiny_networks: None) -> None:
    output = tmp_path / "out"
    (output / ".export").mkdir(parents=True)
    (output / ".export" / "model.safetensors").write_bytes(b"half")
    export(finished(tmp_path), output)
    assert {path.name for path in output.iterdir()} == {"model.safetensors", "model_card.json"}


def test_an_export_contains_no_place_and_no_account_of_the_run(tmp_path: Path, tiny_networks: None) -> None:
    place = f"{tmp_path}/SECRET"
    words = ["logger=wandb", "logger.project=SECRET", "logger.entity=SECRET", "launch.rdzv=SECRET:1"]
    card = export(finished(tmp_path, *words, f"runs={place}", f"model.weights={place}"), tmp_path / "export")
    assert_no_place(tmp_path / "export")
    assert validate(card["config"]).logger.name == "jsonl"  # type: ignore[arg-type]
    everywhere = [f"{key}={place}" for key in path_keys()]
    values = resolved.portable(compose(["dataloader=ffcv", *words, *everywhere]).config)
    assert "SECRET" not in str(values)
    assert resolved.portable(compose(["model.weights=torchvision"]).config)["model"]["weights"] == "torchvision"


def refused(folder: RunFolder, reason: str) -> None:
    """Check that the export fails with one line, and leaves no file and no folder."""
    output = folder.path / "new" / "export"
    with pytest.raises(UserError, match=reason) as error:
        export(folder, output)
    assert len(error.value.problems) == 1
    assert not output.parent.exists()


def test_a_model_that_differs_from_the_runs_is_not_written(
    tmp_path: Path, tiny_networks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = finished(tmp_path, "precision=fp32")
    with monkeypatch.context() as patch:
        write = export_module.write_weights
        others = {"fc.bias": torch.arange(10) / 100}
        patch.setattr(export_module, "write_weights", lambda weights, *others_: write({**weights, **others}, *others_))
        refused(folder, "logits differ from the run's")
    with monkeypatch.context() as patch:
        patch.setattr(BlurPool, "network_values", lambda values: None)
        refused(folder, "algorithms=blurpool, .*changes what the network computes; return its values from")
    set_recorded_top1(folder, 0.95)
    refused(folder, r"has top-1 .* on the 20 validation images, but the run recorded 95.00%")
    text = folder.config.read_text()
    folder.config.write_text(text.replace("min_channels: 16", "min_channels: 17"))
    refused(folder, "this folder's config.yaml belong to different runs")


def test_rounding_is_relative_to_the_largest_output_of_the_images() -> None:
    """The only number of an image may be close to 0 (task=regression)."""
    expected = torch.tensor([[1e-5], [2.0], [-1.0]])
    for count in (1, 3):
        assert agrees(expected[:count] + 1e-6, expected, 1e-6)
        assert not agrees(expected[:count] + 1e-5, expected, 1e-6)
        assert not agrees(expected[:count] * math.nan, expected, 1e-6)


def test_an_export_without_images_compares_logits_of_noise_and_keeps_the_class_names(tmp_path: Path) -> None:
    folder = finished(tmp_path, "algorithms=[ghost_batchnorm,ema]", "loss=cross_entropy")
    (tmp_path / "file").write_text("")
    folder.config.write_text(folder.config.read_text().replace("path: null", f"path: {tmp_path}/file/images"))
    card = export(folder, tmp_path / "export")
    assert card["checked"] == {"on": "noise", "images": 8, "value": None}
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


def test_a_folder_that_cannot_be_written_is_an_error_of_one_line(tmp_path: Path, tiny_networks: None) -> None:
    folder = finished(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(
        UserError, match=r"--output=.*/file/export: cannot be written: Not a directory; choose another folder"
    ):
        export(folder, tmp_path / "file" / "export")


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_run_of_lower_precision_exports(precision: str, tmp_path: Path, tiny_networks: None) -> None:
    card = export(
        finished(tmp_path, f"precision={precision}", "algorithms.progressive_resizing=off"), tmp_path / "export"
    )
    assert card["precision"] == {"bf16": "bfloat16", "fp16": "float16"}[precision]
    assert card["checked"]["on"] == "validation images"  # type: ignore[index]


def with_onnx() -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason=f"{package} is not installed")


EVERYTHING = [
    "algorithms=[blurpool,squeeze_excite,stochastic_depth,ghost_batchnorm,channels_last,swa]",
    *("algorithms.stochastic_depth.keep_scaling=evaluation", "algorithms.squeeze_excite.min_channels=32"),
    *("model.activation=silu", "image.eval_flip_average=true", "image.eval_resize=300"),
]


@pytest.mark.slow
def test_an_onnx_file_predicts_with_onnxruntime_only_and_a_wrong_one_is_not_written(
    tmp_path: Path, tiny_networks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_onnx()
    folder, output = finished(tmp_path, *EVERYTHING), tmp_path / "new" / "onnx"
    checked = export_run(folder, output, best=False, onnx=True, report=lambda done, total: None)
    assert (checked.on, checked.images) == ("validation images", 20)
    assert {path.name for path in output.iterdir()} == {"model.onnx", "model_card.json"}
    card = json.loads((output / "model_card.json").read_text())
    assert_no_place(output)
    assert set(card["surgery"]) == {"silu", "squeeze_excite", "blurpool", "stochastic_depth"}
    assert 10 <= len(card["load"]) <= 14
    run = alone(resolved.read(folder.config))
    run.loaders.close()
    preset, network = (
        ImageClassification(crop_size=32, resize_size=card["input"]["resize"]),
        run.evaluation_model.eval(),
    )
    for shape in ((40, 77, 3), (90, 41, 3), (50, 50, 3)):
        pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
        with torch.inference_mode():
            image = preset(Image.fromarray(pixels))[None]
            best = ((network(image) + network(image.flip(3))) / 2)[0].sigmoid().topk(5)
        expected = [f"{v:.2%} {card['classes'][n]}" for v, n in zip(best.values, best.indices, strict=True)]
        assert printed(output, pixels, tmp_path / str(shape)).splitlines() == expected
    assert_another_file_is_refused(folder, output, monkeypatch)


TIMM = ["model=timm", "model.architecture=test_vit", "model.img_size=32", "algorithms=[ema]"]


RECTANGLES = ["image.train_size=[112,224]", "image.eval_size=[112,224]", "model=timm", "algorithms=[ema]"]
FORMS = {
    "square": TIMM,
    **{fit: [*RECTANGLES, "model.architecture=test_resnet", f"image.fit={fit}"] for fit in ("crop", "pad", "stretch")},
}


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("shape", "orientation"), [((40, 77, 3), 1), ((30, 90, 3), 6)])
def test_a_run_of_a_timm_model_predicts_the_same_in_every_form(
    form: str, shape: tuple[int, ...], orientation: int, tmp_path: Path
) -> None:
    """The image may be turned by its EXIF data."""
    with_onnx()
    folder, onnx = finished(tmp_path, *FORMS[form]), tmp_path / "onnx"
    checked = export_run(folder, onnx, best=False, onnx=True, report=lambda done, total: None)
    assert (checked.on, checked.images) == ("validation images", 20)
    export(folder, tmp_path / "export")
    file, pixels = tmp_path / "image.png", np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    Image.fromarray(pixels).save(file, exif=turned(orientation))
    own, exported = (
        execute("predict", str(source), str(file), "--csv")[1] for source in (folder.path, tmp_path / "export")
    )
    assert own == exported
    lines = printed(onnx, pixels, tmp_path / "alone", orientation).splitlines()
    likeliest = {row["class"]: row["probability"] for row in csv.DictReader(own.splitlines())}
    percents = {name: float(percent.rstrip("%")) for percent, name in map(str.split, lines)}
    # note: another runtime rounds differently
    assert percents == pytest.approx({name: 100 * float(score) for name, score in likeliest.items()}, abs=0.02)
    assert execute("eval", str(folder.path), "--by-class")[1].splitlines()[1] == "20 images on 1 process on the CPU"


def turned(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[274] = orientation
    return exif


def printed(export: Path, pixels: np.ndarray, folder: Path, orientation: int = 1) -> str:
    """Return what the lines of an export's card print in a folder with its two files and an image."""
    shutil.copytree(export, folder)
    Image.fromarray(pixels).save(folder / "image.jpg", "PNG", exif=turned(orientation))
    return python(CARD_LINES, folder=folder)


def assert_another_file_is_refused(folder: RunFolder, output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new file in which one of ten logits is off by a thousandth leaves the earlier files unchanged."""
    import onnx

    earlier = {path.name: path.read_bytes() for path in output.iterdir()}
    model = onnx.load(output / "model.onnx")
    (bias,) = (tensor for tensor in model.graph.initializer if tensor.name.endswith("fc.bias"))
    values = onnx.numpy_helper.to_array(bias) + np.eye(10, dtype=np.float32)[3] / 1000
    bias.CopyFrom(onnx.numpy_helper.from_array(values, bias.name))
    write = export_module.write_onnx

    def write_another(network: torch.nn.Module, task: Task, path: Path) -> None:
        write(network, task, path)
        onnx.save(model, path)

    monkeypatch.setattr(export_module, "write_onnx", write_another)
    with pytest.raises(UserError, match="logits differ from the run's"):
        export_run(folder, output, best=False, onnx=True, report=lambda done, total: None)
    assert {path.name: path.read_bytes() for path in output.iterdir()} == earlier


def test_the_error_for_missing_onnx_packages_has_the_install_command(
    tmp_path: Path, tiny_networks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = finished(tmp_path)
    monkeypatch.setattr("launcher.cli.export.find_spec", lambda name: None if name.startswith("onnx") else object())
    assert (
        f"onnx and onnxscript and onnxruntime; run {how_to_add('onnx', 'onnxscript', 'onnxruntime')}"
        in refused_command("export", str(folder.path), "--onnx")
    )
