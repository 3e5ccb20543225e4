"""Networks of segmentation-models-pytorch: built, started from weights, and refused with what to type."""

import importlib.util
from pathlib import Path

import pytest
import torch
from safetensors.torch import save, save_file

from launcher.config.compose import compose
from launcher.errors import UserError
from launcher.models.build import build_model
from launcher.models.parameters import classifiers
from launcher.plan.checks import check
from launcher.plan.plan import plan_for
from tests.local_hub import local_hub
from tests.runs import Train
from tests.system.kinds import SMP

WORDS = ["recipe=small_segmentation", "model=smp"]
RUN = [*SMP.split(), "launch.nproc=1", "epochs=1"]
NEEDED = pytest.mark.skipif(
    importlib.util.find_spec("segmentation_models_pytorch") is None,
    reason="needs segmentation-models-pytorch, which make setup-tests installs",
)


def built(*words: str, channels: int = 3) -> torch.nn.Module:
    config = compose([*WORDS, *words]).config
    return build_model(config.model, 5, config.loss, config.seed, channels)


@NEEDED
@pytest.mark.parametrize(
    "words",
    [
        ["model.arguments.encoder_depth=4", "model.arguments.decoder_channels=[64,32,16,8]"],
        ["model.architecture=FPN", "model.encoder=tu-resnet18d"],
        ["model.architecture=segformer", "model.encoder=mit_b0"],
    ],
)
def test_networks_have_classes_for_each_pixel_of_images_of_any_channels(words: list[str]) -> None:
    network = built(*words, channels=4).eval()
    assert network(torch.zeros(2, 4, 64, 64)).shape == (2, 5, 64, 64)
    (head,) = classifiers(network)
    assert head is network.segmentation_head[0]
    with torch.device("meta"):
        counted = built(*words, channels=4)
    assert {parameter.device.type for parameter in counted.parameters()} == {"meta"}


@NEEDED
@pytest.mark.parametrize(
    ("word", "message"),
    {
        "model.architecture=Unett": r"model\.architecture=Unett: is not in .*; did you mean Unet\?",
        "model.encoder=resnet118": r"model\.encoder=resnet118: is not in .*; did you mean resnet18\?",
        "model.encoder=tu-none": r"model\.architecture=Unet: cannot be built on model\.encoder=tu-none .*Unknown model",
        "model.arguments.encoder_depth=9": "encoder depth should be in range",
    }.items(),
)
def test_what_the_library_lacks_is_refused(word: str, message: str) -> None:
    with pytest.raises(UserError, match=f"(?i){message}"):
        built(word)


def test_what_the_run_sets_and_a_missing_package_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.models.smp._PACKAGE", "a_package_that_is_missing")
    words = ["dataset.train_samples=32", "dataset.val_samples=12", "model.arguments.encoder_weights=imagenet"]
    with pytest.raises(UserError) as refused:
        check(plan_for(compose([*WORDS, *words, "model.checkpointing=on", "launch=cpu"]).config, 1), {})
    lines = str(refused.value)
    assert "model=smp: needs the package segmentation-models-pytorch, which is not installed; run " in lines
    assert "model.arguments.encoder_weights=imagenet: downloads weights; remove the key" in lines
    assert "model.checkpointing=on: is not offered by its networks" in lines


@pytest.mark.slow
@NEEDED
def test_a_run_starts_from_the_encoder_of_the_library_or_a_file(tmp_path: Path) -> None:
    encoder = {name: one + 0.01 for name, one in built().encoder.state_dict().items() if one.is_floating_point()}
    save_file(encoder, tmp_path / "encoder.safetensors")
    still = [*RUN, "optimizer.lr=1e-9"]
    with local_hub() as hub:
        error = hub.train(tmp_path, *still, "model.weights=smp", code=2)[1]
        assert "error: model.weights=smp: the weights of resnet18 cannot be loaded (" in error
        counted = {name: torch.tensor(0) for name in built().encoder.state_dict() if name.endswith("tracked")}
        hub.revisions = ("3f2325ff978283d47aa6a1d6878ca20565622683",)
        hub.put("smp-hub/resnet18.imagenet", {"config.json": b"{}", "model.safetensors": save({**encoder, **counted})})
        hub.train(tmp_path, *still, "model.weights=smp", "run_name=library")
        requests = len(hub.requests)
        output, errors = hub.train(tmp_path, *still, "model.weights=smp", "run_name=cached")
        assert "segmentation-models-pytorch's smp-hub/resnet18.imagenet" in output + errors
        assert not [one for one in hub.requests[requests:] if one.startswith("GET") and "safetensors" in one]
        hub.train(tmp_path, *still, "model.weights=encoder.safetensors", "run_name=file")
    for run in ("library", "cached", "file"):
        state = Train(tmp_path).state(tmp_path / "runs" / run)["model"]
        assert isinstance(state, dict)
        assert torch.allclose(state["encoder.layer1.0.conv1.weight"], encoder["layer1.0.conv1.weight"], atol=1e-5)
