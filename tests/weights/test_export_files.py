"""Networks changed by each algorithm and activation, exported and loaded without this project."""

import importlib.util
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn
from torchvision.models import get_model

from launcher.algorithms.base import Context
from launcher.algorithms.engine import Engine
from launcher.config.algorithms import declarations
from launcher.config.compose import compose
from launcher.data.crops import centre_cut
from launcher.data.decode import decode
from launcher.models.build import build_model
from launcher.plan.plan import Plan
from launcher.weights.export_files import module_source, network_card, write_export
from tests.forked import python
from tests.two_ranks import in_a_fork

EVERYTHING = "algorithms=[blurpool,squeeze_excite,stochastic_depth,ghost_batchnorm,channels_last,ema]"
EVALUATED = "algorithms.stochastic_depth.keep_scaling=evaluation"
VIT = ["model=vit", "model.width=32", "model.depth=2", "model.mlp_width=48", "model.heads=4"]
CASES = {
    **{
        name: [f"algorithms=[{name}]"]
        for name, algorithm in declarations().items()
        if "change_model" in algorithm.places and algorithm.acts_on != ("tokens",)
    },
    "plain": ["algorithms=[]"],
    "bottlenecks": ["algorithms=[stochastic_depth,blurpool]", EVALUATED, "model=resnet50"],
    "blur_later": ["algorithms=[blurpool]", "algorithms.blurpool.blur_first=false"],
    "blur_pool_only": ["algorithms=[blurpool]", "algorithms.blurpool.replace_convs=false"],
    "blur_all": ["algorithms=[blurpool]", "algorithms.blurpool.min_channels=1"],
    "scaled_branches": ["algorithms=[stochastic_depth]", EVALUATED, "algorithms.stochastic_depth.drop_rate=0.5"],
    "silu": ["algorithms=[]", "model.activation=silu"],
    **{name: ["algorithms=[]", f"model.activation={name}"] for name in ("gelu", "gelu_tanh")},
    "everything": [EVERYTHING, EVALUATED, "model.activation=silu"],
    "vit": [*VIT, "algorithms=[ema]"],
    "vit_scaled_branches": [*VIT, "algorithms=[stochastic_depth]", EVALUATED],
    "vit_variant": [*VIT, "algorithms=[]", "model.pooling=attention", "model.layer_norm=post", "model.glu=true"],
}
CHANGED = {"blurpool", "squeeze_excite", *list(CASES)[list(CASES).index("plain") + 1 : -3]}
OWN = {"vit", "vit_scaled_branches", "vit_variant"}
ELSEWHERE = """
import importlib.util, sys
sys.modules["launcher"] = None
import torch
images = torch.load(sys.argv[1])
for folder in sys.argv[2:]:
    spec = importlib.util.spec_from_file_location("model", folder + "/model.py")
    model = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(model)
    network = model.load()
    assert type(network).__name__ in ("ResNet", "VisionTransformer") and not network.training
    torch.save(model.predict(network, images), folder + "/logits.pt")
"""


@dataclass
class Case:
    """An export, and the logits of the run's network for the images."""

    folder: Path

    @property
    def expected(self) -> Tensor:
        logits: Tensor = torch.load(self.folder / "expected.pt")
        return logits

    def plain(self) -> nn.Module:
        """Return torchvision's network without weights."""
        architecture = json.loads((self.folder / "model_card.json").read_text())["architecture"]
        with torch.device("meta"):
            network: nn.Module = get_model(architecture, num_classes=6)
        return network.eval()


def fill(network: nn.Module) -> None:
    """Give every vector of parameters and statistics different values, so that a wrong assignment is visible."""
    generator = torch.Generator().manual_seed(1)
    for name, tensor in network.state_dict().items():
        if tensor.is_floating_point() and tensor.dim() < 2:
            low = 0.5 if name.endswith(("running_var", "weight")) else -0.2
            tensor.uniform_(low, low + 1, generator=generator)


def make_cases(root: Path) -> None:
    """Write all cases, in a separate process since networks of many sizes fragment its memory."""
    images = torch.load(root / "images.pt")
    for name in CASES:
        make_case(name, root / name, images)


@torch.inference_mode()
def make_case(name: str, folder: Path, images: Tensor) -> None:
    config = compose(["dataset.native_size=32", *CASES[name]]).config
    engine = Engine(Context(Plan(config, 1, train_samples=80), 6))
    network = build_model(config.model, 6, config.loss, config.seed)
    engine.change_model(network)
    fill(network)
    surgeries = config.model.surgeries() | engine.surgeries()
    card = {
        **network_card(config.model, 6, changed=bool(surgeries)),
        "classes": list("abcdef"),
        "surgery": {key: surgery.values for key, surgery in surgeries.items()},
        "flip_average": False,
    }
    folder.mkdir()
    write_export(network.state_dict(), folder, card, surgeries, config.model.source())
    torch.save(network.eval()(images), folder / "expected.pt")


@pytest.fixture(scope="module")
def images() -> Tensor:
    return torch.randn(3, 3, 48, 48, generator=torch.Generator().manual_seed(2))


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory, images: Tensor) -> dict[str, Case]:
    """Return all cases; each folder has the logits that a process without this project computed."""
    root = tmp_path_factory.mktemp("exports")
    torch.save(images, root / "images.pt")
    in_a_fork(make_cases, root)
    python(ELSEWHERE, str(root / "images.pt"), *(str(root / name) for name in CASES), folder=root)
    return {name: Case(root / name) for name in CASES}


