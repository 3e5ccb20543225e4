import json

import pytest
import torch
from safetensors.torch import load_file
from torchvision.models import resnet18

from launcher.models.export import export

CARD = {"architecture": "resnet18", "classes": 6, "surgery": [], "top1": 0.75}


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    model = resnet18(num_classes=6)
    model(torch.randn(4, 3, 32, 32))
    return model.eval().to(memory_format=torch.channels_last)


@pytest.mark.parametrize("prefix", ["", "module."])
def test_torchvision_loads_the_export_and_gives_equal_logits(network, prefix, tmp_path):
    state = {prefix + name: tensor for name, tensor in network.state_dict().items()}
    path = export(state, tmp_path / "export", CARD)
    loaded = resnet18(num_classes=6)
    loaded.load_state_dict(load_file(path), strict=True)
    images = torch.randn(3, 3, 48, 48)
    with torch.inference_mode():
        assert torch.equal(loaded.eval().to(memory_format=torch.channels_last)(images), network(images)), (
            "same kernels, same weights"
        )
    assert all(tensor.is_contiguous() for tensor in load_file(path).values())


def test_the_card_stands_beside_the_weights_and_nothing_else_is_left(network, tmp_path):
    path = export(network.state_dict(), tmp_path, CARD)
    assert json.loads((tmp_path / "model_card.json").read_text()) == CARD
    assert {file.name for file in tmp_path.iterdir()} == {path.name, "model_card.json"}


def test_names_that_torchvision_does_not_have_are_refused_without_surgery(network, tmp_path):
    state = {**network.state_dict(), "squeeze.weight": torch.zeros(2)}
    with pytest.raises(ValueError, match=r"unknown \['squeeze\.weight'\]"):
        export(state, tmp_path, CARD)
    del state["squeeze.weight"], state["fc.bias"]
    with pytest.raises(ValueError, match=r"missing \['fc\.bias'\]"):
        export(state, tmp_path, CARD)
    assert not list(tmp_path.iterdir())


def test_surgery_may_bring_its_own_names(network, tmp_path):
    state = {**network.state_dict(), "squeeze.weight": torch.ones(2)}
    path = export(state, tmp_path, {**CARD, "surgery": ["squeeze_excite"]})
    assert set(load_file(path)) == set(state)


def test_a_card_that_json_cannot_hold_leaves_the_former_export(network, tmp_path):
    path = export(network.state_dict(), tmp_path, CARD)
    before = path.read_bytes()
    changed = {name: tensor + 1 for name, tensor in network.state_dict().items()}
    with pytest.raises(TypeError):
        export(changed, tmp_path, {**CARD, "top1": object()})
    assert path.read_bytes() == before
    assert json.loads((tmp_path / "model_card.json").read_text()) == CARD
