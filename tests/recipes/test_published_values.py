"""Every value of every recipe against tables typed from the publications."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from launcher.config.compose import compose
from launcher.config.layers import leaves

MOSAIC: dict[str, Any] = {
    "batch_size": 2048,
    "eval_batch_size": 2048,
    "seed": 42,
    "dataset.name": "imagenet",
    "dataset.classes": 1000,
    "model.architecture": "resnet50",
    "model.initialization": "kaiming_normal",
    "model.batchnorm_weight": "uniform",
    "loss.name": "bce",
    "loss.log_classes_bias": True,
    "optimizer.name": "decoupled_sgd",
    "optimizer.lr": 2.048,
    "optimizer.reference_batch_size": 2048,
    "optimizer.momentum": 0.875,
    "optimizer.dampening": 0.0,
    "optimizer.nesterov": False,
    "optimizer.weight_decay": 0.0005,
    "optimizer.no_decay": "none",
    "schedule.name": "cosine",
    "schedule.warmup": "8ep",
    "schedule.warmup_start": 0.0,
    "schedule.final": 0.0,
    "schedule.granularity": "step",
    "image.train_size": 176,
    "image.eval_resize": 232,
    "image.eval_size": 224,
    "image.scale": [0.08, 1.0],
    "image.ratio": [3 / 4, 4 / 3],
    "image.flip": 0.5,
    "image.eval_flip_average": False,
    "algorithms.blurpool.replace_convs": True,
    "algorithms.blurpool.replace_maxpool": True,
    "algorithms.blurpool.min_channels": 16,
    "algorithms.blurpool.blur_first": True,
    "algorithms.ema.half_life": "100ba",
    "algorithms.ema.update_interval": "20ba",
    "algorithms.progressive_resizing.finetune": 0.2,
    "algorithms.progressive_resizing.size_multiple": 4,
}
MILD_AND_MEDIUM = {
    "algorithms.progressive_resizing.initial_scale": 0.5,
    "algorithms.progressive_resizing.delay": 0.4,
}
PLAIN_IMAGE = {"image.train_size": 224, "image.eval_resize": 256, "image.eval_size": 224}
TORCHVISION_INITIAL = {"model.initialization": "torchvision", "model.batchnorm_weight": "ones"}
TIMM: dict[str, Any] = {
    **TORCHVISION_INITIAL,
    "model.residual_batchnorm_weight": 0.0,
    "batch_size": 2048,
    "loss.name": "bce",
    "loss.log_classes_bias": False,
    "optimizer.name": "lamb",
    "optimizer.reference_batch_size": 2048,
    "optimizer.beta1": 0.9,
    "optimizer.beta2": 0.999,
    "optimizer.no_decay": "vectors",
    "schedule.name": "cosine",
    "schedule.warmup": "5ep",
    "schedule.granularity": "epoch",
    "schedule.counts_warmup": True,
    "image.eval_size": 224,
    "image.eval_resize": int(224 / 0.95),
    "image.eval_interpolation": "bicubic",
    "algorithms.cutmix.alpha": 1.0,
    "algorithms.cutmix.probability": 0.5,
    "algorithms.mixup.probability": 0.5,
    "algorithms.randaugment.depth": 2,
    "algorithms.randaugment.severity_distribution": "normal",
    "algorithms.randaugment.severity_deviation": 0.5,
    "algorithms.randaugment.operations": "timm_increasing",
    "algorithms.randaugment.probability": 0.5,
}
TIMM_LONG = {
    "image.train_size": 224,
    "optimizer.lr": 5e-3,
    "algorithms.randaugment.severity": 7.0,
    "algorithms.repeated_augmentation.repeats": 3,
    "algorithms.stochastic_depth.drop_rate": 0.05,
    "algorithms.stochastic_depth.keep_scaling": "training",
}

VALUES: dict[str, dict[str, Any]] = {
    "mild": {**MOSAIC, **MILD_AND_MEDIUM, "epochs": 36, "algorithms.label_smoothing.smoothing": 0.08},
    "medium": {
        **MOSAIC,
        **MILD_AND_MEDIUM,
        "epochs": 135,
        "algorithms.label_smoothing.smoothing": 0.1,
        "algorithms.mixup.alpha": 0.2,
        "algorithms.mixup.probability": 1.0,
        "algorithms.sam.rho": 0.5,
        "algorithms.sam.interval": 10,
    },
    "hot": {
        **MOSAIC,
        "epochs": 270,
        "optimizer.weight_decay": 0.0003,
        "algorithms.label_smoothing.smoothing": 0.13,
        "algorithms.progressive_resizing.initial_scale": 0.6,
        "algorithms.progressive_resizing.delay": 0.2,
        "algorithms.mixup.alpha": 0.25,
        "algorithms.mixup.probability": 1.0,
        "algorithms.sam.rho": 0.5,
        "algorithms.sam.interval": 5,
        "algorithms.randaugment.severity": 10.0,
        "algorithms.randaugment.depth": 1,
        "algorithms.randaugment.operations": "all",
        "algorithms.randaugment.probability": 1.0,
        "algorithms.randaugment.severity_distribution": "uniform",
        "algorithms.colout.rows": 0.05,
        "algorithms.colout.columns": 0.05,
        "algorithms.stochastic_depth.drop_rate": 0.1,
        "algorithms.stochastic_depth.distribution": "linear",
    },
    "baseline": {
        **{key: value for key, value in MOSAIC.items() if not key.startswith(("algorithms", "loss"))},
        **PLAIN_IMAGE,
        "epochs": 90,
        "seed": 17,
        "loss.name": "cross_entropy",
    },
    "nvidia_v1_5": {
        **PLAIN_IMAGE,
        "batch_size": 2048,
        "epochs": 90,
        "loss.name": "cross_entropy",
        "optimizer.name": "sgd",
        "optimizer.lr": 0.256,
        "optimizer.reference_batch_size": 256,
        "optimizer.scale_lr": "linear",
        "optimizer.momentum": 0.875,
        "optimizer.weight_decay": 2**-15,
        "optimizer.no_decay": "vectors",
        "schedule.name": "cosine",
        "schedule.warmup": "8ep",
        "schedule.warmup_includes_peak": True,
        "schedule.granularity": "epoch",
        "algorithms.label_smoothing.smoothing": 0.1,
    },
    "timm_a1": {
        **TIMM,
        **TIMM_LONG,
        "epochs": 600,
        "optimizer.weight_decay": 0.01,
        "algorithms.mixup.alpha": 0.2,
        "algorithms.label_smoothing.smoothing": 0.1,
    },
    "timm_a2": {**TIMM, **TIMM_LONG, "epochs": 300, "optimizer.weight_decay": 0.02, "algorithms.mixup.alpha": 0.1},
    "timm_a3": {
        **TIMM,
        "epochs": 100,
        "image.train_size": 160,
        "optimizer.lr": 8e-3,
        "optimizer.weight_decay": 0.02,
        "algorithms.mixup.alpha": 0.1,
        "algorithms.randaugment.severity": 6.0,
    },
    "pytorch_blog": {
        **TORCHVISION_INITIAL,
        "batch_size": 8 * 128,
        "epochs": 600,
        "loss.name": "cross_entropy",
        "optimizer.name": "sgd",
        "optimizer.lr": 0.5,
        "optimizer.reference_batch_size": 8 * 128,
        "optimizer.momentum": 0.9,
        "optimizer.weight_decay": 2e-5,
        "optimizer.no_decay": "vectors",
        "schedule.name": "cosine",
        "schedule.warmup": "5ep",
        "schedule.warmup_start": 0.01,
        "schedule.granularity": "epoch",
        "image.train_size": 176,
        "image.eval_resize": 232,
        "image.eval_size": 224,
        "algorithms.label_smoothing.smoothing": 0.1,
        "algorithms.mixup.alpha": 0.2,
        "algorithms.mixup.probability": 0.5,
        "algorithms.cutmix.alpha": 1.0,
        "algorithms.cutmix.probability": 0.5,
        "algorithms.random_erasing.probability": 0.1,
        "algorithms.repeated_augmentation.repeats": 4,
        "algorithms.ema.update_interval": "32ba",
    },
    "ffcv_rn50": {
        **TORCHVISION_INITIAL,
        "batch_size": 8 * 512,
        "epochs": 16,
        "loss.name": "cross_entropy",
        "optimizer.name": "sgd",
        "optimizer.lr": 1.7,
        "optimizer.reference_batch_size": 4096,
        "optimizer.momentum": 0.9,
        "optimizer.weight_decay": 1e-4,
        "optimizer.no_decay": "vectors",
        "image.train_size": 192,
        "image.eval_size": 256,
        "image.eval_flip_average": True,
        "algorithms.label_smoothing.smoothing": 0.1,
        "algorithms.blurpool.replace_convs": True,
        "algorithms.blurpool.replace_maxpool": False,
        "algorithms.blurpool.min_channels": 16,
        "algorithms.blurpool.blur_first": True,
    },
}

VALUES["algoperf_nadamw"] = {
    **PLAIN_IMAGE,
    **TORCHVISION_INITIAL,
    "model.residual_batchnorm_weight": 0.0,
    "batch_size": 1024,
    "loss.name": "cross_entropy",
    "optimizer.name": "nadamw",
    "optimizer.lr": 0.004126541534675243,
    "optimizer.reference_batch_size": 1024,
    "optimizer.beta1": 1 - 0.00780309833,
    "optimizer.beta2": 0.9966054696718922,
    "optimizer.epsilon": 1e-8,
    "optimizer.weight_decay": 0.05371805022820654,
    "optimizer.no_decay": "none",
    "schedule.name": "cosine",
    "schedule.warmup": "0.05dur",
    "schedule.final": 0.0,
    "schedule.granularity": "step",
}
VALUES["algoperf_schedule_free"] = {
    **{key: value for key, value in VALUES["algoperf_nadamw"].items() if not key.startswith("schedule")},
    "optimizer.name": "schedule_free_adamw",
    "optimizer.lr": 0.0025,
    "optimizer.beta1": 0.9,
    "optimizer.beta2": 0.9955159689799007,
    "optimizer.weight_decay": 0.08121616522670176,
    "optimizer.step_power": 0.0,
    "optimizer.lr_power": 2.0,
    "optimizer.statistics_interval": 3,
    "schedule.name": "constant",
    "schedule.warmup": f"{int(0.02 * 195_999 * 0.75)}ba",
    "algorithms.label_smoothing.smoothing": 0.2,
}
VALUES["mlperf_lars"] = {
    **PLAIN_IMAGE,
    "batch_size": 8 * 400,
    "epochs": 37,
    "eval_every": "4ep",
    "image.scale": [0.05, 1.0],
    "loss.name": "cross_entropy",
    "optimizer.name": "lars",
    "optimizer.lr": 11.0,
    "optimizer.reference_batch_size": 8 * 400,
    "optimizer.momentum": 0.9,
    "optimizer.trust_coefficient": 0.001,
    "optimizer.epsilon": 0.0,
    "optimizer.weight_decay": 5e-5,
    "optimizer.no_decay": "vectors",
    "schedule.name": "polynomial",
    "schedule.power": 2.0,
    "schedule.warmup": "2ep",
    "schedule.granularity": "step",
    "algorithms.label_smoothing.smoothing": 0.1,
}
VALUES["vit_s16"] = {
    **PLAIN_IMAGE,
    "batch_size": 1024,
    "epochs": 90,
    "dataset.mean": [0.5, 0.5, 0.5],
    "dataset.std": [0.5, 0.5, 0.5],
    "model.patch_size": 16,
    "model.width": 384,
    "model.depth": 12,
    "model.heads": 6,
    "model.mlp_width": 4 * 384,
    "model.pooling": "mean",
    "model.layer_norm": "pre",
    "model.glu": False,
    "loss.name": "cross_entropy",
    "optimizer.name": "adamw",
    "optimizer.lr": 1e-3,
    "optimizer.reference_batch_size": 1024,
    "optimizer.beta1": 0.9,
    "optimizer.beta2": 0.999,
    "optimizer.epsilon": 1e-8,
    "optimizer.weight_decay": 1e-4 / 1e-3,
    "optimizer.no_decay": "all_but_kernels",
    "schedule.name": "cosine",
    "schedule.warmup": "10000ba",
    "schedule.warmup_start": 0.0,
    "schedule.final": 0.0,
    "schedule.granularity": "step",
    "image.scale": [0.05, 1.0],
    "image.ratio": [0.75, 1.33],
    "image.flip": 0.5,
    "algorithms.mixup.alpha": 0.2,
    "algorithms.mixup.probability": 1.0,
    "algorithms.randaugment.operations": "autoaugment",
    "algorithms.randaugment.depth": 2,
    "algorithms.randaugment.severity": 10.0,
    "algorithms.randaugment.severity_distribution": "fixed",
    "algorithms.randaugment.probability": 1.0,
    "algorithms.gradient_clipping.kind": "norm",
    "algorithms.gradient_clipping.threshold": 1.0,
}
VALUES["algoperf_vit"] = {
    **{
        key: value
        for key, value in VALUES["vit_s16"].items()
        if key.startswith(("model", "algorithms.m", "algorithms.r"))
    },
    **PLAIN_IMAGE,
    "batch_size": 1024,
    "eval_batch_size": 2048,
    "dataset.mean": [0.485, 0.456, 0.406],
    "dataset.std": [0.229, 0.224, 0.225],
    "image.scale": [0.08, 1.0],
    "image.ratio": [3 / 4, 4 / 3],
    "loss.name": "cross_entropy",
    "optimizer.name": "nadamw",
    "optimizer.lr": 0.0017486387539278373,
    "optimizer.reference_batch_size": 1024,
    "optimizer.beta1": 1 - 0.06733926164,
    "optimizer.beta2": 0.9955159689799007,
    "optimizer.weight_decay": 0.08121616522670176,
    "optimizer.no_decay": "none",
    "schedule.name": "cosine",
    "schedule.warmup": "0.02dur",
    "schedule.final": 0.0,
    "schedule.granularity": "step",
}
VALUES["resnet101_baseline"] = {
    **{key: value for key, value in VALUES["baseline"].items() if key != "schedule.warmup"},
    "model.architecture": "resnet101",
}
VALUES["resnet101_mosaic"] = {
    **VALUES["resnet101_baseline"],
    **{key: value for key, value in VALUES["medium"].items() if key.startswith("algorithms") and "ema" not in key},
}

MILD = {"blurpool", "channels_last", "ema", "label_smoothing", "progressive_resizing"}
MEDIUM = {*MILD, "mixup", "sam"}
HOT = {*MEDIUM, "randaugment", "colout", "stochastic_depth"}
TIMM_A3 = {"channels_last", "mixup", "cutmix", "randaugment"}
TIMM_A2 = {*TIMM_A3, "repeated_augmentation", "stochastic_depth"}
ALGORITHMS: dict[str, set[str]] = {
    "mild": MILD,
    "medium": MEDIUM,
    "hot": HOT,
    "baseline": set(),
    "nvidia_v1_5": {"channels_last", "label_smoothing"},
    "timm_a1": {*TIMM_A2, "label_smoothing"},
    "timm_a2": TIMM_A2,
    "timm_a3": TIMM_A3,
    "pytorch_blog": {
        *("ema", "label_smoothing", "mixup", "cutmix", "random_erasing", "repeated_augmentation", "trivialaugment"),
    },
    "ffcv_rn50": {"blurpool", "channels_last", "label_smoothing", "progressive_resizing"},
    "mlperf_lars": {"channels_last", "label_smoothing"},
    "algoperf_nadamw": set(),
    "vit_s16": {"mixup", "randaugment", "gradient_clipping"},
    "algoperf_vit": {"mixup", "randaugment"},
    "algoperf_schedule_free": {"label_smoothing"},
    "resnet101_baseline": set(),
    "finetune": {"backbone_freezing", "ema", "label_smoothing"},
    "small": {"blurpool", "channels_last", "ema", "label_smoothing"},
    "resnet101_mosaic": MEDIUM - {"ema"},
    "hot_mixup": HOT,
    "hot_cutmix": HOT - {"mixup"} | {"cutmix"},
    "hot_mixup_aggressive": HOT,
    "hot_sam_5": HOT,
    "hot_sam_10": HOT,
    "mild_mixup_smoothing": MILD | {"mixup"},
    "mild_mixup": MILD - {"label_smoothing"} | {"mixup"},
    "mild_smoothing": MILD,
    "medium_bce_default": MEDIUM,
    "medium_cross_entropy": MEDIUM,
    "medium_bce_log_classes": MEDIUM,
    "baseline_channels_last": {"channels_last"},
    "baseline_randaugment_1": {"channels_last", "randaugment"},
    "baseline_randaugment_2": {"channels_last", "randaugment"},
}

# What an ablation changes of the recipe it is built on, and nothing else.
CHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    "hot_mixup": ("hot", {"epochs": 180}),
    "hot_cutmix": ("hot", {"epochs": 180, "algorithms.mixup.alpha": None, "algorithms.cutmix.alpha": 1.0}),
    "hot_mixup_aggressive": ("hot", {"epochs": 450, "algorithms.mixup.alpha": 1.0}),
    "hot_sam_5": ("hot", {"epochs": 180, "algorithms.sam.interval": 5}),
    "hot_sam_10": ("hot", {"epochs": 180, "algorithms.sam.interval": 10}),
    "mild_mixup_smoothing": ("mild", {"epochs": 30, "algorithms.mixup.alpha": 0.2}),
    "mild_mixup": (
        "mild",
        {"epochs": 30, "algorithms.mixup.alpha": 0.2, "algorithms.label_smoothing.smoothing": None},
    ),
    "mild_smoothing": ("mild", {"epochs": 30}),
    "medium_bce_default": ("medium", {"epochs": 36, "loss.log_classes_bias": False}),
    "medium_cross_entropy": (
        "medium",
        {"epochs": 36, "loss.name": "cross_entropy", "loss.log_classes_bias": None},
    ),
    "medium_bce_log_classes": ("medium", {"epochs": 36, "loss.log_classes_bias": True}),
    "baseline_channels_last": ("baseline", {"algorithms.channels_last": {}}),
    "baseline_randaugment_1": ("baseline_channels_last", {"algorithms.randaugment.depth": 1}),
    "baseline_randaugment_2": ("baseline_channels_last", {"algorithms.randaugment.depth": 2}),
}


def resolved(name: str, *words: str) -> dict[str, Any]:
    """Dotted values of the run config that a recipe composes to."""
    return dict(leaves(asdict(compose([f"recipe={name}", *words]).config)))


@pytest.mark.parametrize("name", VALUES)
def test_a_recipe_has_the_published_values(name: str) -> None:
    found = resolved(name)
    wrong = {key: found.get(key) for key, value in VALUES[name].items() if found.get(key) != value}
    assert wrong == {}


# What fidelity=published changes of a recipe, and nothing else.
RESIZING = {
    "algorithms.progressive_resizing.interpolation": "nearest",
    "algorithms.progressive_resizing.granularity": "epoch",
}
MEDIUM_PUBLISHED = {**RESIZING, "algorithms.mixup.smoothed": "first", "algorithms.sam.batchnorm": "both_passes"}
HOT_PUBLISHED = {
    **MEDIUM_PUBLISHED,
    "algorithms.colout.order": "after_resizing",
    "algorithms.stochastic_depth.keep_scaling": "evaluation",
}
CUTMIX = {k: v for k, v in HOT_PUBLISHED.items() if "mixup" not in k} | {"algorithms.cutmix.smoothed": "first"}
PUBLISHED: dict[str, dict[str, Any]] = {
    **{name: {} for name in ALGORITHMS},
    **{name: RESIZING for name in ALGORITHMS if name.startswith("mild")},
    **{name: MEDIUM_PUBLISHED for name in ALGORITHMS if name.startswith("medium")},
    **{name: HOT_PUBLISHED for name in ALGORITHMS if name.startswith("hot")},
    "hot_cutmix": CUTMIX,
    "mild_mixup_smoothing": {**RESIZING, "algorithms.mixup.smoothed": "first"},
    "nvidia_v1_5": {"optimizer.no_decay": "bn_names"},
    "ffcv_rn50": {"optimizer.no_decay": "bn_names"},
    "pytorch_blog": {"optimizer.no_decay": "norms"},
    "resnet101_mosaic": MEDIUM_PUBLISHED,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_fidelity_changes_exactly_what_the_published_code_of_a_recipe_does_otherwise(name: str) -> None:
    ours, published = resolved(name), resolved(name, "fidelity=published")
    assert ours.keys() == published.keys()
    assert {k: v for k, v in published.items() if v != ours[k]} == {"fidelity": "published", **PUBLISHED[name]}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_exactly_the_published_algorithms_are_on(name: str) -> None:
    assert set(compose([f"recipe={name}"]).config.algorithms.active()) == ALGORITHMS[name]


@pytest.mark.parametrize("name", CHANGES)
def test_an_ablation_is_its_base_but_for_what_it_is_about(name: str) -> None:
    base, changes = CHANGES[name]
    found, before = resolved(name), resolved(base)
    differing = {key for key in {*found, *before} - {"recipe"} if found.get(key) != before.get(key)}
    assert {key: found.get(key) for key in changes} == changes
    assert {part(key) for key in differing} <= {part(key) for key in changes}


def part(key: str) -> str:
    """`algorithms.sam` of `algorithms.sam.interval`, `loss` of `loss.name`."""
    depth = 2 if key.startswith("algorithms.") else 1
    return ".".join(key.split(".")[:depth])


@pytest.mark.parametrize(("epochs", "mixup"), [(50, None), (90, None), (250, 0.2)])
def test_nvidia_uses_mixup_for_250_epochs_alone(epochs: int, mixup: float | None) -> None:
    assert resolved("nvidia_v1_5", f"epochs={epochs}").get("algorithms.mixup.alpha") == mixup
