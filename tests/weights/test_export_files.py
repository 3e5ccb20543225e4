"""Networks changed by each algorithm and activation, as files of weights and as ONNX programs."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torchvision.models import get_model

from launcher.algorithms.base import Context
from launcher.algorithms.engine import Engine
from launcher.config.algorithms import ALGORITHMS
from launcher.config.compose import compose
from launcher.config.schema import RunConfig
from launcher.models.build import build_model
from launcher.plan.plan import Plan
from launcher.tasks import build_task
from launcher.weights.card import network_changes
from launcher.weights.export_check import agrees
from launcher.weights.export_files import network_card, read_weights, write_weights
from launcher.weights.onnx_program import ExportGraph, write_onnx

EVERYTHING = "algorithms=[blurpool,squeeze_excite,stochastic_depth,ghost_batchnorm,channels_last,ema]"
EVALUATED = "algorithms.stochastic_depth.keep_scaling=evaluation"
VIT = ["model=vit", "model.patch_size=8", "model.width=32", "model.depth=2", "model.mlp_width=48", "model.heads=4"]
UNCHANGED = {
    **{name: [f"algorithms=[{name}]"] for name in ("ghost_batchnorm", "channels_last", "ema", "swa", "whitening")},
    "plain": ["algorithms=[]"],
    "scaled_in_training": ["algorithms=[stochastic_depth]"],
}
CHANGED = {
    **{name: [f"algorithms=[{name}]"] for name in ("blurpool", "squeeze_excite")},
    "bottlenecks": ["algorithms=[stochastic_depth,blurpool]", EVALUATED, "model=resnet50"],
    "blur_later": ["algorithms=[blurpool]", "algorithms.blurpool.blur_first=false"],
    "scaled_branches": ["algorithms=[stochastic_depth]", EVALUATED, "algorithms.stochastic_depth.drop_rate=0.5"],
    **{name: ["algorithms=[]", f"model.activation={name}"] for name in ("silu", "gelu", "gelu_tanh")},
    "everything": [EVERYTHING, EVALUATED, "model.activation=silu", "algorithms.squeeze_excite.min_channels=32"],
}
MIRRORED = ["algorithms=[]", "image.eval_flip_average=true", "image.eval_resize=288"]
PROGRAMS = {
    **{name: CHANGED[name] for name in ("blur_later", "gelu_tanh", "everything")},
    "whitening": UNCHANGED["whitening"],
    "recomputed": ["algorithms=[]", "model.checkpointing=on"],
    **{kind: [*MIRRORED, f"image.eval_views={kind}"] for kind in ("5crop", "scales", "shifts")},
    "vit_scaled_branches": [*VIT, "algorithms=[stochastic_depth]", EVALUATED],
    "vit_variant": [*VIT, "algorithms=[]", "model.pooling=attention", "model.layer_norm=post", "model.glu=true"],
}


def test_every_algorithm_that_changes_the_model_is_here() -> None:
    acting = {name for name, one in ALGORITHMS.declarations().items() if "change_model" in one.places}
    assert acting - {"alibi"} <= {name for words in {**UNCHANGED, **CHANGED}.values() for name in words_of(words)}


def words_of(words: list[str]) -> list[str]:
    return words[0].removeprefix("algorithms=[").rstrip("]").split(",")


def made(words: list[str]) -> tuple[RunConfig, nn.Module]:
    """Return a config, and its network with different values in every vector of parameters and statistics."""
    config = compose(["dataset.native_size=32", *words]).config
    config = replace(config, dataset=replace(config.dataset, classes=6))
    network = build_model(config.model, 6, config.loss, config.seed)
    Engine(Context(Plan(config, 1, train_samples=80), 6)).change_model(network)
    generator = torch.Generator().manual_seed(1)
    for name, tensor in network.state_dict().items():
        if tensor.is_floating_point() and tensor.dim() < 2:
            low = 0.5 if name.endswith(("running_var", "weight")) else -0.2
            tensor.uniform_(low, low + 1, generator=generator)
    return config, network.eval()


def written(words: list[str], folder: Path) -> tuple[nn.Module, dict[str, Tensor], nn.Module]:
    """Return a network, its exported tensors, and torchvision's network of that architecture without weights."""
    config, network = made(words)
    write_weights(network.state_dict(), folder, {**network_card(config), "classes": list("abcdef")})
    read, _, changes = read_weights(folder / "model.safetensors")
    assert changes == network_changes(config)
    assert all(torch.equal(read[name], tensor) for name, tensor in network.state_dict().items())
    with torch.device("meta"):
        plain: nn.Module = get_model(config.model.architecture, num_classes=6)
    return network, load_file(folder / "model.safetensors"), plain.eval()


IMAGES = torch.randn(3, 3, 48, 48, generator=torch.Generator().manual_seed(2))


@torch.inference_mode()
@pytest.mark.parametrize("name", UNCHANGED)
def test_torchvision_loads_weights_that_compute_the_same_in_its_network(name: str, tmp_path: Path) -> None:
    network, weights, plain = written(UNCHANGED[name], tmp_path)
    plain.load_state_dict(weights, strict=True, assign=True)
    torch.testing.assert_close(plain(IMAGES), network(IMAGES), rtol=1e-4, atol=1e-4)
    assert all(tensor.is_contiguous() for tensor in weights.values())


@torch.inference_mode()
@pytest.mark.parametrize("name", CHANGED)
def test_torchvision_refuses_weights_that_compute_something_else_in_its_network(name: str, tmp_path: Path) -> None:
    network, weights, plain = written(CHANGED[name], tmp_path)
    with pytest.raises(RuntimeError, match="Unexpected key"):
        plain.load_state_dict(weights, strict=True, assign=True)
    assert set(plain.load_state_dict(weights, strict=False, assign=True).unexpected_keys) == set(weights)
    # under torchvision's names the weights load, with wrong results
    bare = {key.split(".", 1)[1]: tensor for key, tensor in weights.items()}
    assert not plain.load_state_dict(bare, strict=False, assign=True).missing_keys
    assert (plain(IMAGES) - network(IMAGES)).abs().max() > 1e-2


@pytest.mark.slow
@torch.inference_mode()
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_computes_an_evaluation_of_pixels_in_any_batch(
    name: str, tmp_path: Path, tiny_networks: None
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    config, network = made(PROGRAMS[name])
    task = build_task(config)
    write_onnx(network, task, tmp_path / "model.onnx")
    size = config.task.loaded_evaluation_size(config)
    pixels = np.random.default_rng(3).integers(0, 256, (3, 3, *size), dtype=np.uint8)
    expected = ExportGraph(network, task)(torch.from_numpy(pixels))
    assert expected.std() > 1e-3
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    for count in (1, 2, 3):
        (outputs,) = session.run(["logits"], {"images": pixels[:count]})
        assert agrees(torch.from_numpy(outputs), expected, 1e-4)
