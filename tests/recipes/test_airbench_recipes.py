"""The recipes of airbench on synthetic files of CIFAR-10, against its training as paper and code describe it."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from launcher.config.compose import compose
from launcher.data.batch import Batch
from launcher.data.inspection import inspect_data
from launcher.training.trainer import Trainer
from tests.airbench import BIAS_FACTOR, logits
from tests.data.sources.cifar import write_cifar
from tests.trainers import alone, assert_resumes

pytestmark = pytest.mark.slow

BATCH, STEPS, EPOCH, TOTAL = 32, 20, 6, 480
# Learning rate and weight decay per 1024 images, convolutions of a group, momentum of statistics, warmup, last rate.
PUBLISHED = {
    "airbench94": (11.5, 0.0153, 2, 0.4, 0.23, 0.07),
    "airbench96": (9.0, 0.012, 3, 0.1, 0.1, 0.0),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_cifar(tmp_path_factory.mktemp("cifar"), 10, "python")


def run_of(recipe: str, files: Path) -> Trainer:
    """Return a run of 480 steps of 32 images, six an epoch, with narrow layers."""
    sizes = [f"batch_size={BATCH}", f"epochs={TOTAL // EPOCH}", "dataloader.workers=0", "model.widths=[16,24,24]"]
    words = [f"recipe={recipe}", f"dataset.path={files}", *sizes, "launch=cpu", "precision=fp32"]
    return alone(inspect_data(compose(words).config, must_exist=True).config)


class Published:
    """Airbench's step: the loss is a sum, and learning rates and weight decays are decoupled."""

    def __init__(self, recipe: str, weights: dict[str, Tensor]):
        self.lr, decay, self.convolutions, self.momentum, self.warmup, self.final = PUBLISHED[recipe]
        self.weights = {name: tensor.detach().clone() for name, tensor in weights.items()}
        self.average = {name: tensor.clone() for name, tensor in self.weights.items() if tensor.is_floating_point()}
        scale = 1024 * (1 + 1 / (1 - 0.85))
        lr, decay = self.lr / scale, decay * BATCH / scale
        biases = [one.requires_grad_() for name, one in self.weights.items() if "norms" in name and "bias" in name]
        kernels = [name for name in self.weights if "convs" in name]
        others = [self.weights[name].requires_grad_() for name in ("whiten.bias", *kernels, "head.weight")]
        groups = [
            {"params": biases, "lr": BIAS_FACTOR * lr, "weight_decay": decay / (BIAS_FACTOR * lr)},
            {"params": others, "lr": lr, "weight_decay": decay / lr},
        ]
        self.optimizer = torch.optim.SGD(groups, lr, momentum=0.85, nesterov=True)
        self.peaks = [group["lr"] for group in groups]

    def __call__(self, step: int, images: Tensor, labels: Tensor) -> float:
        """Take a step, counted from 0, on prepared images; return the mean loss."""
        self.weights["whiten.bias"].requires_grad_(step < 3 * EPOCH)
        outputs = logits(self.weights, images, convolutions=self.convolutions, momentum=self.momentum)
        loss = F.cross_entropy(outputs, labels, label_smoothing=0.2, reduction="sum")
        self.optimizer.zero_grad()
        loss.backward()
        warmup = int(TOTAL * self.warmup)
        place = step / warmup if step < warmup else (step - warmup) / (TOTAL - warmup)
        rate = 0.2 + 0.8 * place if step < warmup else 1 + (self.final - 1) * place
        for group, peak in zip(self.optimizer.param_groups, self.peaks, strict=True):
            group["lr"] = rate * peak
        self.optimizer.step()
        if (step + 1) % 5 == 0:
            keep = 0.95**5 * ((step + 1) / TOTAL) ** 3
            for name, average in self.average.items():
                average.copy_(keep * average + (1 - keep) * self.weights[name].detach())
                self.weights[name].data.copy_(average)
        return loss.item() / BATCH


@pytest.mark.parametrize("recipe", PUBLISHED)
def test_twenty_steps_have_the_losses_of_the_published_training(recipe: str, files: Path) -> None:
    run = run_of(recipe, files)
    assert (run.plan.total_steps, run.plan.steps_per_epoch) == (TOTAL, EPOCH)
    published = Published(recipe, run.train_step.model.state_dict())
    ours, theirs = list[float](), list[float]()
    prepared: list[tuple[Tensor, Tensor]] = []
    prepare = run.train_step.prepare

    def noted(batch: Batch) -> Batch:
        labels, batch = batch.targets, prepare(batch)
        prepared.append((batch.inputs.clone(), labels))
        return batch

    run.train_step.prepare = noted  # type: ignore[method-assign]
    for step in range(STEPS):
        images, labels, indices = next(iter(run.rest_of_epoch()))
        outcome = run.train_step(images, labels, indices, run.moment(step))
        run.next_step += 1
        ours.append(outcome.report().loss)
        theirs.append(published(step, *prepared[-1]))
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), rtol=1e-5, atol=1e-5)
    assert abs(ours[-1] - ours[0]) > 0.01
    for name, parameter in run.train_step.model.named_parameters():
        torch.testing.assert_close(parameter, published.weights[name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("recipe", PUBLISHED)
def test_a_resumed_run_has_the_same_bits(recipe: str, files: Path, tmp_path: Path) -> None:
    assert_resumes(lambda: run_of(recipe, files), tmp_path / "step-00000003.pt")
