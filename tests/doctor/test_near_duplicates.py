"""Images that look alike across the splits: copies resized, compressed or brightened, in `train doctor`."""

from pathlib import Path

import numpy as np
from PIL import Image

from launcher.doctor.near_duplicates import perceptual_hash
from tests.commands import execute


def scene(seed: int, edge: int = 96) -> Image.Image:
    """Return a smooth image with shapes and texture."""
    small = np.random.default_rng(seed).integers(0, 256, (7, 7, 3), np.uint8)
    return Image.fromarray(small).resize((edge, edge), Image.Resampling.BICUBIC)


def distance(one: Image.Image, other: Image.Image) -> int:
    hashes = [perceptual_hash(np.asarray(image)) for image in (one, other)]
    assert None not in hashes
    return (hashes[0] ^ hashes[1]).bit_count()  # type: ignore[operator]


def test_the_hash_changes_little_with_size_and_light_and_much_with_the_image() -> None:
    for seed in range(20):
        image = scene(seed)
        assert distance(image, image.resize((57, 70))) <= 5
        assert distance(image, image.point(lambda level: min(255, level * 0.8 + 20))) <= 5
        assert distance(image, scene(seed + 100)) > 10
    assert perceptual_hash(np.full((40, 40, 3), 7, np.uint8)) is None


def test_the_doctor_lists_images_that_look_like_training_images_but_no_copies(tmp_path: Path) -> None:
    for split, seeds in {"train": range(20), "val": range(50, 56)}.items():
        for number, seed in enumerate(seeds):
            folder = tmp_path / split / "ab"[number % 2]
            folder.mkdir(parents=True, exist_ok=True)
            scene(seed).save(folder / f"{number}.png")
    words = (
        "doctor",
        "recipe=small",
        f"dataset.path={tmp_path}",
        "dataset.native_size=32",
        "batch_size=4",
        "launch=cpu",
    )
    assert "none across the splits, by a perceptual hash" in execute(*words)[1]
    scene(3).resize((64, 80)).save(tmp_path / "val" / "a" / "again.jpg", quality=70)
    scene(4).save(tmp_path / "val" / "a" / "copy.png")
    output = " ".join(execute(*words)[1].split())
    assert "1 of 8 validation images looks like a training image" in output
    assert "again.jpg" in output
