"""Several labels, numbers or channels an image: from a run of the command to predictions without this project."""

import csv
import json
from pathlib import Path

import pytest
from PIL import Image

from launcher.records.metrics import read_metrics
from tests.forked import MODEL_MAIN, fork_checks, python
from tests.images import write_arrays
from tests.runs import Train, draw_nothing

pytestmark = pytest.mark.system

WORDS = [
    *("dataset.train_samples=48", "dataset.val_samples=20", "dataset.native_size=32", "model=resnet18", "launch=cpu"),
    *("launch.nproc=1", "batch_size=8", "epochs=2", "dataloader.workers=0", "logger.tensorboard=false"),
    *("schedule.warmup=0ba", "optimizer.lr=0.01", "optimizer.scale_lr=off", "model.residual_batchnorm_weight=0"),
    *("dataset.path=drawn", "image.eval_flip_average=true", "recipe=none"),
]
RUNS = {
    "multilabel": ["dataset=scenes", "task=multilabel", "loss=bce", "target=map:0.99"],
    "regression": ["dataset=scene_colours", "task=regression", "loss=l1", "target=mae:0.01", "algorithms=[mixup]"],
}
COLOURS = "image,red,green,blue\n0.png,130,200,250\n1.png,140,130,120\n2.png,150,150,160"


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_evaluated_exported_and_used_without_this_project(name: str, tmp_path: Path) -> None:
    train = Train(tmp_path, before=(draw_nothing, fork_checks))
    rows = {"multilabel": "image,label\n0.png,star\n1.png,ring|star\n2.png,", "regression": COLOURS}[name]
    for number in range(3):
        Image.new("RGB", (40, 32), (80 * number,) * 3).save(tmp_path / f"{number}.png")
    (tmp_path / "test.csv").write_text(rows)
    done = train(*RUNS[name], *WORDS, f"run_name={name}", "dataset.test_path=test.csv")
    (tested,) = [row for row in read_metrics(tmp_path / "runs" / name / "metrics.jsonl") if row["kind"] == "test"]
    again = json.loads(train("eval", f"runs/{name}", "dataset.path=test.csv", "--json").stdout)
    assert again["metrics"] == pytest.approx(tested["metrics"])
    assert again["samples"] == 3
    assert {"multilabel": "mAP", "regression": "MAE"}[name] in done.stdout
    samples = json.loads((tmp_path / "runs" / name / "samples.json").read_text())
    assert len(samples) == 12
    if name == "regression":
        assert {len(one["predictions"]) for one in samples} == {len(one["label"].split("|")) for one in samples} == {3}
    evaluated = json.loads(train("eval", f"runs/{name}", "--by-class", "--json", "-o", "by").stdout)
    if name == "multilabel":
        assert tested["metrics"]["threshold"] == evaluated["metrics"]["threshold"]
    rows = [*csv.DictReader(next((tmp_path / "by").glob("by_*.csv")).open())]
    assert len(rows) == {"multilabel": 10, "regression": 3}[name]
    if name == "regression":
        assert Image.open(tmp_path / "by" / "scatter.png").size > (100, 100)
        assert evaluated["metrics"]["mae"] == pytest.approx(sum(float(row["mae"]) for row in rows) / 3)
        assert evaluated["metrics"]["r2"] == pytest.approx(sum(float(row["r2"]) for row in rows) / 3)
    else:
        values = [float(row["average_precision"]) for row in rows if row["average_precision"]]
        assert evaluated["metrics"]["map"] == pytest.approx(sum(values) / len(values))
    if name == "multilabel":
        train("calibrate", f"runs/{name}")
    exported = train("export", f"runs/{name}", "-o", "export")
    assert "on 20 validation images" in exported.stderr
    card = json.loads((tmp_path / "export" / "model_card.json").read_text())
    assert set(card["task"]) == {"multilabel": {"threshold"}, "regression": {"shift", "scale"}}[name]
    rows = [row for row in read_metrics(tmp_path / "runs" / name / "metrics.jsonl") if row["kind"] == "eval"]
    choose, metric = {"multilabel": (max, "map"), "regression": (min, "mae")}[name]
    train("export", f"runs/{name}", "--best", "-o", "best")
    card = json.loads((tmp_path / "best" / "model_card.json").read_text())
    assert card["step"] == choose(rows, key=lambda row: row["metrics"][metric])["step"]

    file = sorted((tmp_path / "drawn" / "val").glob("*.jpg"))[0]
    ours = [json.loads(train("predict", where, str(file), "--json").stdout) for where in (f"runs/{name}", "export")]
    assert ours[0] == ours[1]
    train("export", f"runs/{name}", "--onnx", "-o", "onnx")
    key, value = {"multilabel": ("class", "probability"), "regression": ("name", "value")}[name]
    scale = 100 if name == "multilabel" else 1
    expected = {row[key]: scale * row[value] for row in ours[0]["classes"]}
    for where in ("export", "onnx"):
        printed = python(MODEL_MAIN, f"{where}/model.py", str(file), folder=tmp_path).splitlines()[1:]
        shown = {label: float(number.rstrip("%")) for number, label in (line.split(maxsplit=1) for line in printed)}
        # note: printed with two decimals, of sums in another order
        assert shown == pytest.approx(expected, rel=1e-3, abs=0.02)


