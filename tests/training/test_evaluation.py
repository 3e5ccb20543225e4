from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from launcher.config.tasks import ClassificationConfig
from launcher.errors import UserError
from launcher.tasks import build_task
from launcher.training.evaluation import Evaluation, evaluate
from tests.two_ranks import on_two_ranks

CPU = torch.device("cpu")
CLASSES = 12
TASK = build_task(ClassificationConfig(name="classification"), "cross_entropy")


def network(classes: int = CLASSES) -> nn.Module:
    """Dropout and batch norm make a forgotten eval mode show."""
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
    return evaluate(model, loader, prepare, TASK, CPU, autocast, flip_average=flip_average, should_stop=should_stop)


def expected(model: nn.Module, images: Tensor, labels: Tensor, classes: int = CLASSES, *, flip: bool = False):
    """The whole set in one batch, by torchmetrics."""
    # note: seconds of import, which ranks need not wait for
    from torchmetrics.functional.classification import multiclass_accuracy

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
    return (*accuracies, F.cross_entropy(logits, labels).item(), len(labels))


def close(result: Evaluation, values) -> bool:
    return (*result.metrics.values(), result.loss, result.samples) == pytest.approx(values, rel=1e-5)


@pytest.mark.parametrize("batch_size", [7, 16, 100])
@pytest.mark.parametrize("flip", [False, True])
def test_agrees_with_torchmetrics_whatever_the_batch_size(batch_size, flip):
    model, (images, labels) = network(), samples(100)
    result = run(model, batches(images, labels, batch_size), flip_average=flip)
    assert close(result, expected(model, images, labels, flip=flip))


@pytest.mark.parametrize("classes", [2, 5])
def test_top5_of_few_classes_counts_all_of_them(classes):
    model, (images, labels) = network(classes), samples(40, classes)
    result = run(model, batches(images, labels, 16))
    assert result.metrics["top5"] == 1.0
    assert close(result, expected(model, images, labels, classes))


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_as_it_was(training):
    model, (images, labels) = network().train(training), samples(20)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    run(model, batches(images, labels, 8))
    assert all(module.training == training for module in model.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_the_model_is_left_as_it_was_when_the_loader_fails():
    def failing():
        yield (*samples(4), None)
        raise OSError("disk")

    model = network().train()
    with pytest.raises(OSError, match="disk"):
        run(model, failing())
    assert model.training


def test_the_forward_pass_runs_in_the_given_precision():
    seen = []
    model = network()
    model.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    result = run(model, batches(*samples(8), 8), autocast=lambda: torch.autocast("cpu", dtype=torch.bfloat16))
    assert seen == [torch.bfloat16]
    assert result.loss == pytest.approx(expected(network(), *samples(8))[2], rel=0.02)


def test_a_request_to_stop_ends_at_the_next_batch_without_a_result():
    asked = iter([False, False, True])
    read = []

    def loader():
        for batch in batches(*samples(80), 8):
            read.append(len(batch[1]))
            yield batch

    assert run(network(), loader(), should_stop=lambda: next(asked)) is None
    assert len(read) == 3


def test_an_empty_validation_set_is_refused():
    with pytest.raises(UserError, match="no images"):
        run(network(), [])


SHARDS = (slice(0, 41), slice(41, 50))


def evaluate_shard(rank: int, results: str, stop_second: bool) -> None:
    images, labels = samples(50)
    loader = batches(images[SHARDS[rank]], labels[SHARDS[rank]], 8)
    result = run(network(), loader, should_stop=lambda: stop_second and rank == 1)
    torch.save(vars(result) if result else None, f"{results}/{rank}.pt")


@pytest.mark.parametrize("stop_second", [False, True])
def test_two_ranks_with_uneven_shards_add_up_to_the_whole_set(tmp_path, stop_second):
    on_two_ranks(evaluate_shard, str(tmp_path), stop_second)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert first == second
    if stop_second:
        assert first is None
    else:
        assert close(Evaluation(**first), expected(network(), *samples(50)))
