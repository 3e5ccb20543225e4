"""The network of airbench against its description, and its initial weights."""

import pytest
import torch
from torch import nn

from launcher.config.compose import compose
from launcher.models.build import build_model
from tests.airbench import logits


def airbench(*words: str, classes: int = 10, channels: int = 3) -> nn.Module:
    config = compose(["model=airbench", *words]).config
    return build_model(config.model, classes, config.loss, 3, channels)


WORDS_96 = ["model.widths=[12,16,20]", "model.convolutions=3", "model.batchnorm_momentum=0.1"]


@pytest.mark.parametrize(("words", "convolutions", "momentum"), [([], 2, 0.4), (WORDS_96, 3, 0.1)])
def test_it_computes_what_the_paper_describes(words: list[str], convolutions: int, momentum: float) -> None:
    network = airbench(*words).double()
    random = torch.Generator().manual_seed(0)
    for name, parameter in network.named_parameters():
        if name.endswith("bias"):
            parameter.detach().normal_(generator=random)
    weights = {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}
    images = torch.randn(4, 3, 32, 32, dtype=torch.float64, generator=random)
    torch.testing.assert_close(network(images), logits(weights, images, convolutions=convolutions, momentum=momentum))
    statistics = {name: tensor for name, tensor in network.state_dict().items() if "running" in name}
    assert len(statistics) == 6 * convolutions
    for name, tensor in statistics.items():
        torch.testing.assert_close(tensor, weights[name])
    evaluated = network.eval()(images)
    torch.testing.assert_close(evaluated, logits(weights, images, convolutions=convolutions, momentum=None))


@pytest.mark.parametrize(("widths", "convolutions", "count"), [([64, 256, 256], 2, 0), ([128, 384, 512], 3, 1)])
def test_it_has_the_published_number_of_weights(widths: list[int], convolutions: int, count: int) -> None:
    """The sum by layer: without weights of norms, which are one and do not learn."""
    network = airbench(f"model.widths={widths}".replace(" ", ""), f"model.convolutions={convolutions}")
    inputs, total = 24, 12 * 24 + 24 + 10 * widths[-1]
    for width in widths:
        total += 9 * width * (inputs + (convolutions - 1) * width) + convolutions * width
        inputs = width
    assert sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad) == total
    norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
    assert all(torch.equal(norm.weight, torch.ones_like(norm.weight)) for norm in norms)


def test_convolutions_start_as_identities_and_the_rest_as_torch_draws_it() -> None:
    network = airbench()
    for name, module in network.named_modules():
        if not isinstance(module, nn.Conv2d) or name == "whiten":
            continue
        images = torch.randn(1, module.in_channels, 8, 8)
        torch.testing.assert_close(module(images)[:, : module.in_channels], images)
        bound = (9 * module.in_channels) ** -0.5
        rest = module.weight[module.in_channels :]
        assert not len(rest) or 0.95 * bound < rest.abs().max() <= bound
    assert 0.95 < network.head.weight.abs().max() * 16 <= 1  # type: ignore[union-attr, operator]
    assert not network.whiten.bias.any()  # type: ignore[union-attr, operator]


def test_weights_depend_on_the_seed_and_their_name_alone() -> None:
    first, second = airbench().state_dict(), airbench("model.convolutions=3", "model.output_scale=0.5").state_dict()
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())


def test_images_may_have_other_channels_and_sizes() -> None:
    network = airbench("model.output_scale=0.5", classes=7, channels=2).eval()
    assert network(torch.randn(2, 2, 64, 48)).shape == (2, 7)
    assert network.whiten.weight.shape == (16, 2, 2, 2)  # type: ignore[union-attr]
