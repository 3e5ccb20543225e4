"""Kinds of runs, to be killed and to be used: the words and files of each, and what is seen of it."""

import io
import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.images import write_arrays, write_images
from tests.language import LAYOUTS, RUN, text_in
from tests.own_code import OWN, STRANGER, WORDS_OF_STRANGER, own_folder
from tests.runs import SMALL, Train

COLOURS = {"a": (0, 0, 0), "b": (10, 11, 12), "c": (200, 0, 0)}
OF_COLOURS = ",".join(f"{key}:'#{bytes(colour).hex()}'" for key, colour in COLOURS.items())


@dataclass(frozen=True)
class Kind:
    """Words of a run whose files are written first.

    views: sizes or lengths of its steps; stop: after which step; validation: what exports are checked on; other: words
    of an evaluation of the test samples, or else of the validation samples; by: columns by class, each with the metric
    that is its mean; rows: of that table; predicts: in which form; files: of what, a glob; card: of an export's task.
    """

    words: str
    write: Callable[[Train], object] = lambda train: None
    views: int = 1
    stop: int = 5
    prints: str = ""
    validation: str = ""
    other: str = "dataset.path=drawn"
    by: Mapping[str, str] = field(default_factory=dict)
    rows: int = 0
    gallery: str = ""
    predicts: str = "numbers"
    files: str = ""
    card: set[str] = field(default_factory=set)


def source(write: Callable[..., object], *words: str) -> Callable[[Train], object]:
    def write_in(train: Train) -> None:
        (folder := train.folder / "source").mkdir()
        write(folder, *words)

    return write_in


def text(folder: Path, form: str) -> None:
    """Write the lines of a text as documents."""
    for split in ("train", "val"):
        lines = (text_in(folder.parent) / f"{split}.txt").read_text().splitlines()
        if form == "text":
            (folder / split).mkdir()
            for number, line in enumerate(lines):
                (folder / split / f"{number:03d}.txt").write_text(line)
        elif form == "jsonl":
            (folder / f"{split}.jsonl").write_text("".join(f"{json.dumps({'text': line})}\n" for line in lines))
        else:
            LAYOUTS[form](folder, split, np.array([token for line in lines for token in [*line.encode(), 256]]))


def masks(folder: Path, form: str) -> None:
    """Write images with masks of three classes."""
    random = np.random.default_rng(0)
    for number in range(60):
        place, mask = folder / ("train" if number < 48 else "val"), np.zeros((24, 24), np.uint8)
        mask[random.integers(0, 12) :, : random.integers(4, 24)] = 1 + number % 2
        pixels = 100 * mask[..., None] + random.integers(0, 50, (24, 24, 3))
        for part in ("images", "masks"):
            (place / part).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(place / "images" / f"{number}.png")
        if form == "npy":
            np.save(place / "masks" / str(number), mask)
        else:
            values = np.array([*COLOURS.values()], np.uint8)[mask] if form == "colours" else mask
            Image.fromarray(values).save(place / "masks" / f"{number}.png")


def slices(folder: Path) -> None:
    """Write slices [24, 24, 4] of noise with masks of BraTS' values: 12 for training, and three and three others."""
    random = np.random.default_rng(0)
    for number in range(18):
        place, mask = folder / ("train" if number < 12 else "val" if number < 15 else "test"), np.zeros((24, 24), int)
        mask[random.integers(0, 12) :, :12] = number % 4
        channels = random.normal(size=(24, 24, 4)) + mask[..., None] * [1, -1, 0.5, 0]
        for part in ("images", "masks"):
            (place / part).mkdir(parents=True, exist_ok=True)
        np.save(place / "images" / f"{number}.npy", channels.astype(np.float32))
        Image.fromarray(np.array([0, 1, 2, 4], np.uint8)[mask]).save(place / "masks" / f"{number}.png")


def needs_smp(_: Train) -> None:
    pytest.importorskip("segmentation_models_pytorch")


def tested(table: str) -> Callable[[Train], object]:
    """Write three images of one colour each, and their table."""

    def write(train: Train) -> None:
        for number in range(3):
            Image.new("RGB", (40, 32), (80 * number,) * 3).save(train.folder / f"{number}.png")
        (train.folder / "test.csv").write_text(table)

    return write


