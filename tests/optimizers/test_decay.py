"""Which parameters are decayed, beside the published code of each rule."""

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
def test_vectors_are_decayed_only_if_asked(name, no_decay):
    model = small_model()
    spared = 0.5 if no_decay == "none" else 0.0
    expected = {name: 0.5 if p.ndim > 1 else spared for name, p in model.named_parameters()}
    assert decays(model, packaged(name, weight_decay=0.5, no_decay=no_decay)) == expected


def decays(model: nn.Module, config: choices.Optimizer) -> dict[str, float]:
    """The weight decay of each parameter by name."""
    groups = build_optimizer(config, model, PEAK).param_groups
    found = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    assert len(found) == sum(len(group["params"]) for group in groups)
    return {name: found[id(parameter)] for name, parameter in model.named_parameters()}


def spared(model: nn.Module, no_decay: str) -> set[str]:
    return {
        name for name, decay in decays(model, packaged("sgd", weight_decay=0.5, no_decay=no_decay)).items() if not decay
    }


def resnet50() -> nn.Module:
    """Its names and shapes, without memory for it."""
    with torch.device("meta"):
        return get_model("resnet50")


def test_decay_by_name_is_that_of_the_published_code():
    """ffcv-imagenet and NVIDIA's examples: parameters with `bn` in their name, on torchvision's names."""
    model = resnet50()
    left_out = spared(model, "bn_names")
    assert left_out == {name for name, _ in model.named_parameters() if "bn" in name}
    assert len(left_out) == 2 * (1 + 3 * 16)
    decayed_vectors = {name for name, p in model.named_parameters() if p.ndim == 1} - left_out
    shortcuts = {f"layer{n}.0.downsample.1.{kind}" for n in (1, 2, 3, 4) for kind in ("weight", "bias")}
    assert decayed_vectors == {*shortcuts, "fc.bias"}


def test_decay_of_norms_is_torchvisions_and_of_vectors_timms():
    model = resnet50()
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    norms, others = split_normalization_params(model)
    assert spared(model, "norms") == {names[id(p)] for p in norms}
    assert {names[id(p)] for p in others} == set(names.values()) - spared(model, "norms")
    timm = {names[id(p)] for p in param_groups_weight_decay(model, 0.5)[0]["params"]}
    assert spared(model, "vectors") == timm
    assert spared(model, "none") == set()


def test_decay_of_kernels_alone_is_timms_where_a_model_lists_positions_and_tokens():
    model = create_model("test_vit", num_classes=5)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = param_groups_weight_decay(model, 0.5, no_weight_decay_list=model.no_weight_decay())
    assert spared(model, "all_but_kernels") == {names[id(p)] for p in groups[0]["params"]}
    assert {"cls_token", "pos_embed"} <= spared(model, "all_but_kernels")


@pytest.mark.parametrize("no_decay", ["none", "vectors", "norms", "bn_names", "all_but_kernels"])
def test_a_rule_means_the_same_after_surgery_and_inside_ddp(no_decay):
    expected = spared(resnet50(), no_decay)
    plan = Plan(compose(["recipe=hot", "algorithms.ghost_batchnorm=on"]).config, 8, 1_281_167)
    changed = resnet50().to_empty(device="cpu")
    Engine(Context(plan, 1000)).change_model(changed)
    assert spared(changed, no_decay) == expected
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        wrapped = DistributedDataParallel(changed)
        assert spared(wrapped, no_decay) == {f"module.{name}" for name in expected}
    finally:
        torch.distributed.destroy_process_group()
