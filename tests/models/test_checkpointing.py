from functools import partial
from importlib import import_module

import pytest
import torch
from torch import nn
from torchvision.models.resnet import BasicBlock, Bottleneck

from launcher.config.compose import compose
from launcher.errors import UserError
from launcher.models.build import build_model
from launcher.training.trainer import Trainer
from tests.networks import tiny
from tests.trainers import SMALL, alone, steps, tensors

RESNET, PARTS = ["model=resnet18"], ["device_batch_size=4"]
CASES = {
    "plain": RESNET,
    "parts": [*RESNET, *PARTS],
    "drops": [*RESNET, "algorithms=[stochastic_depth]", "algorithms.stochastic_depth.drop_rate=0.5", *PARTS],
    "ghosts": [*RESNET, "algorithms=[ghost_batchnorm]", "algorithms.ghost_batchnorm.ghost_batch_size=4"],
    "sam": [
        *(*RESNET, *PARTS, "algorithms=[sam,blurpool,squeeze_excite]", "algorithms.sam.interval=1"),
        "algorithms.squeeze_excite.min_channels=32",
    ],
    "bottlenecks": ["model=resnet50"],
    "timm without batch norm": [
        *("model=timm", "model.architecture=test_vit", "model.img_size=32", "model.drop_rate=0.3"),
        *("model.drop_path_rate=0.3", *PARTS),
    ],
    "vit": [
        *("model=vit", "model.width=32", "model.depth=2", "model.mlp_width=48", "model.heads=4", *PARTS),
        *("algorithms=[stochastic_depth]", "algorithms.stochastic_depth.drop_rate=0.5"),
    ],
    "timm with batch norm": ["model=timm", "model.architecture=test_efficientnet", "model.drop_path_rate=0.3"],
}


def trainer(*words: str) -> Trainer:
    return alone(compose([*SMALL, "schedule.warmup=0ba", *words]).config)


def computed(run: Trainer) -> tuple[list[float], int]:
    """Return the losses of two steps, and the number of times that layers were computed."""
    calls = []
    for module in run.train_step.model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.register_forward_pre_hook(lambda *_: calls.append(1))
    return steps(run, 2), len(calls)


@pytest.mark.parametrize("name", CASES)
def test_weights_and_statistics_are_bit_equal_to_a_run_without_checkpointing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = Bottleneck if name == "bottlenecks" else BasicBlock
    monkeypatch.setattr("launcher.models.resnet.library_network", partial(tiny, block=block))
    plain, checkpointed = (trainer(*CASES[name], f"model.checkpointing={word}") for word in ("off", "on"))
    (losses, calls), (same, more) = computed(plain), computed(checkpointed)
    assert losses == same
    assert more > 1.3 * calls
    for key in ("model", "optimizer"):
        ours, theirs = (tensors(run.state_dict()[key]) for run in (checkpointed, plain))
        assert len(ours) == len(theirs)
        assert all(map(torch.equal, ours, theirs)), key


def test_memory_saved_for_the_backward_pass_shrinks() -> None:
    saved = {}
    for word in ("off", "on"):
        config = compose([*RESNET, f"model.checkpointing={word}"]).config
        network = build_model(config.model, 10, config.loss, 0).train()
        seen: dict[int, int] = {}

        def pack(tensor: torch.Tensor, seen: dict[int, int] = seen) -> torch.Tensor:
            seen[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            logits = network(torch.randn(4, 3, 64, 64))
        saved[word] = sum(seen.values())
        del logits
    weights = sum(4 * parameter.numel() for parameter in network.parameters())
    assert saved["on"] < weights < saved["off"]


def test_evaluation_is_unchanged() -> None:
    config = compose([*RESNET, "model.checkpointing=on"]).config
    network = build_model(config.model, 10, config.loss, 0).eval()
    plain = build_model(compose(RESNET).config.model, 10, config.loss, 0).eval()
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(network(images), plain(images))
    assert list(network.state_dict()) == list(plain.state_dict())


def test_a_model_without_checkpointing_is_refused() -> None:
    config = compose(["model=timm", "model.architecture=nasnetalarge", "model.checkpointing=on"]).config
    with (
        torch.device("meta"),
        pytest.raises(UserError, match=r"model\.checkpointing=on: timm's NASNetALarge does not support"),
    ):
        build_model(config.model, 10, config.loss, 0)


@pytest.mark.parametrize(
    ("words", "part", "inputs"),
    [
        (
            ["model=gpt", "model.width=24", "model.heads=3", "model.dropout=0"],
            "causal_transformer.CausalBlock",
            torch.arange(16)[None],
        ),
        (
            ["model=unet", "task=segmentation", "loss=dice_cross_entropy", "model.filters=4"],
            "residual_unet.TwoConvolutions",
            torch.ones(1, 3, 64, 64),
        ),
    ],
)
def test_blocks_are_computed_twice(
    words: list[str], part: str, inputs: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes, name = [], f"launcher.models.{part}.forward"
    module, _, kind = part.partition(".")
    forward = getattr(import_module(f"launcher.models.{module}"), kind).forward
    monkeypatch.setattr(name, lambda *inputs: passes.append(1) or forward(*inputs))  # type: ignore[func-returns-value]
    counts, gradients = [], []
    for word in ("off", "on"):
        config = compose([*words, f"model.checkpointing={word}"]).config
        network = build_model(config.model, 17, config.loss, 0).train()
        passes.clear()
        network(inputs).square().sum().backward()
        counts.append(len(passes))
        gradients.append([parameter.grad for parameter in network.parameters()])
    assert counts[1] == 2 * counts[0] > 0
    assert all(map(torch.equal, *gradients))
