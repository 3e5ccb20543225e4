"""Twenty of timm's architectures through the real step, a checkpoint, and an export that needs only timm."""

import json
from pathlib import Path

import pytest
import timm
import torch

from launcher.config.compose import compose
from launcher.errors import UserError
from launcher.models.build import build_model
from launcher.models.timm import timm_architectures
from launcher.training import checkpoint
from launcher.training.trainer import Trainer
from launcher.weights.export_files import network_card, write_weights
from tests.forked import python
from tests.trainers import SMALL, alone, steps, tensors

# The image size of each architecture, and values that make it small.
SAMPLE: dict[str, tuple[int, list[str]]] = {
    "test_resnet": (32, []),
    "resnet18d": (32, ["model.arguments.channels=[16,32,64,128]"]),
    "test_efficientnet": (32, ["model.drop_rate=0.2", "model.drop_path_rate=0.2"]),
    "test_efficientnet_gn": (32, []),
    "test_efficientnet_evos": (32, []),
    "test_byobnet": (32, []),
    "mobilenetv3_small_050": (32, []),
    "regnetx_002": (32, []),
    "test_nfnet": (32, ["model.drop_path_rate=0.1"]),
    "test_convnext": (32, ["model.drop_path_rate=0.5"]),
    "test_convnext2": (32, []),
    "test_mambaout": (32, []),
    "test_vit": (32, ["model.img_size=32", "model.drop_path_rate=0.3", "model.drop_rate=0.1"]),
    "test_vit2": (48, ["model.arguments.dynamic_img_size=true", "model.global_pool=avg"]),
    "test_vit3": (32, ["model.img_size=32"]),
    "deit_tiny_distilled_patch16_224": (32, ["model.img_size=32", "model.arguments.depth=2"]),
    "swin_tiny_patch4_window7_224": (32, ["model.img_size=32", "model.arguments.depths=[1,1,1,1]"]),
    "test_maxvit": (32, ["model.img_size=32"]),
    "test_coatnet": (32, ["model.img_size=32"]),
    "gmlp_ti16_224": (64, ["model.img_size=64"]),
    "vit_tiny_r_s16_p8_224": (128, ["model.img_size=128", "model.arguments.depth=1"]),
}


def words(architecture: str) -> list[str]:
    size, values = SAMPLE[architecture]
    sizes = [f"dataset.native_size={size}", "image.reference=1", "image.train_size=1", "image.eval_size=1"]
    small = [*SMALL, *sizes, "image.eval_resize=1", "batch_size=4", "schedule.warmup=0ba", "optimizer.lr=0.001"]
    return [*small, "algorithms=[ema]", "model=timm", f"model.architecture={architecture}", *values]


def trainer(architecture: str) -> Trainer:
    return alone(compose(words(architecture)).config)


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("timm")


@pytest.mark.slow
@pytest.mark.parametrize("architecture", SAMPLE)
def test_an_architecture_trains_resumes_to_the_same_bits_and_exports(architecture: str, exports: Path) -> None:
    whole = trainer(architecture)
    before = [parameter.detach().clone() for parameter in whole.train_step.model.parameters()]
    first = steps(whole, 1)
    saved = exports / "step-00000001.pt"
    checkpoint.save(whole.state_dict(), saved)
    second = steps(whole, 1)
    assert torch.isfinite(torch.tensor(first + second)).all()
    parameters = list(whole.train_step.model.parameters())
    assert sum(not torch.equal(a, b) for a, b in zip(before, parameters, strict=True)) > 0.5 * len(before)
    again = trainer(architecture)
    again.load_state_dict(checkpoint.load(saved))
    saved.unlink()
    assert steps(again, 1) == second
    for key in ("model", "weights", "optimizer", "algorithms"):
        ours, theirs = tensors(again.state_dict()[key]), tensors(whole.state_dict()[key])
        assert len(ours) == len(theirs)
        assert all(map(torch.equal, ours, theirs)), key
    _export(whole, exports / architecture)


def _export(run: Trainer, folder: Path) -> None:
    """Write an export, and the logits of the run's network for noise."""
    classes = run.config.dataset.classes or 0
    card = {**network_card(run.config), "classes": [str(n) for n in range(classes)]}
    folder.mkdir()
    network = run.train_step.model.eval()
    write_weights(network.state_dict(), folder, card)
    size = run.plan.view(0)
    images = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        torch.save({"images": images, "logits": network(images)}, folder / "expected.pt")


