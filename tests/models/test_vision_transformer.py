"""The vision transformer against a second implementation of big_vision's: its size, logits, initial weights."""

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from launcher.config.compose import compose
from launcher.errors import UserError
from launcher.models.build import build_model
from launcher.models.vision_transformer import VisionTransformer
from launcher.optimizers.base import undecayed
from tests.trainers import VIT

VARIANTS = [
    [f"model.pooling={pooling}", f"model.layer_norm={norm}", f"model.glu={glu}"]
    for pooling, norm, glu in product(["mean", "attention"], ["pre", "post"], ["false", "true"])
]


def built(*words: str, seed: int = 0, classes: int = 7) -> Any:
    config = compose(["model=vit", *words]).config
    return build_model(config.model, classes, config.loss, seed)


def test_the_default_has_as_many_parameters_as_algoperfs() -> None:
    assert sum(p.numel() for p in built(classes=1000).parameters()) == 22_122_472


def reference(network: VisionTransformer, images: np.ndarray, *, post: bool, heads: int) -> np.ndarray:
    """Logits of images [B, 3, H, W] in float64, from the definition, by names of the weights alone."""
    w = {name: values.double().numpy() for name, values in network.state_dict().items()}

    def dense(x: np.ndarray, name: str) -> np.ndarray:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        scaled = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
        return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]

    def attend(queries: np.ndarray, x: np.ndarray, name: str) -> np.ndarray:
        parts = zip(np.split(w[f"{name}.qkv.weight"], 3), np.split(w[f"{name}.qkv.bias"], 3), strict=True)
        q, k, v = (t @ kernel.T + bias for t, (kernel, bias) in zip((queries, x, x), parts, strict=True))
        q, k, v = (t.reshape(*t.shape[:2], heads, -1) for t in (q, k, v))
        scores = np.exp(np.einsum("bnhd,bmhd->bhnm", q, k) / np.sqrt(q.shape[-1]))
        mixed = np.einsum("bhnm,bmhd->bnhd", scores / scores.sum(-1, keepdims=True), v)
        return dense(mixed.reshape(*queries.shape), f"{name}.out")

    def perceptron(x: np.ndarray, name: str) -> np.ndarray:
        h = dense(x, f"{name}.fc1")
        h = h / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3)))
        return dense(h * dense(h, f"{name}.gate") if f"{name}.gate.weight" in w else h, f"{name}.fc2")

    kernel = w["embedding.weight"]
    (batch, _, height, width), (channels, _, size, _) = images.shape, kernel.shape
    cut = images.reshape(batch, 3, height // size, size, width // size, size)
    x = np.einsum("bcyixj,dcij->byxd", cut, kernel).reshape(batch, -1, channels) + w["embedding.bias"]
    y_of, x_of = np.mgrid[: height // size, : width // size]
    omega = 1 / 10_000 ** (np.arange(channels // 4) / (channels // 4 - 1))
    angles = [np.outer(place.flatten(), omega) for place in (x_of, y_of)]
    x = x + np.concatenate([f(a) for a in angles for f in (np.sin, np.cos)], axis=1)
    for number in range(sum(name.endswith("norm1.weight") for name in w)):
        b = f"blocks.{number}"
        if post:
            x = norm(x + attend(x, x, f"{b}.attention"), f"{b}.norm1")
            x = norm(x + perceptron(x, f"{b}.mlp"), f"{b}.norm2")
        else:
            y = norm(x, f"{b}.norm1")
            x = x + attend(y, y, f"{b}.attention")
            x = x + perceptron(norm(x, f"{b}.norm2"), f"{b}.mlp")
    x = x if post else norm(x, "norm")
    if "pooling.probe" in w:
        pooled = attend(np.repeat(w["pooling.probe"], batch, 0), x, "pooling.attention")
        x = (pooled + perceptron(norm(pooled, "pooling.norm"), "pooling.mlp"))[:, 0]
    else:
        x = x.mean(1)
    return dense(np.tanh(dense(x, "pre_logits")), "head")


@pytest.mark.parametrize("words", VARIANTS)
def test_the_logits_are_big_visions_and_algoperfs(words: list[str]) -> None:
    network = built(*VIT[1:], *words)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
        images = torch.randn(3, 3, 40, 24, generator=generator)
        logits = network(images).numpy()
    expected = reference(network, images.double().numpy(), post="model.layer_norm=post" in words, heads=4)
    assert expected.std() > 0.1
    np.testing.assert_allclose(logits, expected, rtol=2e-4, atol=2e-4)


def test_initial_weights_are_drawn_as_flax_draws_them() -> None:
    """Whole distributions: truncated normals of variance 1 / fan-in, Glorot's uniform ones, zeros, tiny biases."""
    weights = {name: p.detach().numpy().flatten() for name, p in built("model.pooling=attention").named_parameters()}
    cut = stats.truncnorm(-2, 2)
    for name, fan_in in (("embedding.weight", 3 * 16 * 16), ("pre_logits.weight", 384)):
        assert weights[name].var() == pytest.approx(1 / fan_in, rel=0.02)
        assert stats.kstest(weights[name] * np.sqrt(fan_in) * cut.std(), cut.cdf).pvalue > 1e-4
    for name, ends in (
        *((f"blocks.3.attention.{part}.weight", 384 + 384) for part in ("qkv", "out")),
        *((f"{where}.mlp.fc{n}.weight", 384 + 1536) for where in ("blocks.11", "pooling") for n in (1, 2)),
        ("pooling.probe", 1 + 384),
    ):
        limit = np.sqrt(6 / ends)
        assert stats.kstest(weights[name] / limit, stats.uniform(-1, 2).cdf).pvalue > 1e-4, name
    assert weights["blocks.5.mlp.fc1.bias"].std() == pytest.approx(1e-6, rel=0.1)
    for name in ("head.weight", "head.bias", "embedding.bias", "blocks.0.attention.qkv.bias", "blocks.0.norm1.bias"):
        assert not weights[name].any(), name
    assert (weights["norm.weight"] == 1).all()
    assert cut.std() == pytest.approx(0.87962566103423978)


def test_a_variant_redraws_no_layer_that_both_have() -> None:
    plain, variant = built(*VIT[1:]), built(*VIT[1:], *VARIANTS[-1])
    both = plain.state_dict().keys() & variant.state_dict().keys()
    assert len(both) > 20
    assert all(torch.equal(plain.state_dict()[name], variant.state_dict()[name]) for name in both)
    other = built(*VIT[1:], seed=1)
    assert not torch.equal(plain.embedding.weight, other.embedding.weight)


def test_only_kernels_decay() -> None:
    network = built(*VIT[1:], "model.pooling=attention", "model.glu=true")
    spared = set(undecayed(network, "all_but_kernels"))
    assert {name for name, p in network.named_parameters() if p.ndim == 1} | {"pooling.probe"} == spared


def test_invalid_sizes_are_refused_by_key() -> None:
    with pytest.raises(UserError, match=r"model\.heads=5: must divide model\.width=32"):
        built(*VIT[1:], "model.heads=5")
    with pytest.raises(UserError, match=r"model\.width=30"):
        built("model.width=30")
