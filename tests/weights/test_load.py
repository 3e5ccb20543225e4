"""Pretrained weights of torchvision and timm, from their caches and the Hub."""

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import huggingface_hub
import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.utils import CheckpointSaver, ModelEmaV3
from torch import Tensor
from torchvision.models import ResNet18_Weights

from launcher.config.compose import compose
from launcher.config.schema import RunConfig
from launcher.errors import UserError
from launcher.models.parameters import parameters_of_head
from launcher.plan.plan import plan_for
from launcher.training.networks import run_network
from launcher.weights.pretrained import Pretrained, pretrained_weights
from tests.commands import refused
from tests.networks import tiny

pytestmark = pytest.mark.usefixtures("tiny_networks")

CLASSES = ["ant", "bee", "cat", "dog", "eel"]
TORCHVISION = ["model=resnet18", "model.weights=torchvision"]
TIMM = ["model=timm", "model.architecture=test_vit", "model.weights=timm"]


def config_of(*words: str) -> RunConfig:
    config = compose(["dataset=shapes", "algorithms=[]", *words]).config
    return replace(config, dataset=replace(config.dataset, classes=5))


def start(*words: str) -> Pretrained:
    return pretrained_weights(config_of(*words), CLASSES)


def test_weights_of_torchvision_load_from_torchs_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    url = ResNet18_Weights.DEFAULT.url

    def fail(*_: object, **__: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(torch.hub, "download_url_to_file", fail)
    file = tmp_path / "checkpoints" / Path(url).name
    with pytest.raises(UserError, match="no route to host") as raised:
        start(*TORCHVISION)
    assert url in str(raised.value)
    assert str(file) in str(raised.value)
    weights = tiny(num_classes=1000).state_dict()
    file.parent.mkdir(exist_ok=True)
    torch.save(weights, file)
    config = config_of(*TORCHVISION, "dataset.mean=[0.1,0.1,0.1]")
    pretrained = pretrained_weights(config, CLASSES)
    assert torch.equal(pretrained.weights["conv1.weight"], weights["conv1.weight"])
    assert pretrained.weights["fc.weight"].shape == weights["fc.weight"][:5].shape
    assert pretrained.config.dataset.mean == [0.485, 0.456, 0.406]
    unchanged = pretrained_weights(config, CLASSES, typed=["dataset.mean"])
    assert unchanged.config.dataset.mean == [0.1, 0.1, 0.1]
    assert "were trained with dataset.mean=[0.485, 0.456, 0.406]" in unchanged.notes[1]


def test_weights_of_timm_load_from_the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """They adapt to the image size and bring their mean and deviation; an offline machine gets a remedy."""
    whole = timm.create_model("test_vit").state_dict()
    file = tmp_path / "model.safetensors"
    save_file(whole, file)
    monkeypatch.setattr("timm.models._hub.hf_hub_download", lambda *_, **__: str(file))
    pretrained = start(*TIMM)
    assert pretrained.notes[0].startswith("initial weights from timm's timm/test_vit.r160_in1k: a new head")
    assert pretrained.config.dataset.mean == [0.5, 0.5, 0.5]
    weights = pretrained.weights
    assert {name for name in whole if not torch.equal(weights[name], whole[name])} == {"head.weight", "head.bias"}
    larger = start(*TIMM, "model.img_size=64")
    assert larger.weights["pos_embed"].shape != whole["pos_embed"].shape
    assert torch.equal(larger.weights["blocks.0.attn.qkv.weight"], whole["blocks.0.attn.qkv.weight"])
    save_file(timm.create_model("test_resnet").state_dict(), file)
    with pytest.raises(UserError, match=r"model.weights=timm: timm/test_vit.r160_in1k cannot be loaded \(Error"):
        start(*TIMM)

    def fail(*_: str, **__: str) -> None:
        raise huggingface_hub.errors.LocalEntryNotFoundError("cannot find the file on the hub.\nMore words.")

    monkeypatch.setattr("timm.models._hub.hf_hub_download", fail)
    with pytest.raises(UserError) as raised:
        start(*TIMM)
    assert str(raised.value).endswith(
        "(cannot find the file on the hub); type `hf download timm/test_vit.r160_in1k model.safetensors config.json "
        "--local-dir FOLDER` on another machine, copy FOLDER here, and set model.weights=FOLDER/model.safetensors"
    )


def dino3(timms: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of timm's network by the names of DINOv3, with those that only it has."""
    names = {"reg_token": "storage_tokens", ".gamma_1": ".ls1.gamma", ".gamma_2": ".ls2.gamma"}
    own = {}
    for name, tensor in timms.items():
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        own[name] = tensor
    own |= {f"blocks.0.attn.qkv.{name}": torch.zeros(3 * 384) for name in ("bias", "bias_mask")}
    return {**own, "mask_token": torch.zeros(1, 384), "rope_embed.periods": torch.zeros(16)}


SHALLOW = "model.arguments.depth=2"
# Files by the names of their authors: the model, its values, and what the file has for timm's tensors without a head.
FILES: dict[str, tuple[list[str], Callable[[dict[str, Tensor]], Any]]] = {
    "torchvision": (["model.architecture=resnet18"], lambda own: {**own, "fc.weight": torch.ones(1000, 512)}),
    "timm": (["model.architecture=test_convnext"], lambda own: own),
    "DINO": (["model.architecture=vit_tiny_patch16_224", SHALLOW], lambda own: own),
    "DINO's checkpoint": (
        ["model.architecture=vit_tiny_patch16_224", SHALLOW],
        lambda own: {
            "teacher": {**{f"backbone.{name}": one for name, one in own.items()}, "head.mlp.0.weight": torch.ones(2)},
            "student": {f"module.backbone.{name}": torch.zeros_like(one) for name, one in own.items()},
            "epoch": 100,
        },
    ),
    "DINOv2": (
        ["model.architecture=vit_small_patch14_dinov2", SHALLOW],
        lambda own: {**own, "mask_token": torch.zeros(1, 384)},
    ),
    "DINOv3": (["model.architecture=vit_small_patch16_dinov3", SHALLOW], dino3),
}


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("ending", ["pth", "safetensors"])
def test_files_by_the_names_of_their_authors_load(
    kind: str, ending: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, write = FILES[kind]
    file, arguments = tmp_path / f"file.{ending}", ["model=timm", *words, f"model.weights={tmp_path}/file.{ending}"]
    network = run_network(plan_for(config_of(*arguments), 1))
    random = torch.Generator().manual_seed(0)
    drawn = {
        name: torch.randn(one.shape, generator=random) if one.is_floating_point() else one
        for name, one in network.state_dict().items()
    }
    backbone = {name: one for name, one in drawn.items() if name not in parameters_of_head(network)}
    content = write(backbone)
    if ending == "pth":
        torch.save(content, file)
    elif "teacher" in content:
        return
    else:
        save_file(content, file)
        (tmp_path / "config.json").write_text('{"pretrained_cfg": {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.4, 0.4]}}')
    pretrained = start(*arguments)
    different = {name for name, one in drawn.items() if not torch.equal(pretrained.weights[name], one)}
    assert different <= parameters_of_head(network)
    assert capsys.readouterr().out == ""
    assert pretrained.config.dataset.mean == ([0.1, 0.2, 0.3] if ending == "safetensors" else config_of().dataset.mean)


def test_a_bias_of_dinov3_that_the_network_lacks_is_refused(tmp_path: Path) -> None:
    words = ["model=timm", *FILES["DINOv3"][0], f"model.weights={tmp_path}/file.safetensors"]
    content = dino3(run_network(plan_for(config_of(*words), 1)).state_dict())
    save_file({**content, "blocks.0.attn.qkv.bias": torch.ones(3 * 384)}, tmp_path / "file.safetensors")
    with pytest.raises(UserError, match=r"blocks\.0\.attn\.qkv\.bias"):
        start(*words)


def test_position_embeddings_adapt_to_another_image_size(tmp_path: Path) -> None:
    """They become those that timm loads itself; a network of another width is refused."""
    file = f"model.weights={tmp_path}/file"
    whole = timm.create_model("test_vit", num_classes=5, img_size=64).state_dict()
    save_file(whole, tmp_path / "file")
    same = start(*TIMM, file, "model.img_size=64")
    assert all(torch.equal(same.weights[name], tensor) for name, tensor in whole.items())
    assert "timm adapted" not in same.notes[0]
    adapted = start(*TIMM, file, "model.img_size=128")
    assert "assuming the same 5 unnamed classes; timm adapted the others to this network" in adapted.notes[0]
    own: dict[str, Any] = {"pretrained": True, "pretrained_cfg_overlay": {"state_dict": whole, "num_classes": 5}}
    expected = timm.create_model("test_vit", num_classes=5, img_size=128, **own).state_dict()
    assert expected["pos_embed"].shape != whole["pos_embed"].shape
    assert all(torch.equal(adapted.weights[name], tensor) for name, tensor in expected.items())
    with pytest.raises(UserError, match=r"of another network, not test_vit: cls_token is 1x1x64 instead of 1x1x128"):
        start(*TIMM, file, "model.arguments.embed_dim=128")


def test_a_checkpoint_of_timms_command_loads_with_its_arguments(tmp_path: Path) -> None:
    """Written by timm's own class, with the averages of its weights, which are loaded."""
    model, averages = tiny(num_classes=5), ModelEmaV3(tiny(num_classes=5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    arguments = argparse.Namespace(model="resnet18", lr=0.1, opt_betas=None, mean=(0.5, 0.5, 0.5), amp=True)
    saver = CheckpointSaver(
        model, optimizer, arguments, averages, checkpoint_dir=str(tmp_path), recovery_dir=str(tmp_path)
    )
    saver.save_checkpoint(3, metric=76.5)
    pretrained = start("model=resnet18", f"model.weights={tmp_path}/last.pth.tar")
    assert all(torch.equal(pretrained.weights[name], tensor) for name, tensor in averages.module.state_dict().items())
    assert "last.pth.tar (state_dict_ema)" in pretrained.notes[0]


def test_a_compressed_file_is_refused_before_it_fills_memory(tmp_path: Path) -> None:
    torch.save({"weight": torch.zeros(1000)}, tmp_path / "plain")
    with ZipFile(tmp_path / "plain") as plain, ZipFile(tmp_path / "file", "w", ZIP_DEFLATED) as packed:
        for record in plain.namelist():
            packed.writestr(record, plain.read(record))
    with pytest.raises(UserError, match="cut short"):
        start(*TORCHVISION[:1], f"model.weights={tmp_path}/file")


@pytest.mark.parametrize(("source", "library"), [("timm", "torchvision"), ("torchvision", "timm")])
def test_weights_of_another_library_are_refused(source: str, library: str) -> None:
    line = refused("plan", *(TORCHVISION if library == "torchvision" else TIMM), f"model.weights={source}")
    assert f"model.weights={source} (command line): has no weights for this model; set model.weights={library}" in line
