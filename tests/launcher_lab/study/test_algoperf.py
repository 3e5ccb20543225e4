"""AlgoPerf's score: by hand, and the published scores of v0.5."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from launcher.config.compose import compose
from launcher.config.layers import leaves
from launcher.config.resolved import as_mapping
from launcher.records.run import read_run
from launcher_lab.study.algoperf import (
    algoperfs_workload,
    median_of_fastest,
    profile,
    score,
    score_runs,
    with_variants,
    workloads,
)
from tests.made_runs import MakeRun


def test_the_median_over_studies_of_the_fastest_trial() -> None:
    assert median_of_fastest([[3, 1, 2], [math.inf, 5], [math.inf, math.inf]]) == 5
    assert median_of_fastest([[1], [math.inf], [math.inf]]) == math.inf
    assert median_of_fastest([]) == math.inf


def test_profile_and_score_by_hand() -> None:
    seconds = {"a": {"x": 10.0, "y": 20.0}, "b": {"x": 20.0, "y": 10.0}, "c": {"x": math.inf, "y": 45.0}}
    assert [profile(seconds, "a", ratio) for ratio in (1.0, 1.99, 2.0)] == [0.5, 0.5, 1.0]
    # a: ratio 1 counts in full, ratio 2 for two thirds, and half of the interval of 1/99 before it
    assert score(seconds, "a") == pytest.approx((1 + 2 / 3 + 0.5 / 99) / 2)
    assert score(seconds, "c") == 0.0
    assert profile(seconds, "c", 4.5) == 0.5


def test_ratios_are_those_of_the_benchmarks_scoring() -> None:
    """With a rounding error above, a submission would miss a point of its profile."""
    for number, ratio in enumerate(np.linspace(1, 4, 100)[1:-1], 1):
        seconds = {"fastest": {"x": 1.0}, "other": {"x": float(ratio)}}
        assert score(seconds, "other") == pytest.approx((99.5 - number) / 99, abs=1e-12), number


def test_run_folders_are_scored_by_recipe_seed_and_target(make_run: MakeRun) -> None:
    for seed in (0, 1, 2):
        make_run(f"fast-{seed}", (0.5, 0.8), (60.0, 60.0), seed=seed)
        make_run(f"slow-{seed}", (0.5, 0.5, 0.8), (60.0, 60.0, 60.0), seed=seed, recipe="hot")
    paths = [make_run("fast-trial", (0.8, 0.9), (60.0, 60.0), seed=0), make_run("torn", seed=7)]
    (paths[1] / "config.yaml").write_bytes(b"{")
    folder = paths[0].parent
    scores = score_runs([read_run(path) for path in sorted(folder.iterdir())], 0.8, "self")
    (workload,) = scores.seconds["hot"]
    # note: two of three studies of mild need 120 s; the first epoch counts with its own time
    assert scores.seconds["mild"][workload] == 120.0
    assert scores.seconds["hot"][workload] == 180.0
    assert scores.score["mild"] == 1.0
    assert scores.score["hot"] == pytest.approx(2.5 / 3, abs=0.5 / 99)
    assert any("torn: unknown recipe" in note for note in scores.notes)
    assert any("mild on shapes resnet18: 3 studies of 1 or 2 trials" in note for note in scores.notes)


def test_runs_on_another_machine_are_skipped_with_a_note(make_run: MakeRun) -> None:
    paths = [make_run(name, seed=seed) for seed, name in enumerate("abc")]
    metrics = paths[2] / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"cpu"', '"NVIDIA H100"'))
    scores = score_runs([read_run(path) for path in paths], 0.6, "self")
    assert "skipped 1 run on 1x NVIDIA H100; the scores compare runs on 1x cpu" in scores.notes
    assert any("mild on shapes resnet18: 2 studies" in note for note in scores.notes)


def test_the_workloads_are_algoperfs() -> None:
    """Targets as 1 minus the published errors, seconds on 8 V100, 4 A100; typed from the documentation."""
    expected = {
        "imagenet_resnet": (1 - 0.22569, 1 - 0.3440, 66_159, 49_918),
        "imagenet_resnet_silu": (0.75445, 0.6323, 66_159, 49_918),
        "imagenet_resnet_gelu": (0.76765, 0.6519, 66_159, 49_918),
        "imagenet_resnet_large_bn_init": (0.76526, 0.6423, 66_159, 49_918),
        "imagenet_vit": (1 - 0.22691, 1 - 0.3481, 69_768, 64_292),
        "imagenet_vit_glu": (0.75738, 0.6359, 69_768, 64_292),
        "imagenet_vit_post_ln": (0.75312, 0.6286, 69_768, 64_292),
        "imagenet_vit_map": (0.77113, 0.6523, 69_768, 64_292),
    }
    gpus = ("Tesla V100-SXM2-16GB", "NVIDIA A100-SXM4-40GB")
    values = {n: (w.target, w.test_target, *map(w.limit, gpus)) for n, w in workloads().items()}
    assert values.keys() == expected.keys()
    for name, targets in expected.items():
        assert values[name] == pytest.approx(targets), name
        assert workloads()[name].limit("cpu") == targets[2]
        assert workloads()[name].base == (None if name.count("_") == 1 else "_".join(name.split("_")[:2]))


@pytest.mark.parametrize(
    ("words", "workload"),
    [
        (["model=resnet50"], "imagenet_resnet"),
        (["model=resnet50", "model.activation=silu"], "imagenet_resnet_silu"),
        (["model=resnet50", "model.activation=gelu_tanh"], "imagenet_resnet_gelu"),
        (["model=resnet50", "model.activation=gelu"], None),
        (["model=resnet50", "model.residual_batchnorm_weight=8.0"], "imagenet_resnet_large_bn_init"),
        (["model=vit"], "imagenet_vit"),
        (["model=vit", "model.glu=true"], "imagenet_vit_glu"),
        (["model=vit", "model.layer_norm=post"], "imagenet_vit_post_ln"),
        (["model=vit", "model.pooling=attention"], "imagenet_vit_map"),
        (["model=vit", "model.pooling=attention", "model.glu=true"], None),
        (["model=resnet18"], None),
        (["model=resnet50", "dataset=shapes"], None),
    ],
)
def test_a_runs_values_determine_its_workload(words: list[str], workload: str | None) -> None:
    values = dict(leaves(as_mapping(compose(["dataset=imagenet", *words]).config)))
    assert algoperfs_workload(values) == workload


def imagenet_run(make_run: MakeRun, name: str, model: str, top1: float, **changes: Any) -> Path:
    values = {"dataset": {"name": "imagenet"}, "model": {"name": model, "architecture": model, **MODELS[model]}}
    return make_run(name, (0.5, top1), (60.0, changes.pop("seconds", 60.0)), **values, **changes)


MODELS: dict[str, dict[str, Any]] = {
    "resnet50": {"activation": "relu", "residual_batchnorm_weight": None},
    "vit": {"pooling": "mean", "layer_norm": "pre", "glu": False},
}


def test_two_workloads_give_one_score_with_their_own_targets_and_limits(make_run: MakeRun) -> None:
    paths = [
        imagenet_run(make_run, "a", "resnet50", 0.775),
        imagenet_run(make_run, "b", "vit", 0.7732),
        imagenet_run(make_run, "c", "resnet50", 0.7743, recipe="hot"),
        imagenet_run(make_run, "d", "vit", 0.78, recipe="hot", seconds=180.0),
        imagenet_run(make_run, "e", "vit", 0.78, recipe="late", seconds=69_768.0),
        make_run("f"),
    ]
    runs = [read_run(path) for path in paths]
    scores = score_runs(runs, None, "external")
    assert scores.seconds == {
        "mild": {"imagenet_resnet": 120.0, "imagenet_vit": 120.0},
        "hot": {"imagenet_resnet": math.inf, "imagenet_vit": 240.0},
        "late": {"imagenet_resnet": math.inf, "imagenet_vit": math.inf},
    }
    assert scores.score["mild"] == 1
    assert scores.score["hot"] == pytest.approx(1 / 3, abs=0.5 / 99)
    assert any(note.endswith("not an AlgoPerf workload; set --target to score it") for note in scores.notes)
    assert score_runs(runs, None, "self").seconds["late"]["imagenet_vit"] == 69_828.0


def test_the_limit_is_that_of_the_gpu(make_run: MakeRun) -> None:
    path = imagenet_run(make_run, "a", "resnet50", 0.775, seconds=60_000.0)
    assert score_runs([read_run(path)], None, "external").seconds["mild"]["imagenet_resnet"] == 60_060.0
    metrics = path / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"cpu"', '"NVIDIA A100-SXM4-40GB"'))
    assert score_runs([read_run(path)], None, "external").seconds["mild"]["imagenet_resnet"] == math.inf


WORKLOADS = [
    *("criteo1tb", "fastmri", "imagenet_resnet", "imagenet_vit", "librispeech_conformer", "librispeech_deepspeech"),
    *("ogbg", "wmt", "criteo1tb_embed_init", "fastmri_tanh", "imagenet_resnet_large_bn_init"),
    *("librispeech_conformer_layernorm", "ogbg_model_size", "wmt_glu_tanh"),
]
BASES = {name: base for name in WORKLOADS[8:] for base in WORKLOADS[:8] if name.startswith(base)}
# A dash: no trial of the median study reached the target.
EXTERNAL = """
amos - 2941 - 50496 43293 31735 11071 32833 - 4304 34760 34650 16356 17722
baseline 7208 2030 - 70197 54769 36024 7697 41189 611 4509 59225 50447 12498 16832
caspr_adaptive - 1119 - 44673 - 41825 2192 32045 - 1360 - 36124 2195 -
cyclic_lr 5163 2200 - 62445 57566 38986 6948 23562 606 3866 - 56129 9334 16851
generalized_adam 6403 1581 61257 64740 - 37496 5785 30284 384 3428 55657 50467 11785 16003
lawa_ema 5303 2556 - 61886 - - 10597 43034 719 5027 - - 13558 18908
lawa_queue - 1971 - 51189 - - 4617 27171 1053 4863 - - 4464 10521
nadamp 6162 1980 - 68105 57675 33171 7944 38684 502 4300 56673 51916 13706 22725
schedule_free_adamw 5164 1162 - 44005 56121 43256 5275 16013 366 3604 - 34536 11242 5947
schedule_free_prodigy - 1881 - - - - 11243 - - 5777 - - - 19390
shampoo_submission 5043 1321 - 33094 47445 34624 3363 38656 246 1949 58546 41695 3601 11813
"""
SELF = """
adamg - - - - - - - - - - - - - -
baseline 5794 1976 - 73981 57674 36051 8423 40361 503 4549 - 56241 12748 28607
nadamw_sequential 22791 2381 - 122357 - 80703 10109 113506 4410 3903 - 70640 17793 75697
schedule_free_adamw 5764 1321 - 52381 58997 49010 5994 45376 1925 5114 - 37413 10292 10148
sinv6 - 4310 - - - 136882 25004 111823 - 7680 - 111005 - 21952
sinv6_75 - 3991 - - - 122484 27643 87459 - 7116 - 155643 - 21111
"""
PUBLISHED = {
    EXTERNAL: {
        **{"shampoo_submission": 0.7784, "schedule_free_adamw": 0.7077, "generalized_adam": 0.6383},
        **{"cyclic_lr": 0.6301, "nadamp": 0.5909, "baseline": 0.5707, "amos": 0.4918, "caspr_adaptive": 0.4722},
        **{"lawa_queue": 0.3699, "lawa_ema": 0.3384, "schedule_free_prodigy": 0.0},
    },
    SELF: {
        **{"schedule_free_adamw": 0.8542, "baseline": 0.8194, "nadamw_sequential": 0.3308, "sinv6_75": 0.1420},
        **{"sinv6": 0.0903, "adamg": 0.0},
    },
}


@pytest.mark.parametrize("ruleset", [EXTERNAL, SELF], ids=["external", "self"])
def test_the_scores_equal_the_published_ones(ruleset: str) -> None:
    seconds = {
        name: dict(zip(WORKLOADS, (math.inf if t == "-" else float(t) for t in times), strict=True))
        for name, *times in (line.split() for line in ruleset.strip().splitlines())
    }
    counted = with_variants(seconds, BASES)
    assert {name: round(score(counted, name), 4) for name in counted} == PUBLISHED[ruleset]
    assert {len(row) for row in counted.values()} == {8}
