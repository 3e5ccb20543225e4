"""Which parameters have weight decay, compared with the published code of each rule."""

import pytest
import torch
from timm import create_model
from timm.optim import param_groups_weight_decay
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torchvision.models import get_model
from torchvision.ops._utils import split_normalization_params

from launcher.algorithms.base import Context
from launcher.algorithms.engine import Engine
from launcher.config import choices
from launcher.config.compose import compose
from launcher.config.groups import options
from launcher.optimizers.base import build_optimizer
from launcher.plan.plan import Plan
from tests.formulas import PEAK, packaged, small_model


@pytest.mark.parametrize("name", options("optimizer"))
@pytest.mark.parametrize("no_decay", ["none", "vectors"])
def test_vectors_have_decay_only_without_a_rule(name, no_decay):
    model = small_model()
    of_vectors = 0.5 if no_decay == "none" else 0.0
    expected = {name: 0.5 if p.ndim > 1 else of_vectors for name, p in model.named_parameters()}
    assert decays(model, packaged(name, weight_decay=0.5, no_decay=no_decay)) == expected


def decays(model: nn.Module, config: choices.OptimizerConfig) -> dict[str, float]:
    """Return the weight decay of each parameter by name."""
    groups = build_optimizer(config, model, PEAK).param_groups
    by_id = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    assert len(by_id) == sum(len(group["params"]) for group in groups)
    return {name: by_id[id(parameter)] for name, parameter in model.named_parameters()}


def undecayed(model: nn.Module, no_decay: str) -> set[str]:
    return {
        name for name, decay in decays(model, packaged("sgd", weight_decay=0.5, no_decay=no_decay)).items() if not decay
    }


def resnet50() -> nn.Module:
    """Return the network on the meta device."""
    with torch.device("meta"):
        return get_model("resnet50")


def test_the_rule_by_name_is_that_of_the_published_code():
    """ffcv-imagenet and NVIDIA's examples exclude parameters with `bn` in torchvision's names."""
    model = resnet50()
    without_decay = undecayed(model, "bn_names")
    assert without_decay == {name for name, _ in model.named_parameters() if "bn" in name}
    assert len(without_decay) == 2 * (1 + 3 * 16)
    decayed_vectors = {name for name, p in model.named_parameters() if p.ndim == 1} - without_decay
    shortcuts = {f"layer{n}.0.downsample.1.{kind}" for n in (1, 2, 3, 4) for kind in ("weight", "bias")}
    assert decayed_vectors == {*shortcuts, "fc.bias"}


def test_the_rule_for_norms_is_torchvisions_and_that_for_vectors_timms():
    model = resnet50()
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    norms, others = split_normalization_params(model)
    assert undecayed(model, "norms") == {names[id(p)] for p in norms}
    assert {names[id(p)] for p in others} == set(names.values()) - undecayed(model, "norms")
    timm = {names[id(p)] for p in param_groups_weight_decay(model, 0.5)[0]["params"]}
    assert undecayed(model, "vectors") == timm
    assert undecayed(model, "none") == set()


def test_decay_of_kernels_only_is_that_of_timm_for_a_vision_transformer():
    model = create_model("test_vit", num_classes=5)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = param_groups_weight_decay(model, 0.5, no_weight_decay_list=model.no_weight_decay())
    assert undecayed(model, "all_but_kernels") == {names[id(p)] for p in groups[0]["params"]}
    assert {"cls_token", "pos_embed"} <= undecayed(model, "all_but_kernels")


@pytest.mark.parametrize("no_decay", ["none", "vectors", "norms", "bn_names", "all_but_kernels"])
def test_a_rule_selects_the_same_parameters_after_surgery_and_within_ddp(no_decay):
    expected = undecayed(resnet50(), no_decay)
    plan = Plan(compose(["recipe=hot", "algorithms.ghost_batchnorm=on"]).config, 8, 1_281_167)
    changed = resnet50().to_empty(device="cpu")
    Engine(Context(plan, 1000)).change_model(changed)
    assert undecayed(changed, no_decay) == expected
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        wrapped = DistributedDataParallel(changed)
        assert undecayed(wrapped, no_decay) == {f"module.{name}" for name in expected}
    finally:
        torch.distributed.destroy_process_group()
