"""The runs on the simulated device: those of CI, which cover every option, and the longer product of all."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from launcher.config import recipes
from tests.trainers import ALGORITHMS, OPTIMIZERS, SIZE_FOR_BF16, TASKS, VIT

ORDERS = ("eager", "lazy", "others_first")
MORE_ORDERS = (*ORDERS, "random:1", "random:2")
# The loader of each task that has its own.
LOADERS = {"language": "tokens", "segmentation": "masks"}


@dataclass(frozen=True)
class Case:
    """Words of a run; how it loads, on how many ranks; `bad` are steps whose loss is NaN."""

    words: tuple[str, ...]
    loader: str = "drawn"
    bad: tuple[int, ...] = ()
    captured: bool = False
    ranks: int = 1

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Return a case from JSON."""
        return cls(**{**values, "words": tuple(values["words"]), "bad": tuple(values["bad"])})

    @property
    def name(self) -> str:
        """Return the words that choose what runs."""
        of_loader = f"loader={self.loader}" * (self.loader != "drawn")
        ranks = f"{self.ranks} ranks" * (self.ranks > 1)
        return " ".join(filter(None, [*self.words, of_loader, ranks, "captured" * self.captured]))


def plain_and_captured(*cases: Case) -> list[Case]:
    return [replace(case, captured=captured) for case in cases for captured in (False, True)]


def recipe(name: str, *words: str, **values: int | str | tuple[int, ...]) -> Case:
    return Case((f"recipe={name}", *words), **values)  # type: ignore[arg-type]


def algorithms(names: str, *words: str, **values: int | str | tuple[int, ...]) -> Case:
    return Case((f"algorithms=[{names}]", *words), **values)  # type: ignore[arg-type]


def optimizer(name: str) -> Case:
    return algorithms("", f"optimizer={name}")


# Two steps stay in the queue except at the end of an epoch; the first one of two has no bad step.
RARELY = ("logger.interval=1ep", "eval_every=2ep", "checkpoint.every=2ep", "algorithms.ema.update_interval=5ba")
BF16 = ("precision=bf16", SIZE_FOR_BF16)
ONE_RANK = plain_and_captured(
    recipe("hot"),
    recipe("mild", "precision=fp16", bad=(3,)),
    recipe("medium", *BF16, bad=(4,)),
    recipe("timm_a2"),
    recipe("small", "optimizer=sgd", loader="torchvision"),
    recipe("ffcv_rn18", "optimizer=lion", loader="ffcv"),
    recipe("hot_sam_10", "optimizer=lars"),
    algorithms("augmix,gradient_clipping,repeated_augmentation,swa", "optimizer=muon"),
    algorithms("trivialaugment,random_erasing,ghost_batchnorm,cutmix,cutout,squeeze_excite", "optimizer=nadamw"),
    algorithms("selective_backprop,distillation", "optimizer=adamw", "precision=fp16"),
    algorithms("ema,sam,progressive_resizing", "precision=fp16", *RARELY, bad=(6, 7)),
    # note: no graph can have the first
    algorithms("layer_freezing,ema", *RARELY, bad=(6, 8)),
    *(Case(tuple(words)) for words in TASKS.values()),
    Case(("algorithms=[alibi,sequence_length_warmup,ema]",), loader="tokens"),
    Case(("algorithms=[cutmix,progressive_resizing,ema]", "optimizer=radam"), loader="masks"),
)
ONE_RANK += [
    # note: no graph can have these optimizers, nor freezing and whitening
    algorithms("ema,mixup", "optimizer=shampoo", *VIT),
    algorithms("colout,repeated_augmentation", "optimizer=soap"),
    algorithms("mixup,randaugment,backbone_freezing", "optimizer=schedule_free_adamw", *BF16),
    algorithms("whitening", "model=timm", "model.architecture=resnet18", "dataset.native_size=32"),
]
TWO_RANKS = plain_and_captured(
    *(
        replace(case, ranks=2)
        for case in (
            recipe("hot"),
            recipe("mild", "precision=fp16", bad=(3,)),
            recipe("timm_a2", *BF16, "launch.gradient_dtype=bfloat16"),
            algorithms("sam,ema,gradient_clipping", "device_batch_size=3"),
        )
    )
)


def everything() -> list[Case]:
    """Return the product: each recipe, ablation, algorithm and optimizer in each precision, on one and two ranks."""
    listed = (*recipes.listing(), *recipes.ablations())
    alone = [recipe(one.name, loader=LOADERS.get(one.options.get("task", ""), "drawn")) for one in listed]
    alone += [algorithms(name) for name in ALGORITHMS] + [optimizer(name) for name in OPTIMIZERS]
    cases = [
        replace(case, words=(*case.words, *more))
        for case in alone
        # note: tokens have no size
        for more in ((), BF16[:1] if case.loader == "tokens" else BF16, ("precision=fp16",))
    ]
    cases += [replace(case, ranks=2) for case in (*alone, *(Case(tuple(words)) for words in TASKS.values()))]
    return plain_and_captured(*cases)
