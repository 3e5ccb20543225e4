"""A linear probe on features that are computed once: `recipe=probe`, and what reads its run."""

import json
import math
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file

from launcher.config.compose import compose
from launcher.data.batch import START
from launcher.data.sampling import Request
from launcher.models.features import accept_features, features
from launcher.rank.group import Ranks, single_rank
from launcher.training.features import use_features
from launcher.training.trainer import build_trainer
from tests.commands import refused
from tests.networks import use_tiny
from tests.runs import SMALL, Here, Train, draw_nothing, resumed_after_kill, same
from tests.two_ranks import on_two_ranks

CPU = torch.device("cpu")
IMAGES = [word for word in SMALL if word.startswith(("dataset", "model", "launch", "logger"))]
PROBE = ["recipe=probe", *IMAGES, "model.weights=runs/first", "epochs=4", "batch_size=16", "dataloader.workers=0"]
FIRST = ["recipe=small", *IMAGES, "epochs=2", "batch_size=16", "dataloader.workers=0", "run_name=first"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have an empty user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "train-launcher" / "features"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = Here(tmp_path_factory.mktemp("first"))
    here(*FIRST)
    return here.folder / "runs"


@pytest.fixture
def first(here: Here, trained: Path) -> Here:
    """Have a run whose weights are not the initial ones."""
    shutil.copytree(trained, here.folder / "runs")
    return here


def test_a_probe_is_a_run_like_any_other(first: Here, cache: Path) -> None:
    assert "features of 146 images: computed in" in first(*PROBE, "run_name=probe").stdout
    assert "features of 146 images: read from" in first(*PROBE, "run_name=other", "seed=3").stdout
    run = first.folder / "runs" / "probe"
    before, after = (first.state(one)["weights"] for one in (run.with_name("first"), run))
    assert isinstance(before, dict)
    assert isinstance(after, dict)
    assert [name for name in before if not torch.equal(before[name], after[name])] == ["fc.weight", "fc.bias"]
    # note: these read images and run the whole network
    *_, last = (row for row in map(json.loads, (run / "metrics.jsonl").open()) if row["kind"] == "eval")
    evaluated = json.loads(first("eval", "runs/probe", "--json").stdout)
    assert evaluated["metrics"]["top1"] == pytest.approx(last["metrics"]["top1"], abs=0.021)
    assert evaluated["loss"] == pytest.approx(last["loss"], rel=1e-4)
    first("export", "runs/probe", "--output", "export")
    image = str(next(cache.parent.rglob("val/*/*.jpg")))
    of_run, of_export = (first("predict", name, image, "--json").stdout for name in ("runs/probe", "export"))
    assert json.loads(of_run) == json.loads(of_export)
    words = ["recipe=finetune", *IMAGES, "epochs=1", "batch_size=16", "dataloader.workers=0", "run_name=finetuned"]
    finetuned = first(*words, "model.weights=runs/probe")
    assert "initial weights from runs/probe at step 24: the whole head" in finetuned.stderr + finetuned.stdout


def test_estimate_measures_the_steps_of_features_and_predictions_refuse_them(first: Here) -> None:
    measured = json.loads(first("estimate", *PROBE, "--seconds", "0.1", "--json").stdout)
    assert measured["advice"] == []
    anywhere = [word for word in PROBE if not word.startswith("launch")]
    assert "type train estimate" in first("plan", *anywhere, "--on", "p4d_24xlarge", code=2).stderr


def test_auto_proposes_a_probe_before_fine_tuning(first: Here) -> None:
    words = ["recipe=auto", *IMAGES, "model.weights=runs/first"]
    assert "first recipe=probe" in first("plan", *words).stderr
    assert "recipe=probe" not in first("plan", *words[:-1]).stderr


def test_a_stopped_probe_resumes_to_the_same_weights(first: Here, cache: Path) -> None:
    whole = first.folder / "runs" / "whole"
    first(*PROBE, "run_name=whole")
    first(*PROBE, "run_name=stopped", stop_after=10, code=143)
    for path in cache.iterdir():
        path.write_bytes(path.read_bytes()[:-8])  # note: damaged ones are computed again
    assert "computed in" in first("resume", "runs/stopped").stdout
    assert same(first.decided(whole), first.decided(whole.with_name("stopped")))


@pytest.mark.slow
def test_a_killed_probe_of_two_ranks_resumes_to_the_same_weights(train: Train) -> None:
    large, words = replace(train, before=(draw_nothing,)), [*PROBE, "launch.nproc=2"]
    large(*FIRST)
    large(*words, "run_name=whole")
    killed = resumed_after_kill(large, words, 7)
    assert same(train.decided(killed.with_name("whole")), train.decided(killed))


def computed(folder: Path, *words: str, ranks: Ranks | None = None) -> np.ndarray:
    """Return the features of training images [96, 32], with a folder as the user's cache."""
    os.environ["XDG_CACHE_HOME"] = str(folder)
    trainer = build_trainer(compose([*PROBE, *words]).config, ranks or single_rank(CPU))
    use_features(trainer)
    requests = [Request(START, np.arange(96), 32)]
    ((rows, labels, _),) = trainer.loaders.train.reader.batches(requests)
    assert torch.equal(labels, torch.from_numpy(trainer.loaders.train.reader.labels))
    return rows.numpy()


def _on_a_rank(rank: int, folder: Path) -> None:
    use_tiny()
    torch.set_num_threads(1)
    np.save(folder / f"{rank}.npy", computed(folder, ranks=Ranks(rank, 2, rank, 2, CPU)))


@pytest.mark.usefixtures("tiny_networks")
def test_bits_depend_neither_on_workers_nor_on_batches_nor_on_ranks(tmp_path: Path) -> None:
    rows = computed(tmp_path / "cache")
    for number, words in enumerate([["dataloader.workers=1"], ["batch_size=24", "eval_batch_size=7"]]):
        assert np.array_equal(rows, computed(tmp_path / str(number), *words))
    (folder := tmp_path / "ranks").mkdir()
    on_two_ranks(_on_a_rank, folder)
    assert all(np.array_equal(rows, np.load(folder / f"{rank}.npy")) for rank in range(2))


@pytest.mark.usefixtures("tiny_networks")
@pytest.mark.parametrize("word", ["image.eval_resize=300", "image.eval_size=192", "dataset.mean=[0.4,0.4,0.4]"])
def test_each_preparation_has_its_features(word: str, tmp_path: Path, cache: Path) -> None:
    rows = computed(tmp_path / "cache")
    assert not np.array_equal(rows, computed(tmp_path / "cache", word))
    assert len([*cache.iterdir()]) == 4


@pytest.mark.usefixtures("tiny_networks")
def test_a_changed_image_is_computed_again(tmp_path: Path, cache: Path) -> None:
    rows = computed(tmp_path / "cache")
    image = sorted(cache.parent.rglob("train/*/*.jpg"))[5]
    image.write_bytes(image.with_name(sorted(image.parent.iterdir())[0].name).read_bytes())
    changed = np.flatnonzero((computed(tmp_path / "cache") != rows).any(1))
    assert changed.tolist() == [5]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["algorithms.mixup=on"], "algorithms.mixup=on (command line): dataloader=features computes"),
        (["algorithms.randaugment=on"], "set algorithms.randaugment=off"),
        (["image.flip=0.5"], "set image.flip=0.0"),
        (["image.eval_views=5crop"], "set image.eval_views=centre"),
        (["compile=on"], "set compile=off"),
        (["algorithms.backbone_freezing.until=0.5dur"], "only the last layer can learn, in the whole run"),
        (["model.weights=null"], "set model.weights to a run folder"),
        (["task=segmentation", "dataset=shape_masks", "loss=dice_cross_entropy"], "set recipe=small_segmentation"),
        (["model=timm", "model.architecture=resnetv2_50"], "ResNetV2 does not end in one linear layer"),
    ],
)
def test_what_features_cannot_have_is_refused_in_one_line(words: list[str], expected: str, tmp_path: Path) -> None:
    weights = tmp_path / "weights.safetensors"
    if "model=timm" in words:
        save_file(timm.create_model("resnetv2_50", num_classes=10).state_dict(), weights)
    assert expected in refused(*PROBE, f"model.weights={weights}", *words)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet10t", "vit_tiny_patch16_224", "convnext_atto", "mobilenetv3_small_050"])