LANGUAGE = (
    f"{' '.join(RUN)} dataset.train_samples=48 dataset.classes=257 dataloader.folder=tokens "
    "algorithms=[alibi,sequence_length_warmup] algorithms.alibi.length_scaling=0.5 "
    "algorithms.sequence_length_warmup.initial=2 algorithms.sequence_length_warmup.increment=2 "
    "algorithms.sequence_length_warmup.duration=0.8"
)
MASKS = (
    "recipe=none task=segmentation dataloader=masks dataset=image_folder dataset.native_size=24 launch=cpu model=unet "
    "model.filters=4 model.levels=2 loss=dice_cross_entropy schedule.warmup=0ba optimizer=adamw "
    "optimizer.scale_lr=off optimizer.lr=0.01 logger.tensorboard=false logger.interval=1ba algorithms=[ema,cutmix] "
    "dataloader.workers=0"
)
SLICES = (
    "recipe=unet_brats dataset.path=source dataset.native_size=24 model.filters=4 model.levels=3 launch=cpu "
    "task.classes={none:0,core:1,edema:2,enhancing:4} dataloader.workers=0 logger.tensorboard=false"
)
FIGURES = (
    "recipe=small_segmentation dataset=shape_masks dataset.path=drawn dataset.train_samples=32 launch=cpu "
    "dataset.val_samples=12 dataset.native_size=32 batch_size=8 dataloader.workers=0 logger.tensorboard=false"
)
SMP = f"{FIGURES} model=smp model.arguments.encoder_depth=3 model.arguments.decoder_channels=[16,8,8]"
# Three epochs of four steps, for one, two and three ranks.
SHARED = "batch_size=12 eval_batch_size=6 epochs=3 checkpoint.every=2ba dataset.path=source"
TEXTS = ("text", "jsonl", "nanogpt", "modded")
KILLED = {
    "lines": Kind(f"{LANGUAGE} {SHARED}", source(text_in), 4),
    **{name: Kind(f"{LANGUAGE} {SHARED}", source(text, name), 4) for name in TEXTS},
    **{name: Kind(f"{MASKS} {SHARED} task.classes=[a,b,c]", source(masks, name)) for name in ("classes", "npy")},
    "colours": Kind(f"{MASKS} {SHARED} task.classes={{{OF_COLOURS}}}", source(masks, "colours")),
    "slices": Kind(
        f"{SLICES} dataset.mean=null dataset.std=null algorithms=[cutmix,progressive_resizing,ema] batch_size=6 "
        "eval_batch_size=6 epochs=6 checkpoint.every=2ba logger.interval=1ba",
        *(source(slices), 2),
    ),
    "smp": Kind(f"{SMP} epochs=3 checkpoint.every=2ba logger.interval=1ba", needs_smp),
    "own_code": Kind(f"{' '.join(WORDS_OF_STRANGER)} checkpoint.every=2ba", partial(own_folder, files=STRANGER)),
}
# The source of the same samples, whose whole run a kind must equal; shards without a tokenizer have no bits per byte.
LIKE = {"jsonl": "text", "modded": "nanogpt", "colours": "classes", "npy": "classes"}

SCENES = (
    "recipe=none dataset.train_samples=48 dataset.val_samples=20 dataset.native_size=32 model=resnet18 launch=cpu "
    "batch_size=8 epochs=2 dataloader.workers=0 logger.tensorboard=false schedule.warmup=0ba optimizer.lr=0.01 "
    "optimizer.scale_lr=off model.residual_batchnorm_weight=0 dataset.path=drawn image.eval_flip_average=true "
    "dataset.test_path=test.csv"
)
MULTILABEL = f"{SCENES} dataset=scenes task=multilabel loss=bce target=map:0.99"
REGRESSION = f"{SCENES} dataset=scene_colours task=regression loss=l1 target=mae:0.01 algorithms=[mixup]"
LABELS = tested("image,label\n0.png,star\n1.png,ring|star\n2.png,")
NUMBERS = tested("image,red,green,blue\n0.png,130,200,250\n1.png,140,130,120\n2.png,150,150,160")
ARRAYS = (
    "recipe=none dataset=image_folder dataset.path=data dataset.mean=null dataset.std=null dataset.native_size=24 "
    "image.train_size=224 image.eval_size=224 batch_size=4 launch=cpu epochs=2 dataloader.workers=0 "
    "logger.tensorboard=false"
)
DTYPES = {
    "uint16": (4, "algorithms=[cutmix,cutout,progressive_resizing,ema]"),
    "float32": (2, "model=vit model.patch_size=8 model.width=16 model.heads=2 algorithms=[ema]"),
}
LANGUAGES = {
    "gpt2": "",
    "alibi": "algorithms=[alibi] algorithms.alibi.length_scaling=0.5",
    "scaled_branches": "algorithms=[stochastic_depth] algorithms.stochastic_depth.drop_rate=0.5 "
    "algorithms.stochastic_depth.keep_scaling=evaluation",
    "later": "model.positions=rotary model.activation=relu2 model.qk_norm=true",
}
TOKENS = f"{' '.join(RUN)} epochs=1 dataset.path=source dataloader.folder=tokens hardware=this_machine"
of_scenes = partial(Kind, validation="20 validation images", other="dataset.path=test.csv", files="drawn/val/*.jpg")
of_texts = partial(
    Kind, prints="perplexity", validation="11 validation sequences", other="dataset.path=source", predicts="text"
)
of_masks = partial(Kind, prints="mean IoU", by={"iou": "miou"}, gallery="Most wrong pixels", predicts="masks")
of_figures = partial(of_masks, validation="12 validation images", rows=11, files="drawn/val/images/*.jpg")
of_arrays = partial(
    Kind,
    **{"prints": "top-1", "by": {"top1": "balanced_accuracy"}, "rows": 2, "gallery": "Least confident hits"},
    **{"other": "dataset.path=data", "validation": "4 validation images", "files": "data/val/*/*.npy"},
)
USED = {
    "multilabel": of_scenes(
        *(MULTILABEL, LABELS), prints="mAP", by={"average_precision": "map"}, rows=10, card={"threshold"}
    ),
    "regression": of_scenes(
        *(REGRESSION, NUMBERS), prints="MAE", by={"mae": "mae", "r2": "r2"}, rows=3, card={"shift", "scale"}
    ),
    "figures": of_figures(f"{FIGURES} model.filters=8 model.levels=3 epochs=2 image.eval_flip_average=true"),
    "smp": of_figures(f"{SMP} epochs=1", needs_smp),
    "slices": of_masks(
        *(f"{SLICES} batch_size=4 epochs=4 dataset.test_path=source/test", source(slices)),
        **{"rows": 4, "validation": "3 validation images", "other": "dataset.path=source/test"},
        files="source/val/images/*.npy",
    ),
    **{
        dtype: of_arrays(
            f"{ARRAYS} dataset.dtype={dtype} dataset.channels={channels} {words}",
            lambda train, dtype=dtype, channels=channels: write_arrays(train.folder / "data", dtype, channels),
        )
        for dtype, (channels, words) in DTYPES.items()
    },
    **{name: of_texts(f"{TOKENS} {words}", source(text_in)) for name, words in LANGUAGES.items()},
}


