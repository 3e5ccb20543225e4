"""AlgoPerf's published scores, from the times in the public logs of all submissions that were scored together.

Source: MLCommons submissions_algorithms, previous_leaderboards/algoperf_v05: of logs/*/SUBMISSION/STUDY/WORKLOAD/TRIAL/
eval_measurements.csv the `score` (seconds) of the first row at the target of scoring/workload_targets_v05.json, of each
study the fastest, the median of studies, rounded to seconds; the scores are those of README.md (2024).
"""

from __future__ import annotations

import math

import pytest

from lab.study.algoperf import score, with_variants

WORKLOADS = [
    *("criteo1tb", "fastmri", "imagenet_resnet", "imagenet_vit", "librispeech_conformer", "librispeech_deepspeech"),
    *("ogbg", "wmt", "criteo1tb_embed_init", "fastmri_tanh", "imagenet_resnet_large_bn_init"),
    *("librispeech_conformer_layernorm", "ogbg_model_size", "wmt_glu_tanh"),
]
BASES = {name: base for name in WORKLOADS[8:] for base in WORKLOADS[:8] if name.startswith(base)}
# A dash: the median study had no trial that reached the target.
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
def test_the_scores_are_those_published(ruleset: str) -> None:
    seconds = {
        name: dict(zip(WORKLOADS, (math.inf if t == "-" else float(t) for t in times), strict=True))
        for name, *times in (line.split() for line in ruleset.strip().splitlines())
    }
    counted = with_variants(seconds, BASES)
    assert {name: round(score(counted, name), 4) for name in counted} == PUBLISHED[ruleset]
    assert {len(row) for row in counted.values()} == {8}