def test_a_network_computes_the_same_of_features_and_of_images(name: str) -> None:
    network = timm.create_model(name, num_classes=7).eval()
    images = torch.randn(3, 3, 224, 224)
    with torch.inference_mode():
        rows, outputs = features(network, images), network(images)
        accept_features(network)
        assert torch.equal(network(rows), outputs)
        assert torch.equal(network(images), outputs)


@pytest.mark.slow
def test_a_probe_is_as_accurate_as_logistic_regression(first: Here, cache: Path) -> None:
    linear = pytest.importorskip("sklearn.linear_model", reason="scikit-learn is not installed")
    words = ["dataset.train_samples=600", "dataset.val_samples=400", "epochs=100", "batch_size=64"]
    first(*PROBE, *words, "run_name=probe")
    rows = {len(one): one for one in map(np.load, cache.glob("*.npy"))}
    labels = [np.repeat(np.arange(10), count // 10) for count in (600, 400)]
    solved = linear.LogisticRegression(max_iter=5000).fit(rows[600], labels[0]).score(rows[400], labels[1])
    *_, last = (
        row for row in map(json.loads, (first.folder / "runs/probe/metrics.jsonl").open()) if row["kind"] == "eval"
    )
    assert last["metrics"]["top1"] == pytest.approx(solved, abs=1.96 * math.sqrt(solved * (1 - solved) / 400))
    assert solved > 0.2
