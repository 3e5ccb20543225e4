"""The language model against a second implementation by formulas, and transformers' GPT-2 where it is installed."""

import math
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from launcher.config.compose import compose
from launcher.errors import UserError
from launcher.models.build import build_model
from launcher.models.causal_transformer import CausalAttention, slope_exponents

GPT = [
    *("model=gpt", "model.context=24", "model.width=24", "model.depth=2", "model.heads=3", "model.mlp_width=40"),
    "model.dropout=0",
]
VARIANTS = [
    [f"model.positions={positions}", f"model.activation={activation}", f"model.qk_norm={norm}"]
    for positions, activation, norm in product(["learned", "rotary"], ["gelu", "relu2"], ["false", "true"])
]


def built(*words: str, seed: int = 0, vocabulary: int = 17) -> Any:
    config = compose([*words]).config
    return build_model(config.model, vocabulary, config.loss, seed)


def perturbed(network: Any) -> Any:
    """Return the network in float64 with weights of which none is zero."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in network.double().parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return network


def reference(w: dict[str, Tensor], tokens: Tensor, heads: int, words: list[str], *, alibi: bool = False) -> Tensor:
    """Logits by the definitions, from the weights by name: each head and each pair of places on its own."""

    def dense(x: Tensor, name: str) -> Tensor:
        return torch.einsum("bti,oi->bto", x, w[f"{name}.weight"]) + w[f"{name}.bias"]

    def norm(x: Tensor, name: str) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return (
            centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * w[f"{name}.weight"] + w[f"{name}.bias"]
        )

    def turned(x: Tensor) -> Tensor:
        """Multiply complex numbers of features i and i + D / 2 by those of their place."""
        half = x.shape[-1] // 2
        places = torch.arange(x.shape[1], dtype=torch.float64)
        turns = torch.polar(
            torch.ones(x.shape[1], half).double(), places[:, None] / 10_000 ** (torch.arange(half) / half)
        )
        z = torch.complex(x[..., :half], x[..., half:]) * turns
        return torch.cat([z.real, z.imag], -1)

    length, width = tokens.shape[1], w["wte.weight"].shape[1]
    x = w["wte.weight"][tokens]
    if "wpe.weight" in w:
        x = x + w["wpe.weight"][:length]
    distance = (torch.arange(length)[:, None] - torch.arange(length)).double()
    for number in range(2):
        b, size = f"h.{number}", width // heads
        parts = dense(norm(x, f"{b}.ln_1"), f"{b}.attn.c_attn").split(width, -1)
        mixed = []
        for head, (q, k, v) in enumerate(zip(*(part.split(size, -1) for part in parts), strict=True)):
            if "model.qk_norm=true" in words:
                q, k = (y / (y.square().mean(-1, keepdim=True) + torch.finfo(y.dtype).eps).sqrt() for y in (q, k))
            if "model.positions=rotary" in words:
                q, k = turned(q), turned(k)
            scores = q @ k.transpose(1, 2) / math.sqrt(size)
            if alibi:
                scores = scores - [2**-4, 2**-8, 2**-2][head] * distance
            scores = scores.exp() * (distance >= 0)
            mixed.append(scores / scores.sum(-1, keepdim=True) @ v)
        x = x + dense(torch.cat(mixed, -1), f"{b}.attn.c_proj")
        h = dense(norm(x, f"{b}.ln_2"), f"{b}.mlp.c_fc")
        cubic = math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)
        h = h.clamp(min=0) ** 2 if "model.activation=relu2" in words else h / 2 * (1 + torch.tanh(cubic))
        x = x + dense(h, f"{b}.mlp.c_proj")
    return norm(x, "ln_f") @ w["wte.weight"].T


def assert_same(network: Any, words: list[str], *, alibi: bool = False) -> None:
    tokens = torch.randint(17, (3, 20), generator=torch.Generator().manual_seed(1))
    weights = {name: p.detach().clone().requires_grad_() for name, p in network.named_parameters()}
    expected, logits = reference(weights, tokens, 3, words, alibi=alibi), network(tokens)
    assert expected.std() > 0.1
    # note: rotary angles are float32
    torch.testing.assert_close(logits, expected, rtol=1e-6, atol=1e-6)
    for values in (logits, expected):
        F.cross_entropy(values[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
    for name, parameter in network.named_parameters():
        torch.testing.assert_close(parameter.grad, weights[name].grad, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("words", VARIANTS)
def test_logits_and_gradients_are_those_of_the_formulas(words: list[str]) -> None:
    assert_same(perturbed(built(*GPT, *words)), words)


def test_alibi_adds_slopes_times_distances_and_removes_positions() -> None:
    network = perturbed(built(*GPT))
    network.use_alibi()
    assert "wpe.weight" not in network.state_dict()
    assert_same(network, [], alibi=True)
    assert network(torch.zeros(1, 100, dtype=torch.int64)).shape == (1, 100, 17)


@pytest.mark.parametrize("heads", [1, 2, 8, 16])
def test_slopes_of_a_power_of_two_are_a_geometric_sequence(heads: int) -> None:
    assert slope_exponents(heads) == pytest.approx([8 * (h + 1) / heads for h in range(heads)])


def test_slopes_of_twelve_heads_are_interpolated() -> None:
    """Those of 8 heads, then the first, third, fifth and seventh of 16 (Press et al., `get_slopes`)."""
    assert slope_exponents(12) == [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5]


def test_transformers_has_the_same_logits_and_gradients() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"n_positions": 24, "n_embd": 24, "n_layer": 2, "n_head": 3, "n_inner": 40, "vocab_size": 17}
    without = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **without)).double()
    ours = perturbed(built(*GPT))
    turned = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
    weights = {f"transformer.{n}": v.T if n.endswith(turned) else v for n, v in ours.state_dict().items()}
    theirs.load_state_dict({**weights, "lm_head.weight": weights["transformer.wte.weight"]})
    tokens = torch.randint(17, (3, 20), generator=torch.Generator().manual_seed(1))
    logits = theirs(tokens).logits, ours(tokens)
    torch.testing.assert_close(*logits, rtol=1e-12, atol=1e-12)
    for values in logits:
        F.cross_entropy(values[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
    for name, parameter in ours.named_parameters():
        grad = theirs.get_parameter(f"transformer.{name}").grad
        torch.testing.assert_close(parameter.grad, grad.T if name.endswith(turned) else grad, rtol=1e-10, atol=1e-12)


def test_the_default_is_gpt_2_with_its_initial_deviations() -> None:
    network = built("model=gpt", vocabulary=50_257)
    assert sum(p.numel() for p in network.parameters()) == 124_439_808
    deviations = {name: p.std().item() for name, p in network.named_parameters() if p.ndim > 1}
    for name, deviation in deviations.items():
        expected = 0.02 / math.sqrt(24) if name.endswith("c_proj.weight") else 0.02
        assert deviation == pytest.approx(expected, rel=0.01), name
    assert all(not p.any() for name, p in network.named_parameters() if name.endswith("bias"))
    assert all((p == 1).all() for name, p in network.named_parameters() if "ln_" in name and name.endswith("weight"))


def test_a_token_changes_no_earlier_logits() -> None:
    network, tokens = built(*GPT), torch.arange(16)[None]
    later = tokens.clone()
    later[0, 10] = 0
    assert torch.equal(network(tokens)[:, :10], network(later)[:, :10])
    assert not torch.equal(network(tokens)[:, 10:], network(later)[:, 10:])


def test_embeddings_attention_and_branches_drop_with_the_rate_of_the_config() -> None:
    """In training alone, and the rest is scaled up."""
    network = built(*GPT, "model.dropout=0.25")
    rates = [one.p for one in network.modules() if isinstance(one, torch.nn.Dropout)]
    rates += [one.dropout for one in network.modules() if isinstance(one, CausalAttention)]
    assert len(rates) == 1 + 3 * len(network.h)  # type: ignore[arg-type]
    assert {*rates} == {0.25}
    dropped = network.train().drop(torch.ones(10000))  # type: ignore[operator]
    assert (dropped == 0).float().mean() == pytest.approx(0.25, abs=0.02)
    assert dropped.max() == pytest.approx(1 / 0.75)
    assert torch.equal(network.eval().drop(torch.ones(9)), torch.ones(9))  # type: ignore[operator]


def test_sizes_that_cannot_be_are_refused() -> None:
    with pytest.raises(UserError, match=r"model\.heads=5: must divide half of model\.width=24"):
        built(*GPT, "model.heads=5")
    with pytest.raises(ValueError, match="25 tokens are more than its context of 24"):
        built(*GPT)(torch.zeros(1, 25, dtype=torch.int64))