def archives(train: Train) -> None:
    """Write the archives of a format of the user's, of two classes."""
    own_folder(train, STRANGER)
    random = np.random.default_rng(0)
    for split, count in {"train": 16, "val": 4}.items():
        with (train.folder / f"{split}.raw").open("wb") as file:
            for number in range(count):
                data = io.BytesIO()
                Image.fromarray(random.integers(0, 256, (20, 20, 3), dtype=np.uint8)).save(data, "JPEG")
                file.write(struct.pack("<II", number % 2, len(data.getvalue())) + data.getvalue())


def long_tail(folder: Path) -> None:
    write_images(folder, {"train": 22, "val": 3}, ["common"])
    write_images(folder, {"train": 2, "val": 3}, ["rare", "seldom"])


def packed(train: Train) -> None:
    train("prepare", *(word for word in SMALL if word.startswith("dataset")), "dataloader.workers=1")


# The words of each kind of option of a folder.
OPTIONS = {
    "model by target": "model=mine model.width=4",
    "model of timm": "model=timm model.architecture=my_tiny",
    "model": "model=tiny",
    "algorithm": "algorithms=[dark]",
    "transform of images": "algorithms=[turned]",
    "transform of batches": "algorithms=[turned] algorithms.turned.at=change_batch",
    "optimizer by target": "optimizer._target_=formulas.Sign optimizer.lr=0.001",
    "optimizer of torch": "optimizer._target_=torch.optim.RAdam optimizer.lr=0.001",
    "optimizer": "optimizer=plain",
    "schedule by target": "schedule._target_=formulas.ramp schedule.power=2.0",
    "schedule": "schedule=steep",
    "loss by target": "loss._target_=formulas.soft loss.smoothing=0.1",
    "loss": "loss=hinge",
    "metric": "metrics.top2._target_=formulas.top2",
    "callback": "callbacks=[watch] metrics.top2._target_=formulas.top2",
    "task": "task=amounts",
}
strange = partial(own_folder, files=STRANGER)
OWN_SMALL = " ".join(word for word in OWN if not word.startswith(("code=", "model", "launch.nproc", "schedule")))
OWN_SMALL += " epochs=2 schedule.warmup=0ba launch.nproc=1 model=resnet18 code=[nets.py,formulas.py,typed.py]"
ARCHIVES = " ".join(word for word in OWN_SMALL.split() if not word.startswith(("dataset", "batch_size")))
ARCHIVES += " dataset.path=. image.train_size=16 image.eval_size=16 image.eval_resize=16 batch_size=8"
TAIL = f"{' '.join(SMALL)} dataset=image_folder dataset.path=source checkpoint.every=1ba"
HOT = f"{' '.join(SMALL)} recipe=hot precision=bf16 dataloader=ffcv algorithms.sam.interval=2 dataloader.workers=1"
STOPPED = {
    **{name: Kind(f"{OWN_SMALL} {words}", strange) for name, words in OPTIONS.items()},
    "archives": Kind(ARCHIVES, archives, stop=2),
    "logit adjustment": Kind(f"{TAIL} loss=cross_entropy loss.logit_adjustment=1", source(long_tail), stop=1),
    "positive weights": Kind(f"{TAIL} loss.pos_weight=balanced", source(long_tail), stop=1),
    "hot": Kind(f"{HOT} algorithms.progressive_resizing.initial_scale=0.9", packed, stop=8),
}
