"""A small language model: the words of its run, and its text."""

from pathlib import Path

import numpy as np

from launcher.config.compose import compose
from launcher.config.schema import RunConfig
from launcher.data.text.prepare import tokens_of
from launcher.data.text.shards import Stream
from launcher.data.workers import quiet

MODEL = ["model=gpt", "model.context=16", "model.width=16", "model.depth=2", "model.heads=2", "model.mlp_width=32"]
RUN = [
    *(
        "recipe=none",
        *MODEL,
        "task=language",
        "task.length=16",
        "dataset=text",
        "dataloader=tokens",
        "launch=cpu",
        "epochs=2",
    ),
    *("batch_size=8", "eval_batch_size=6", "dataset.train_samples=48", "dataset.val_samples=11", "optimizer=adamw"),
    *("optimizer.scale_lr=off", "optimizer.lr=0.01", "schedule.warmup=0ba", "logger.tensorboard=false"),
    *("logger.interval=1ba", "model.dropout=0.1"),
]
TEXT = ["task=language", "dataloader=tokens", "dataset=text", "model=gpt", "task.length=4"]


def config_of(path: Path, *words: str) -> RunConfig:
    """Return the config of text or of tokens; its tokens are written beside the text."""
    return compose([*TEXT, f"dataset.path={path}", f"dataloader.folder={path.parent}/tokens", *words]).config


def stream(config: RunConfig, split: str) -> list[int]:
    """Return the tokens of a split, written first if need be."""
    tokens = tokens_of(config.dataset, config.dataloader.folder, quiet)  # type: ignore[attr-defined]
    whole = Stream([tokens.folder / name for name in tokens.files[split]], config.dataset.classes)
    return whole.read(0, len(whole)).tolist()


def as_tokens(*documents: str) -> list[int]:
    """Return the bytes of documents, each with its end."""
    return [token for text in documents for token in [*text.encode(), 256]]


def text_in(folder: Path) -> Path:
    """Write a text whose words follow each other in fixed orders."""
    random = np.random.default_rng(0)
    words = ["tree", "river", "stone", "cloud", "bird"]
    for split, count in {"train": 200, "val": 50}.items():
        rounds = (" ".join(words[(start + n) % 5] for n in range(5)) for start in random.integers(0, 5, count))
        (folder / f"{split}.txt").write_text("\n".join(rounds))
    return folder


def nanogpts(folder: Path, split: str, tokens: np.ndarray) -> None:
    """Write tokens as nanoGPT's prepare.py does."""
    tokens.astype(np.uint16).tofile(folder / f"{split}.bin")


def modded_nanogpts(folder: Path, split: str, tokens: np.ndarray) -> None:
    """Write tokens as modded-nanogpt's data are, in two files."""
    for number, part in enumerate(np.array_split(tokens, 2)):
        header = np.zeros(256, dtype=np.int32)
        header[:3] = 20240520, 1, len(part)
        parts = header.tobytes() + part.astype(np.uint16).tobytes()
        (folder / f"fineweb_{split}_{number:06d}.bin").write_bytes(parts)


LAYOUTS = {"nanogpt": nanogpts, "modded": modded_nanogpts}


def layouts(folder: Path, tokens: np.ndarray) -> None:
    """Write the tokens as nanoGPT's prepare.py does, and as modded-nanogpt's does, in two files."""
    for name, write in LAYOUTS.items():
        (folder / name).mkdir()
        for split in ("train", "val"):
            write(folder / name, split, tokens)