_ELSEWHERE = """
import json, sys, pathlib, timm, torch, safetensors.torch
sys.modules["launcher"] = None
results = {}
for folder in sorted(path for path in pathlib.Path(sys.argv[1]).iterdir() if path.is_dir()):
    card = json.loads((folder / "model_card.json").read_text())
    network = timm.create_model(card["architecture"], num_classes=len(card["classes"]), **card["arguments"]).eval()
    network.load_state_dict(safetensors.torch.load_file(folder / "model.safetensors"))
    expected = torch.load(folder / "expected.pt")
    with torch.inference_mode():
        results[folder.name] = bool(torch.equal(network(expected["images"]), expected["logits"]))
print(json.dumps(results))
"""


@pytest.mark.slow
def test_exports_load_as_plain_timm_models_without_the_launcher(exports: Path, tmp_path: Path) -> None:
    if not list(exports.iterdir()):
        _export(trainer(SAMPLE[0]), exports / SAMPLE[0])
    results = json.loads(python(_ELSEWHERE, str(exports), folder=tmp_path))
    assert all(results.values()), results


def built(*words: str, seed: int = 0) -> torch.nn.Module:
    config = compose(["model=timm", "model.architecture=test_vit", *words]).config
    return build_model(config.model, 7, config.loss, seed)


def test_only_the_seed_decides_timms_weights_and_global_generators_stay() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = built()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    again, other = built(), built(seed=1)
    assert all(map(torch.equal, first.state_dict().values(), again.state_dict().values()))
    assert not torch.equal(first.head.weight, other.head.weight) or not torch.equal(first.cls_token, other.cls_token)


def test_dropout_redraws_no_layer() -> None:
    plain, dropping = built(), built("model.drop_path_rate=0.3", "model.drop_rate=0.2", "model.checkpointing=on")
    assert all(map(torch.equal, plain.state_dict().values(), dropping.state_dict().values()))


@pytest.mark.parametrize(
    ("architecture", "values"),
    [
        ("test_vit", {"drop_path_rate": 0.3, "drop_rate": 0.2}),
        ("test_vit", {"global_pool": "avg", "img_size": 96}),
        ("test_resnet", {"drop_path_rate": 0.3, "drop_rate": 0.2, "global_pool": "max"}),
    ],
)
def test_the_values_of_a_network_are_timms(architecture: str, values: dict[str, float | str]) -> None:
    words = [f"model.{key}={value}" for key, value in values.items()]
    ours = built(f"model.architecture={architecture}", *words)
    assert repr(ours) == repr(theirs := timm.create_model(architecture, num_classes=7, **values))
    assert [(key, ours.__dict__[key]) for key in ("drop_rate", "global_pool") if key in ours.__dict__] == [
        (key, theirs.__dict__[key]) for key in ("drop_rate", "global_pool") if key in theirs.__dict__
    ]


def test_the_architectures_are_timms() -> None:
    # note: other tests of this process register their own
    listed = [name for name in timm.list_models() if timm.model_entrypoint(name).__module__.startswith("timm.")]
    assert list(timm_architectures()) == sorted(listed)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["model.architecture=vit_smal_patch16_224"], "did you mean vit_small_patch16_224"),
        (["model.architecture=hf-hub:timm/vit"], "is not a timm model"),
        (["model.drop_pth_rate=0.1"], "did you mean model.drop_path_rate?"),
        (["model.drop_rate=1.5"], "model.drop_rate=1.5"),
        (["model.arguments.qkv_bis=true"], "qkv_bis=true: is not a value of test_vit; did you mean qkv_bias?"),
        (["model.architecture=test_resnet", "model.img_size=32"], "model.img_size=32: is not a value of test_resnet"),
        (["model.arguments.pretrained=true"], "model.arguments.pretrained=true: loads weights"),
        (["model.arguments.num_classes=3"], "comes from the data set"),
        (["model.arguments.embed_dim=65"], "timm cannot build it with embed_dim=65"),
    ],
)
def test_values_that_timm_rejects_are_refused_by_key_and_value(words: list[str], expected: str) -> None:
    with pytest.raises(UserError) as refused:
        built(*words)
    assert expected in str(refused.value)


def test_the_class_prior_is_the_bias_of_the_last_layer() -> None:
    with_bias = built("loss=bce", "loss.log_classes_bias=true")
    assert torch.allclose(with_bias.head.bias, torch.full((7,), -1.9459101))