@pytest.mark.parametrize("name", CASES)
def test_the_export_computes_the_logits_of_the_run(name: str, cases: dict[str, Case]) -> None:
    expected = cases[name].expected
    assert expected.std() > 1e-3
    torch.testing.assert_close(torch.load(cases[name].folder / "logits.pt"), expected, rtol=1e-4, atol=1e-4)


@torch.inference_mode()
@pytest.mark.parametrize("name", sorted(set(CASES) - CHANGED - OWN))
def test_torchvision_loads_weights_that_compute_the_same_in_its_network(
    name: str, cases: dict[str, Case], images: Tensor
) -> None:
    weights = load_file(cases[name].folder / "model.safetensors")
    plain = cases[name].plain()
    plain.load_state_dict(weights, strict=True, assign=True)
    torch.testing.assert_close(plain(images), cases[name].expected, rtol=1e-4, atol=1e-4)
    assert all(tensor.is_contiguous() for tensor in weights.values())


@torch.inference_mode()
@pytest.mark.parametrize("name", sorted(CHANGED))
def test_torchvision_refuses_weights_that_compute_something_else_in_its_network(
    name: str, cases: dict[str, Case], images: Tensor
) -> None:
    weights = load_file(cases[name].folder / "model.safetensors")
    plain = cases[name].plain()
    with pytest.raises(RuntimeError, match="Unexpected key"):
        plain.load_state_dict(weights, strict=True, assign=True)
    assert set(plain.load_state_dict(weights, strict=False, assign=True).unexpected_keys) == set(weights)
    # under torchvision's names the weights load, with wrong results
    bare = {key.split(".", 1)[1]: tensor for key, tensor in weights.items()}
    assert not plain.load_state_dict(bare, strict=False, assign=True).missing_keys
    assert (plain(images) - cases[name].expected).abs().max() > 1e-2


def test_model_py_refuses_weights_of_another_surgery(cases: dict[str, Case], tmp_path: Path) -> None:
    for name, file in (("silu", "model.py"), ("silu", "model_card.json"), ("gelu", "model.safetensors")):
        (tmp_path / file).write_bytes((cases[name].folder / file).read_bytes())
    with pytest.raises(subprocess.CalledProcessError) as failed:
        python("import model; model.load()", folder=tmp_path)
    assert failed.value.stderr.strip().endswith(
        "model.safetensors needs another model.py, for {'gelu': {'activation': 'gelu'}}"
    )


def exported_module(folder: Path, card: dict[str, Any]) -> Any:
    """Write and import the model.py of an ONNX export with this card."""
    (folder / "model_card.json").write_text(json.dumps(card))
    (folder / "model.py").write_text(module_source("standalone_onnx.py"))
    spec = importlib.util.spec_from_file_location("exported", folder / "model.py")
    exported = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(exported)
    return exported


@pytest.mark.parametrize("exif_orientation", [True, False])
def test_a_damaged_image_is_an_error_of_the_exported_model(exif_orientation: bool, tmp_path: Path) -> None:
    Image.fromarray(np.random.default_rng(3).integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(tmp_path / "image.png")
    data = bytearray((tmp_path / "image.png").read_bytes())
    data[data.index(b"IDAT") + 10] ^= 255
    (tmp_path / "image.png").write_bytes(data)
    values = {"resize": 36, "size": 32, "interpolation": "bilinear", "exif_orientation": exif_orientation}
    card = {"classes": ["a"], "input": {**values, "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4]}}
    with pytest.raises(OSError, match="broken data stream"):
        exported_module(tmp_path, card).transform(Image.open(tmp_path / "image.png"))


@pytest.mark.parametrize("size", [(40, 40), (90, 30), (30, 91), (500, 7), (7, 501), (1, 61)])
@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA", "CMYK", "P", "1", "I;16", "I", "broken EXIF"])
@pytest.mark.parametrize("resize", [36, 36.5])
def test_unusual_images_are_prepared_as_in_training(
    mode: str, size: tuple[int, int], resize: float, tmp_path: Path
) -> None:
    """Also images of 500 x 7, more than 50 times as long as wide."""
    file = tmp_path / {"CMYK": "image.tiff", "I": "image.pgm"}.get(mode, "image.png")
    pixels = np.random.default_rng(3).integers(0, 65536, size[::-1], dtype=np.uint16)
    coloured = np.random.default_rng(4).integers(0, 256, (*size[::-1], 3), dtype=np.uint8)
    if mode == "broken EXIF":
        Image.fromarray(coloured).save(file, exif=b"no TIFF header")
    else:
        (Image.fromarray(pixels) if mode[0] == "I" else Image.fromarray(coloured).convert(mode)).save(file)
    values = {"resize": resize, "size": 32, "interpolation": "bilinear", "exif_orientation": True}
    card = {"classes": ["a"], "input": {**values, "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4]}}
    exported = exported_module(tmp_path, card)
    cut = centre_cut(np.array(decode(file.read_bytes(), upright=True).image), resize, 32, "bilinear")
    expected = (cut / 255.0 - card["input"]["mean"]) / card["input"]["std"]  # type: ignore[index]
    # note: torch resizes to Pillow-SIMD's pixels, plain Pillow rounds differently
    rounding = 1e-5 if ".post" in PIL.__version__ else 1 / 255 / 0.2 + 1e-5
    np.testing.assert_allclose(exported.transform(Image.open(file)), expected.transpose(2, 0, 1), atol=rounding)
