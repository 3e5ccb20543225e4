"""examples/airbench in an empty folder with the wheel: its training against airbench's, written from paper and code."""

import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from launcher.config import resolved
from launcher.data.batch import Batch
from launcher.data.inspection import inspect_data
from launcher.records.metrics import read_metrics
from launcher.training import checkpoint
from launcher.training.trainer import Trainer
from tests.runs import draw_nothing
from tests.trainers import alone, assert_resumes
from tests.wheels import ROOT, build, command, install

pytestmark = pytest.mark.system

EXAMPLE = ROOT / "examples" / "airbench"
BATCH, STEPS, EPOCH, TOTAL = 32, 20, 6, 480
# A run of 480 steps of 32 images, six an epoch, with narrow layers.
WORDS = [
    *(f"batch_size={BATCH}", f"epochs={TOTAL // EPOCH}", "eval_batch_size=32", "model.widths=[16,24,24]"),
    *("dataset=shapes", f"dataset.train_samples={BATCH * EPOCH}", "dataset.val_samples=20", "dataset.native_size=32"),
    *("launch=cpu", "launch.nproc=1", "precision=fp32", "dataloader.workers=0", "eval_every=80ep"),
    *("logger.interval=1ba", "logger.tensorboard=false", f"checkpoint.every={STEPS}ba", "checkpoint.keep=100"),
]
# Learning rate and weight decay per 1024 images, convolutions of a group, momentum of statistics, warmup, last rate.
PUBLISHED = {
    "airbench94": (11.5, 0.0153, 2, 0.4, 0.23, 0.07),
    "airbench96": (9.0, 0.012, 3, 0.1, 0.1, 0.0),
}
BIAS_FACTOR = 64.0


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the installed wheel."""
    return install(build(tmp_path_factory.mktemp("wheel")), tmp_path_factory.mktemp("site"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Work in a copy of the example, whose code this process forgets afterwards."""
    shutil.copytree(EXAMPLE, folder := tmp_path / "own", ignore=shutil.ignore_patterns("__pycache__", "runs"))
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    monkeypatch.setenv("TRAIN_CODE", "[]")
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "airbench"]:
        del sys.modules[name]


def train(site: Path, folder: Path, *words: str) -> str:
    output, errors = (process := command(site, folder, *words, before=[draw_nothing])).communicate()
    assert process.returncode == 0, errors
    return output


def logits(weights: Mapping[str, Tensor], images: Tensor, convolutions: int, momentum: float) -> Tensor:
    """Return the logits of images [B, 3, 32, 32] in training; momentum: of the running statistics."""

    def norm(x: Tensor, name: str) -> Tensor:
        count, mean, spread = x.numel() / x.shape[1], x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)
        for statistic, now in (("mean", mean), ("var", spread * count / (count - 1))):
            kept = weights[f"{name}.running_{statistic}"]
            kept.copy_((1 - momentum) * kept + momentum * now.detach())
        mean, spread = (one.view(1, -1, 1, 1) for one in (mean, spread))
        return (x - mean) / (spread + 1e-12).sqrt() + weights[f"{name}.bias"].view(1, -1, 1, 1)

    def active(x: Tensor) -> Tensor:
        return x * (1 + torch.erf(x / 2**0.5)) / 2

    x = active(F.conv2d(images, weights["whiten.weight"], weights["whiten.bias"]))
    for group in range(3):
        x = F.max_pool2d(F.conv2d(x, weights[f"groups.{group}.convs.0.weight"], padding=1), 2)
        first = x = active(norm(x, f"groups.{group}.norms.0"))
        for number in range(1, convolutions):
            x = F.conv2d(x, weights[f"groups.{group}.convs.{number}.weight"], padding=1)
            x = norm(x, f"groups.{group}.norms.{number}")
            x = active(x + first) if number == 2 else active(x)
    return F.max_pool2d(x, 3).flatten(1) @ weights["head.weight"].T / 9


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
        outputs = logits(self.weights, images, self.convolutions, self.momentum)
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
def test_twenty_steps_of_the_command_are_those_of_the_published_training(
    recipe: str, site: Path, folder: Path, tmp_path: Path
) -> None:
    train(site, folder, f"recipe={recipe}", *WORDS, "run_name=run")
    ours = [row["loss"] for row in read_metrics(folder / "runs" / "run" / "metrics.jsonl") if row["kind"] == "train"]
    config = inspect_data(resolved.read(folder / "runs" / "run" / "config.yaml"), must_exist=True).config

    def new() -> Trainer:
        return alone(config)

    run = new()
    assert (run.plan.total_steps, run.plan.steps_per_epoch) == (TOTAL, EPOCH) == (len(ours), EPOCH)
    published, theirs = Published(recipe, run.train_step.model.state_dict()), list[float]()
    for step in range(STEPS):
        inputs, labels, indices = next(iter(run.rest_of_epoch()))
        prepared = run.train_step.prepare(Batch(inputs, labels, indices, run.moment(step)))
        run.next_step += 1
        theirs.append(published(step, prepared.inputs, labels))
    torch.testing.assert_close(torch.tensor(ours[:STEPS]), torch.tensor(theirs), rtol=1e-5, atol=1e-5)
    assert abs(ours[STEPS - 1] - ours[0]) > 0.01
    state = checkpoint.load(folder / "runs" / "run" / "checkpoints" / f"step-{STEPS:08d}.pt")
    for name in published.average:
        expected = published.weights[name].detach()
        torch.testing.assert_close(state["model"][name], expected, rtol=1e-3, atol=1e-4)
    assert_resumes(new, tmp_path / "step-00000003.pt")


def test_the_commands_of_its_page_run(site: Path, folder: Path) -> None:
    lines = re.findall(r"^    train (.*)$", (EXAMPLE / "README.md").read_text(), re.MULTILINE)
    assert len(lines) > 2
    for line in lines:
        words = ["plan", *line.split()] if line.startswith("recipe=") else line.split()
        assert "airbench" in train(site, folder, *words)


def test_a_translation_is_a_crop_after_padding_by_reflection(site: Path, folder: Path) -> None:
    train(site, folder, "show", "code=airbench", "algorithms=[translation]")
    sys.path.insert(0, str(folder))
    try:
        from airbench.translation import translated
    finally:
        sys.path.remove(str(folder))
    images = (torch.rand(25, 3, 9, 8) * 255).contiguous(memory_format=torch.channels_last)
    shifts = torch.tensor([(y, x) for y in range(-2, 3) for x in range(-2, 3)])
    padded = F.pad(images, (2, 2, 2, 2), "reflect")
    pairs = zip(padded, shifts.tolist(), strict=True)
    expected = torch.stack([image[:, 2 + y : 11 + y, 2 + x : 10 + x] for image, (y, x) in pairs])
    assert torch.equal(translated(images, shifts), expected)
