"""Several labels and numbers an image: from a run by the command line to predictions without this project."""

import csv
import json
from pathlib import Path

import pytest
from PIL import Image

from tests.forked import MODEL_MAIN, python
from tests.runs import Train, draw_nothing, fork_checks

pytestmark = pytest.mark.system

WORDS = [
    *("dataset.train_samples=48", "dataset.val_samples=20", "dataset.native_size=32", "model=resnet18", "launch=cpu"),
    *("launch.nproc=1", "batch_size=8", "epochs=2", "dataloader.workers=0", "logger.tensorboard=false"),
    *("schedule.warmup=0ba", "optimizer.lr=0.01", "optimizer.scale_lr=off", "model.residual_batchnorm_weight=0"),
    *("dataset.path=drawn", "image.eval_flip_average=true"),
]
RUNS = {
    "multilabel": ["dataset=scenes", "task=multilabel", "loss=bce", "target=map:0.99"],
    "regression": ["dataset=scene_colours", "task=regression", "loss=l1", "target=mae:0.01", "algorithms=[mixup]"],
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_evaluated_exported_and_used_without_this_project(name: str, tmp_path: Path) -> None:
    train = Train(tmp_path, before=(draw_nothing, fork_checks))
    done = train(*RUNS[name], *WORDS, f"run_name={name}")
    assert {"multilabel": "mAP", "regression": "MAE"}[name] in done.stdout
    evaluated = json.loads(train("eval", f"runs/{name}", "--by-class", "--json", "-o", "by").stdout)
    rows = [*csv.DictReader(next((tmp_path / "by").glob("by_*.csv")).open())]
    assert len(rows) == {"multilabel": 10, "regression": 3}[name]
    if name == "regression":
        assert Image.open(tmp_path / "by" / "scatter.png").size > (100, 100)
        assert evaluated["metrics"]["mae"] == pytest.approx(sum(float(row["mae"]) for row in rows) / 3)
        assert evaluated["metrics"]["r2"] == pytest.approx(sum(float(row["r2"]) for row in rows) / 3)
    else:
        values = [float(row["average_precision"]) for row in rows if row["average_precision"]]
        assert evaluated["metrics"]["map"] == pytest.approx(sum(values) / len(values))
    exported = train("export", f"runs/{name}", "-o", "export")
    assert "on 20 validation images" in exported.stderr
    card = json.loads((tmp_path / "export" / "model_card.json").read_text())
    assert set(card["task"]) == {"multilabel": {"threshold"}, "regression": {"shift", "scale"}}[name]

    file = sorted((tmp_path / "drawn" / "val").glob("*.jpg"))[0]
    ours = [json.loads(train("predict", where, str(file), "--json").stdout) for where in (f"runs/{name}", "export")]
    assert ours[0] == ours[1]
    lines = [
        line.split(maxsplit=1)
        for line in python(MODEL_MAIN, "export/model.py", str(file), folder=tmp_path).splitlines()[1:]
    ]
    key, value = {"multilabel": ("class", "probability"), "regression": ("name", "value")}[name]
    scale = 100 if name == "multilabel" else 1
    expected = {row[key]: scale * row[value] for row in ours[0]["classes"]}
    assert {label: float(number.rstrip("%")) for number, label in lines} == pytest.approx(expected, rel=1e-3, abs=0.01)
