from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from launcher.config.compose import compose
from launcher.errors import UserError
from launcher.tasks import build_task
from launcher.training.evaluation import Evaluation, evaluate
from tests.two_ranks import on_ranks

CPU = torch.device("cpu")
CLASSES = 12
INPUT = ["dataset.mean=[0.5,0.5,0.5]", "dataset.std=[1.0,1.0,1.0]"]
TASK, MIRRORING = (build_task(compose([*INPUT, f"image.eval_flip_average={on}"]).config) for on in ("false", "true"))


def network(classes: int = CLASSES) -> nn.Module:
    """Return a network with dropout and batch norm, which shows a missing evaluation mode."""
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Flatten(), nn.Linear(4 * 6 * 6, classes)
    )


def samples(count: int, classes: int = CLASSES) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    images = torch.randint(0, 256, (count, 3, 8, 8), dtype=torch.uint8, generator=generator)
    return images, torch.randint(0, classes, (count,), generator=generator)


def batches(images: Tensor, labels: Tensor, size: int):
    for first in range(0, len(images), size):
        yield images[first : first + size], labels[first : first + size], torch.arange(first, first + size).numpy()


def prepare(images: Tensor) -> Tensor:
    return images.float() / 255 - 0.5


def run(model, loader, *, flip_average=False, autocast=nullcontext, should_stop=lambda: False) -> Evaluation | None:
    return evaluate(model, MIRRORING if flip_average else TASK, loader, autocast, CPU, should_stop)


def expected(model: nn.Module, images: Tensor, labels: Tensor, classes: int = CLASSES, *, flip: bool = False):
    """Compute metrics and loss of the whole set in one batch by torchmetrics."""
    # note: its import takes seconds, and ranks do not need it
    from torchmetrics.functional.classification import multiclass_accuracy, multiclass_f1_score

    with torch.no_grad():
        model.eval()
        logits = model(prepare(images))
        if flip:
            logits = torch.stack([logits, model(prepare(images).flip(dims=[-1]))]).mean(0)
        model.train()
    accuracies = [
        multiclass_accuracy(logits, labels, num_classes=classes, average="micro", top_k=k).item()
        for k in (1, min(5, classes))
    ]
    accuracies += [f(logits, labels, num_classes=classes).item() for f in (multiclass_accuracy, multiclass_f1_score)]
    return (*accuracies, F.cross_entropy(logits, labels).item(), len(labels))


def close(result: Evaluation, values) -> bool:
    return (*result.metrics.values(), result.loss, result.samples) == pytest.approx(values, rel=1e-5)


@pytest.mark.parametrize("batch_size", [7, 16, 100])
@pytest.mark.parametrize("flip", [False, True])
def test_metrics_equal_torchmetrics_for_any_batch_size(batch_size, flip):
    model, (images, labels) = network(), samples(100)
    result = run(model, batches(images, labels, batch_size), flip_average=flip)
    assert close(result, expected(model, images, labels, flip=flip))


@pytest.mark.parametrize("classes", [2, 5])
def test_top5_of_at_most_five_classes_is_1(classes):
    model, (images, labels) = network(classes), samples(40, classes)
    result = run(model, batches(images, labels, 16))
    assert result.metrics["top5"] == 1.0
    assert close(result, expected(model, images, labels, classes))


@pytest.mark.parametrize(
    ("labels", "predicted", "expected"),
    [
        ([0, 1, 2, 0, 1, 2], [0, 2, 1, 0, 0, 1], (1 / 3, 0.8 / 3)),  # scikit-learn's documentation: macro F1 is 0.26...
        ([0, 1, 0, 0, 1, 0], [0, 1, 0, 0, 0, 1], (0.625, 0.625)),  # its balanced accuracy is 0.625
        ([0, 0, 0, 3], [0, 1, 1, 1], (1 / 6, 1 / 6)),  # class 1 is only predicted, class 2 neither
        ([5, 5, 5], [5, 5, 5], (1.0, 1.0)),
    ],
)
def test_balanced_accuracy_and_macro_f1_are_scikit_learns(labels, predicted, expected):
    images = torch.zeros(len(labels), 3, 8, 8, dtype=torch.uint8)
    scores = iter(F.one_hot(torch.tensor(predicted), CLASSES).float().split(4))
    model = network()
    model.forward = lambda images: next(scores)
    metrics = run(model, batches(images, torch.tensor(labels), 4)).metrics
    assert (metrics["balanced_accuracy"], metrics["macro_f1"]) == pytest.approx(expected)


def test_an_evaluation_shows_balanced_accuracy_where_classes_differ():
    metrics = {"top1": 0.5, "top5": 1.0, "balanced_accuracy": 0.5, "macro_f1": 0.4}
    assert TASK.text(metrics) == "top-1 50.00%  top-5 100.00%"
    assert TASK.text(metrics | {"balanced_accuracy": 0.25}).endswith("top-5 100.00%  balanced accuracy 25.00%")


@pytest.mark.parametrize("training", [True, False])
def test_the_model_does_not_change(training):
    model, (images, labels) = network().train(training), samples(20)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    run(model, batches(images, labels, 8))
    assert all(module.training == training for module in model.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_the_model_does_not_change_when_the_loader_fails():
    def failing():
        yield (*samples(4), None)
        raise OSError("disk")

    model = network().train()
    with pytest.raises(OSError, match="disk"):
        run(model, failing())
    assert model.training


def test_the_forward_pass_uses_the_autocast_precision():
    dtypes = []
    model = network()
    model.register_forward_hook(lambda module, inputs, output: dtypes.append(output.dtype))
    result = run(model, batches(*samples(8), 8), autocast=lambda: torch.autocast("cpu", dtype=torch.bfloat16))
    assert dtypes == [torch.bfloat16]
    assert result.loss == pytest.approx(expected(network(), *samples(8))[-2], rel=0.02)


def test_a_stop_request_ends_the_evaluation_at_the_next_batch_without_a_result():
    requests = iter([False, False, True])
    batch_sizes = []

    def loader():
        for batch in batches(*samples(80), 8):
            batch_sizes.append(len(batch[1]))
            yield batch

    assert run(network(), loader(), should_stop=lambda: next(requests)) is None
    assert len(batch_sizes) == 3


def test_an_empty_validation_set_is_refused():
    with pytest.raises(UserError, match="validation set is empty"):
        run(network(), [])


SHARDS = (slice(0, 41), slice(41, 50), slice(50, 50))


def evaluate_shard(rank: int, results: str, stop_second: bool) -> None:
    images, labels = samples(50)
    loader = batches(images[SHARDS[rank]], labels[SHARDS[rank]], 8)
    result = run(network(), loader, should_stop=lambda: stop_second and rank == 1)
    torch.save(vars(result) if result else None, f"{results}/{rank}.pt")


@pytest.mark.parametrize("stop_second", [False, True])
def test_ranks_with_uneven_shards_evaluate_the_whole_set(tmp_path, stop_second):
    on_ranks(3, evaluate_shard, str(tmp_path), stop_second)
    first, second, without_images = (torch.load(tmp_path / f"{rank}.pt") for rank in range(3))
    assert first == second == without_images
    if stop_second:
        assert first is None
    else:
        assert close(Evaluation(**first), expected(network(), *samples(50)))
