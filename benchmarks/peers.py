"""The peers of the training step: the loop that a PyTorch user would write, and Composer's trainer."""

from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from launcher.config.compose import compose
from launcher.training.precision import Precision

Steps = Callable[[int], object]
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def repeat(step: Callable[[], object]) -> Steps:
    """Return a function that repeats a step."""

    def steps(count: int) -> None:
        for _ in range(count):
            step()

    return steps


def peer_step(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    precision: Precision,
    *,
    fused: bool = False,
    compile_words: Mapping[str, Any] = MappingProxyType({}),
) -> Callable[[], object]:
    """Return a step of the loop that a PyTorch user would write: channels last, mixed precision, SGD with momentum.

    fused: whether SGD is one kernel; compile_words: arguments of torch.compile, none for eager.
    """
    model = model.to(images.device).to(memory_format=torch.channels_last).train()
    # note: foreach is PyTorch's default on a GPU
    update = {"fused" if fused else "foreach": True}
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=5e-5, **update)
    scaler, network = precision.scaler(), torch.compile(model, **compile_words) if compile_words else model
    normalize = _normalization(images.device)

    def one() -> None:
        inputs = normalize(images)
        optimizer.zero_grad(set_to_none=True)
        with precision.autocast():
            loss = nn.functional.cross_entropy(network(inputs), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return one


def _normalization(device: torch.device) -> Callable[[Tensor], Tensor]:
    mean, std = (255 * torch.tensor(values, device=device).view(1, 3, 1, 1) for values in (MEAN, STD))
    return lambda images: ((images.float() - mean) / std).contiguous(memory_format=torch.channels_last)


class _Batches:
    """A loader for Composer that repeats one batch; `fetched` is called before each."""

    def __init__(self, images: Tensor, labels: Tensor):
        self.batch_size = len(images)
        self.fetched: Callable[[], object] = lambda: None
        self._images, self._labels, self._normalize = images, labels, _normalization(images.device)

    def __len__(self) -> int:
        return 1_000_000

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            self.fetched()
            yield self._normalize(self._images), self._labels


class ComposerPeer:
    """Composer's trainer with a recipe's algorithms, without RandAugment, which Composer runs in loader workers."""

    def __init__(
        self, recipe: str, model: nn.Module, classes: int, images: Tensor, labels: Tensor, precision: Precision
    ):
        from composer import Trainer
        from composer.models import ComposerClassifier
        from torchmetrics import MetricCollection

        class Classifier(ComposerClassifier):
            def forward(self, batch: Any) -> Any:
                with precision.autocast():  # note: Composer refuses mixed precision on a CPU
                    return super().forward(batch)

        config = compose([f"recipe={recipe}"]).config if recipe != "none" else None
        extra = {"loss_fn": _loss(config.loss.name)} if config else {}
        # note: without training metrics, which our step does not compute either
        network = Classifier(model, classes, MetricCollection([]), MetricCollection([]), **extra)
        self.model, self.batches = model, _Batches(images, labels)
        self._trainer = Trainer(
            model=network, train_dataloader=self.batches, max_duration="1000000000ba", progress_bar=False,
            optimizers=_optimizer(network), algorithms=_algorithms(config), precision="fp32",
            device="gpu" if images.device.type == "cuda" else "cpu",
        )  # fmt: skip

    def __call__(self, steps: int) -> None:
        self._trainer.fit(duration=f"{steps}ba")


def has_composer() -> bool:
    return find_spec("composer") is not None


def _optimizer(network: nn.Module) -> Any:
    from composer.optim import DecoupledSGDW

    return DecoupledSGDW(network.parameters(), lr=1.0, momentum=0.875, weight_decay=5e-4)


def _loss(name: str) -> Any:
    from composer import loss

    return loss.binary_cross_entropy_with_logits if name == "bce" else loss.soft_cross_entropy


def _algorithms(config: Any) -> list[Any]:
    """Return Composer's algorithms with a recipe's values; only channels last without a recipe."""
    from composer import algorithms as composers

    ours = config.algorithms if config else {}
    chosen = [composers.ChannelsLast()]
    if values := ours.get("blurpool"):
        chosen.append(composers.BlurPool(values.replace_convs, values.replace_maxpool, values.blur_first))
    if values := ours.get("ema"):
        chosen.append(composers.EMA(half_life=values.half_life, update_interval=values.update_interval))
    if values := ours.get("label_smoothing"):
        chosen.append(composers.LabelSmoothing(values.smoothing))
    if values := ours.get("mixup"):
        chosen.append(composers.MixUp(alpha=values.alpha))
    if values := ours.get("colout"):
        chosen.append(composers.ColOut(values.rows, values.columns, batch=True))
    if values := ours.get("stochastic_depth"):
        chosen.append(composers.StochasticDepth("ResNetBottleneck", "sample", values.drop_rate, "linear"))
    if values := ours.get("sam"):
        chosen.append(composers.SAM(rho=values.rho, interval=values.interval))
    return chosen
