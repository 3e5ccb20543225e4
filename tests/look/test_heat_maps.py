"""Heat maps of predictions: the formula on torchvision's ResNet, other families, and the page of a run."""

import base64
import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import timm
import torch
from PIL import Image
from torch.nn import functional as F
from torchvision.models import ResNet, resnet18, resnet50

from launcher.look.heat_maps import grad_cam
from tests.commands import output_of, refused
from tests.html import Page
from tests.saved_runs import finished

CLASSES = torch.tensor([1, 3])


def images(edge: int = 64) -> torch.Tensor:
    return torch.randn(2, 3, edge, edge, generator=torch.Generator().manual_seed(0))


def test_the_map_of_a_resnet_is_that_of_its_last_stage() -> None:
    torch.manual_seed(0)
    network = resnet18(num_classes=5).eval()
    maps = grad_cam(network, images(96), CLASSES)
    # note: with mean pooling the gradient of a class at each place is its row of the last layer, by the places
    with torch.no_grad():
        features = torch.nn.Sequential(*[*network.children()][:-2])(images(96))
        weights = network.fc.weight[CLASSES] / features[0, 0].numel()
        expected = torch.einsum("bc,bchw->bhw", weights, features).relu()
        expected = F.interpolate(expected[:, None], (96, 96), mode="bilinear")[:, 0]
    for one, other in zip(maps, expected, strict=True):
        torch.testing.assert_close(one, (other - other.min()) / (other.max() - other.min()), rtol=1e-4, atol=1e-5)
    assert not any(module._forward_hooks for module in network.modules())


@pytest.mark.parametrize("build", [resnet18, resnet50])
def test_the_map_is_that_of_captum(build: Callable[..., ResNet]) -> None:
    library = pytest.importorskip("captum.attr", reason="captum is not installed").LayerGradCam
    torch.manual_seed(1)
    network = build(num_classes=5).eval()
    small = library(network, network.layer4[-1]).attribute(images(96), CLASSES, relu_attributions=True)
    expected = library.interpolate(small, (96, 96), "bilinear").detach()
    least, largest = expected.amin((1, 2, 3))[:, None, None], expected.amax((1, 2, 3))[:, None, None]
    assert largest.max() > 0
    # note: a map without a positive place is 0
    scaled = ((expected[:, 0] - least) / (largest - least)).nan_to_num()
    torch.testing.assert_close(grad_cam(network, images(96), CLASSES), scaled)


@pytest.mark.parametrize(
    ("name", "edge"),
    [
        ("vit_tiny_patch16_224", 224),
        ("deit3_small_patch16_224", 224),
        ("swin_tiny_patch4_window7_224", 224),
        ("convnext_atto", 64),
        ("efficientnet_b0", 64),
        ("mixer_s16_224", 224),
    ],
)
def test_maps_of_other_families_show_where_the_image_changes_the_score(name: str, edge: int) -> None:
    torch.manual_seed(0)
    network = timm.create_model(name, num_classes=5).eval()
    # note: the last layer of a new ViT is zero
    torch.nn.init.normal_(network.get_classifier().weight)
    maps = grad_cam(network, images(edge), CLASSES)
    assert maps.shape == (2, edge, edge)
    assert maps.min() >= 0
    assert maps.amax((1, 2)).tolist() in ([1.0, 1.0], [0.0, 1.0], [1.0, 0.0], [0.0, 0.0])
    assert torch.isfinite(maps).all()


@pytest.mark.usefixtures("tiny_networks")
def test_the_page_of_a_run_has_its_errors_with_heat_maps(tmp_path: Path) -> None:
    run = finished(tmp_path / "runs", "loss=cross_entropy")
    path = tmp_path / "cam.html"
    assert "errors with heat maps" in output_of("look", "--cam", str(run.path), "-o", str(path))
    page = Page(path)
    shown = re.findall(r'src="data:image/\w+;base64,([^"]+)"', path.read_text())
    assert [Image.open(io.BytesIO(base64.b64decode(data))).size for data in shown] == [(64, 32)] * 20
    assert "Most confident errors" in "\n".join(page.texts)
    assert "remove the words key=value" in refused("look", "recipe=mild", "--cam", str(run.path), "-o", str(path))
    assert "add --cam RUN" in refused("look", "recipe=mild", "--best", "-o", str(path))
    several = finished(tmp_path / "more", "dataset=scenes", "task=multilabel", "loss=bce")
    assert "task=multilabel; pass another run" in refused("look", "--cam", str(several.path), "-o", str(path))
