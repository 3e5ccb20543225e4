"""A stand-in for Apple's GPUs: the simulated device without what they lack, in eager order."""

from dataclasses import asdict
from pathlib import Path

import pytest

from launcher.config.compose import compose
from launcher.errors import UserError
from launcher.plan.checks import check
from launcher.plan.plan import Plan
from tests.simulated_gpu import job
from tests.simulated_gpu.cases import Case, algorithms, recipe
from tests.trainers import SMALL, TASKS

CASES = [
    recipe("mild", "precision=fp16", bad=(3,)),
    algorithms("ema,sam,gradient_clipping"),
    algorithms("swa,mixup,cutmix,label_smoothing", "optimizer=muon"),
    algorithms("colout,cutout,repeated_augmentation,squeeze_excite", "optimizer=soap"),
    algorithms("random_erasing,ghost_batchnorm,layer_freezing", "optimizer=lion"),
    algorithms("selective_backprop,backbone_freezing,distillation", "optimizer=adamw", "precision=fp16"),
    # note: radam and nadamw round otherwise where their steps are counted on the host
    *(algorithms("", f"optimizer={name}") for name in ("lars", "lion", "sgd", "schedule_free_adamw", "shampoo")),
    Case(tuple(TASKS["multilabel"])),
    Case(("algorithms=[alibi,sequence_length_warmup,ema,label_smoothing]",), loader="tokens"),
]
# What is refused, by its key.
REFUSED = {
    "optimizer=lamb": "optimizer=lamb: needs a fused AdamW that scales gradients",
    "algorithms=[randaugment]": "algorithms.randaugment=on: needs float64",
    "algorithms=[trivialaugment]": "algorithms.trivialaugment=on: needs float64",
    "algorithms=[augmix]": "algorithms.augmix=on: needs float64",
    "precision=bf16": r"precision=bf16: not every Apple GPU \(mps\) has bfloat16; set precision=fp16",
    "cuda_graphs=require": "cuda_graphs=require: cannot capture steps",
}


@pytest.mark.sim
@job.needs_compiler
def test_what_is_not_refused_trains_to_the_same_bits(tmp_path: Path) -> None:
    job.write_text(tmp_path / "text")
    outcomes = job.run("train_as_mps", cases=[asdict(case) for case in CASES], images=str(tmp_path))
    assert outcomes == {case.name: [] for case in CASES}


def planned(*words: str) -> Plan:
    config = compose([*SMALL, "dataset.native_size=32", *words]).config
    return Plan(config, 1, config.dataset.train_samples)


@pytest.mark.parametrize("word", REFUSED)
def test_what_apples_gpus_lack_is_refused(word: str) -> None:
    check(planned(word), {}) if word != "cuda_graphs=require" else None
    with pytest.raises(UserError, match=REFUSED[word]):
        check(planned(word), {}, "mps")


def test_numbers_of_images_and_several_processes_are_refused() -> None:
    with pytest.raises(UserError, match="task=regression: needs float64, which mps lacks"):
        check(planned(*TASKS["regression"]), {}, "mps")
    with pytest.raises(UserError, match="trains in one process"):
        check(Plan(planned().config, 2, 32), {}, "mps")
