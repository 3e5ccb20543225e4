"""Weights of classes in the loss of the real step: the same on any ranks and micro-batches, compiled, and resumed."""

import json
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from launcher.config.compose import compose
from launcher.rank.group import Ranks
from launcher.records.metrics import read_metrics
from launcher.records.run_folder import create
from launcher.training import checkpoint
from launcher.training.evaluation import Evaluation
from launcher.training.trainer import build_trainer
from launcher.weights.trained_model import model_card
from tests.networks import tiny, use_tiny
from tests.trainers import SMALL, alone, assert_resumes_to_the_same_bits, build, steps, train_all
from tests.two_ranks import on_ranks

# 33 training images: three classes have four, the others three.
UNEQUAL = ["dataset.train_samples=33", "batch_size=12", "loss.class_weights=[9,9,9,1,1,1,1,1,1,1]"]
# Values of classes in the loss that come from the counts of the same images.
OF_COUNTS = [("bce", "loss.pos_weight=balanced"), ("cross_entropy", "loss.logit_adjustment=1.5")]
AUTO = ["dataset.train_samples=33", "loss.class_weights=auto"]
EVERY = ["algorithms=[mixup,cutmix,label_smoothing,sam,selective_backprop]", "algorithms.sam.interval=2"]
EVERY += ["algorithms.selective_backprop.start=0.0", "algorithms.selective_backprop.end=1.0"]


def test_auto_weights_come_from_the_training_images() -> None:
    assert build(*AUTO).state_dict()["class_weights"] == pytest.approx([33 / 40] * 3 + [33 / 30] * 7)
    words = ["dataloader=synthetic", "loss.class_weights=auto", *(word for word in SMALL if "workers" not in word)]
    with patch("launcher.models.resnet.library_network", tiny):
        synthetic = alone(compose([*words, "dataset.train_samples=40"]).config)
    assert synthetic.state_dict()["class_weights"] == [1.0] * 10
    assert build().state_dict()["class_weights"] is None


@pytest.mark.parametrize(("loss", "word"), [*OF_COUNTS, ("cross_entropy", UNEQUAL[2])])
def test_values_of_classes_are_in_the_loss_of_the_step_alone_and_resume(loss: str, word: str, tmp_path: Path) -> None:
    words = [*UNEQUAL[:2], f"loss={loss}"]
    plain, changed = build(*words), build(*words, word)
    assert plain.evaluate(lambda: False) == changed.evaluate(lambda: False)
    assert steps(plain, 1) != steps(changed, 1)
    assert_resumes_to_the_same_bits([*words, word, *EVERY], tmp_path / "step-00000003.pt")


@pytest.mark.parametrize("targets", ["label_smoothing", "ghost_batchnorm"])
def test_micro_batches_do_not_change_the_weighted_loss(targets: str) -> None:
    words = [*UNEQUAL, "algorithms=[ghost_batchnorm]", "algorithms.ghost_batchnorm.ghost_batch_size=3"]
    words = [word.replace("[ghost_batchnorm]", f"[ghost_batchnorm,{targets}]") for word in words]
    one, four = steps(build(*words), 2), steps(build(*words, "device_batch_size=3"), 2)
    assert four == pytest.approx(one, rel=1e-5)


def first_loss(rank: int, world: int, folder: Path, words: list[str]) -> None:
    torch.set_num_threads(1)
    use_tiny()
    config = compose(["schedule.warmup=0ba", *SMALL, *UNEQUAL, *words]).config
    run = build_trainer(config, Ranks(rank, world, rank, world, torch.device("cpu")))
    run.train_step.model.eval()
    (folder / f"{world}-{rank}.json").write_text(json.dumps(steps(run, 1)))


@pytest.mark.parametrize(
    "words", [["dataset.sampling=balanced"], *([f"loss={loss}", word] for loss, word in OF_COUNTS)]
)
def test_the_mean_of_the_ranks_losses_is_that_of_one_rank(words: list[str], tmp_path: Path) -> None:
    means = []
    for world in (1, 2, 3):
        on_ranks(world, first_loss, world, tmp_path, words)
        losses = [json.loads((tmp_path / f"{world}-{rank}.json").read_text())[0] for rank in range(world)]
        means.append(sum(losses) / world)
    assert means == pytest.approx(means[:1] * 3, rel=1e-5)


def test_the_best_step_is_that_of_the_metric(tmp_path: Path) -> None:
    run = build("metric=balanced_accuracy", "epochs=3")
    for step, (top1, balanced) in enumerate([(0.5, 0.5), (0.4, 0.6), (0.9, 0.5)], 1):
        run.next_step = step
        run.note_evaluation(Evaluation({"balanced_accuracy": balanced, "top1": top1, "top5": 1, "macro_f1": 0}, 1.0, 9))
    assert (run.best_step, run.best["top1"]) == (2, 0.9)


def test_records_and_export_have_the_weights_and_metrics_by_name(tmp_path: Path) -> None:
    words = [*UNEQUAL, "target=balanced_accuracy:0.9", "stop.patience=2", "metric=macro_f1"]
    run, folder = build(*words, "epochs=1", "logger.tensorboard=false"), create(tmp_path, "run", unique=False)
    train_all(run, folder)
    start, *_ = rows = read_metrics(folder.metrics)
    (evaluated,) = (row["metrics"] for row in rows if row["kind"] == "eval")
    assert start["class_weights"] == [9.0] * 3 + [1.0] * 7
    assert list(evaluated) == ["macro_f1", "top1", "top5", "balanced_accuracy"]
    assert start["primary"] == "macro_f1"
    state = checkpoint.load(next(folder.checkpoints.iterdir()))
    assert state["best"] == state["history"][0] == evaluated
    assert model_card(run.plan, state, None)["class_weights"] == start["class_weights"]