CHANNELS = {
    "uint16": ["recipe=small", "dataset.channels=4", "algorithms=[cutmix,cutout,progressive_resizing,ema]"],
    "float32": [
        *("recipe=small", "model=vit", "model.patch_size=8", "model.width=16", "model.heads=2", "dataset.channels=2"),
        "algorithms=[ema]",
    ],
}


@pytest.mark.parametrize("dtype", CHANNELS)
def test_arrays_of_other_channels_train_and_predict_as_in_the_export(dtype: str, tmp_path: Path) -> None:
    write_arrays(tmp_path / "data", dtype, 4 if dtype == "uint16" else 2)
    train = Train(tmp_path, before=(draw_nothing, fork_checks))
    words = [
        *CHANNELS[dtype], "dataset=image_folder", "dataset.path=data", f"dataset.dtype={dtype}", "dataset.mean=null",
        "dataset.std=null", "dataset.native_size=24", "image.train_size=224", "image.eval_size=224", "batch_size=4",
        "launch=cpu", "launch.nproc=1", "epochs=2", "dataloader.workers=0", "logger.tensorboard=false", "recipe=none",
    ]  # fmt: skip
    refused = train(*words, "algorithms.randaugment=on", code=2).stderr
    assert refused == train("plan", *words, "algorithms.randaugment=on", code=2).stderr
    assert "its operations change colours of 8-bit RGB (algorithms.randaugment=off)" in refused
    train(*words, "run_name=a")
    files = [f"data/val/{name}/{number}.npy" for name in ("cat", "dog") for number in range(2)]
    evaluated = json.loads(train("eval", "runs/a", "--by-class", "--json", "-o", "by").stdout)
    other = json.loads(train("eval", "runs/a", "dataset.path=data", "--json").stdout)
    assert other["metrics"] == evaluated["metrics"]
    assert "Least confident hits" in (tmp_path / "by" / "gallery.html").read_text()
    ours = train("predict", "runs/a", "data/val", "--json").stdout
    for name, flags in {"export": [], "onnx": ["--onnx"]}.items():
        assert "on 4 validation images" in train("export", "runs/a", *flags, "-o", name).stderr
    assert train("predict", "export", *files, "--json").stdout == ours
    expected = {row["class"]: 100 * row["probability"] for row in json.loads(ours.splitlines()[0])["classes"]}
    for where in ("export", "onnx"):
        printed = python(MODEL_MAIN, f"{where}/model.py", files[0], folder=tmp_path).splitlines()[1:]
        shown = {label: float(number.rstrip("%")) for number, label in (line.split(maxsplit=1) for line in printed)}
        assert shown == pytest.approx(expected, abs=0.02)
    train("look", *words, "-o", "look.html")
