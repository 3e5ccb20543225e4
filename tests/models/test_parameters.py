import pytest
import timm
import torch
from timm.optim import param_groups_weight_decay
from torch import nn
from torchvision.models import get_model

from launcher.models.parameters import KERNELS, classifiers, parameter_kinds

# Some parameters of each family, and their kinds by its paper.
FAMILIES = {
    "test_resnet": {"conv1.0.weight": "convolution", "layer1.0.bn1.weight": "norm", "fc.weight": "head"},
    "test_efficientnet": {"conv_stem.weight": "convolution", "bn1.bias": "norm", "classifier.weight": "head"},
    "test_efficientnet_evos": {"bn1.v": "norm", "bn1.weight": "norm"},
    "regnetx_002": {"s1.b1.conv1.bn.weight": "norm", "head.fc.weight": "head"},
    "mobilenetv3_small_050": {"conv_head.bias": "bias", "classifier.bias": "bias"},
    "test_nfnet": {"stem.conv1.gain": "scale", "stem.conv1.weight": "convolution"},
    "convnext_atto": {"stages.0.blocks.0.gamma": "scale", "stages.0.blocks.0.mlp.fc1.weight": "convolution"},
    "convnextv2_atto": {"stages.0.blocks.0.mlp.grn.weight": "norm", "head.fc.weight": "head"},
    "test_vit": {"cls_token": "embedding", "pos_embed": "embedding", "patch_embed.proj.weight": "convolution"},
    "test_vit2": {"reg_token": "embedding", "blocks.0.ls1.gamma": "scale", "blocks.0.attn.qkv.weight": "matrix"},
    "test_vit3": {"attn_pool.latent": "embedding", "attn_pool.kv.weight": "matrix"},
    "test_vit4": {"blocks.0.norm1.weight": "norm"},
    "test_vit_relpos": {"blocks.0.attn.rel_pos.mlp.fc1.weight": "matrix", "blocks.0.attn.qkv.weight": "matrix"},
    "deit_tiny_distilled_patch16_224": {"dist_token": "embedding", "head.weight": "head", "head_dist.weight": "head"},
    "beit_base_patch16_224": {
        "blocks.0.attn.relative_position_bias_table": "embedding",
        "blocks.0.attn.q_bias": "bias",
        "blocks.0.gamma_1": "scale",
    },
    "swin_tiny_patch4_window7_224": {"layers.0.blocks.0.attn.relative_position_bias_table": "embedding"},
    "swinv2_cr_tiny_ns_224": {"stages.0.blocks.0.attn.logit_scale": "scale"},
    "xcit_nano_12_p8_224": {"blocks.0.attn.temperature": "scale", "cls_token": "embedding"},
    "test_maxvit": {"stages.0.blocks.0.attn_block.attn.rel_pos.relative_position_bias_table": "embedding"},
    "test_coatnet": {"stem.norm1.weight": "norm", "head.fc.weight": "head"},
    "coatnet_rmlp_nano_rw_224": {"stages.2.blocks.0.attn.rel_pos.mlp.fc1.weight": "embedding"},
    "caformer_s18": {"head.fc.fc1.weight": "matrix", "head.fc.fc2.weight": "head"},
    "mixer_s32_224": {"blocks.0.mlp_tokens.fc1.weight": "matrix", "head.weight": "head"},
    "resmlp_12_224": {"blocks.0.ls1": "scale", "blocks.0.linear_tokens.weight": "matrix"},
    "vit_tiny_r_s16_p8_224": {"patch_embed.backbone.conv.weight": "convolution"},
}


@pytest.fixture(scope="module", params=FAMILIES)
def architecture(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def network(architecture: str) -> nn.Module:
    with torch.device("meta"):
        return timm.create_model(architecture, num_classes=7)


def test_each_parameter_of_a_family_has_its_kind(architecture, network):
    kinds = parameter_kinds(network)
    assert kinds.keys() == dict(network.named_parameters()).keys()
    expected = FAMILIES[architecture]
    assert {name: kinds[name] for name in expected} == expected
    heads = [name for name, kind in kinds.items() if kind == "head"]
    assert heads
    assert all(network.get_parameter(name).shape[0] == 7 for name in heads)


def test_parameters_that_timm_does_not_decay_are_not_kernels(network):
    kinds = parameter_kinds(network)
    listed = network.no_weight_decay() if hasattr(network, "no_weight_decay") else ()
    spared, decayed = (
        {id(p) for p in group["params"]}
        for group in param_groups_weight_decay(network, 0.1, no_weight_decay_list=listed)
    )
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    assert not [names[one] for one in spared if kinds[names[one]] in KERNELS]
    # timm also decays parameters of several dimensions outside of layers
    others = {kinds[names[one]] for one in decayed} - set(KERNELS)
    assert others <= {"embedding", "scale"}


def test_torchvisions_network_has_four_kinds():
    kinds = parameter_kinds(get_model("resnet18"))
    assert {kinds["conv1.weight"], kinds["layer1.0.bn1.bias"], kinds["layer2.0.downsample.0.weight"]} == {
        "convolution",
        "norm",
    }
    assert (kinds["fc.weight"], kinds["fc.bias"]) == ("head", "bias")


def test_projections_of_attention_and_embeddings_are_distinguished():
    network = nn.Sequential(nn.Embedding(9, 8), nn.MultiheadAttention(8, 2), nn.PReLU(8), nn.Linear(8, 3))
    assert parameter_kinds(network) == {
        **{"0.weight": "embedding", "1.in_proj_weight": "matrix", "1.in_proj_bias": "bias"},
        **{"1.out_proj.weight": "matrix", "1.out_proj.bias": "bias", "2.weight": "scale", "3.weight": "head"},
        "3.bias": "bias",
    }


def test_the_head_of_a_network_without_get_classifier_is_its_last_linear_layer():
    network = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3), nn.BatchNorm1d(3))
    assert classifiers(network) == [network[1]]
    assert classifiers(nn.Sequential(nn.Conv2d(3, 4, 1))) == []
