"""The batched operations compared with Pillow's on smooth images with noise."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import timm.data.auto_augment as timm_operations
import torch
import torchvision.transforms.v2 as T
from PIL import Image, ImageOps
from scipy import stats
from torch.utils._python_dispatch import TorchDispatchMode
from torchvision.transforms import autoaugment

from launcher.algorithms import trivialaugment
from launcher.algorithms.image_operations import BLACK, GEOMETRIC, MIXES, OPERATIONS, Choice, Colour, apply
from tests.transforms import operate

MAGNITUDES = {
    "posterize": [1, 2, 3, 4, 8],
    "solarize": [0, 1, 100, 255, 256],
    "rotate": [-135, -30, 0, 17, 30],
    "shear_x": [-0.3, 0, 0.13, 0.3, 0.99],
    "shear_y": [-0.3, 0, 0.13, 0.3, 0.99],
    "translate_x": [-11, 0, 3, 11, 31],
    "translate_y": [-11, 0, 3, 11, 31],
    "solarize_add": [0, 1, 77, 110, 128],
    **{name: [0.01, 0.1, 1.0, 1.9, 10.0] for name in ("color", "contrast", "brightness", "sharpness")},
}
NAMES = [*OPERATIONS, *GEOMETRIC]
FILL = (124, 116, 104)
CUDA = torch.device("cuda")


def timm_name(name: str) -> str:
    # note: our translations are in pixels, as timm's absolute ones; its relative ones call the same transform
    camel = "".join(part.capitalize() for part in name.split("_")).replace("Autoc", "AutoC")
    return f"{camel}Increasing" if f"{camel}Increasing" in timm_operations.NAME_TO_OP else camel


def noisy_images(height: int = 40, width: int = 56) -> np.ndarray:
    """Return uint8 [5, H, W, 3]: gradients with noise, one flat, one of two values, one of a narrow range."""
    random = np.random.default_rng(0)
    waves = np.sin(np.arange(height)[:, None, None] / 9) + np.cos(np.arange(width)[None, :, None] / 7 + np.arange(3))
    base = (waves + 2) * 63 + random.normal(0, 12, (5, height, width, 3))
    base[1] = 77
    base[2] = np.where(base[2] > 128, 200, 20)
    base[3] = 100 + base[3] / 10
    return base.clip(0, 255).astype(np.uint8)


def equal_pixels(name: str, pixels: np.ndarray, expected: np.ndarray) -> bool:
    difference = np.abs(pixels.astype(int) - expected.astype(int))
    if name in GEOMETRIC:
        # note: rounding of float32 coordinates can move a pixel at the edge outside
        return bool((difference > 1).mean() < 0.002 and (difference > 0).mean() < 0.02)
    return bool(difference.max() <= (name in MIXES))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("fill", [BLACK, FILL])
@pytest.mark.parametrize("name", NAMES)
def test_each_operation_computes_timms_pixels(name: str, fill: Colour, memory_format: torch.memory_format) -> None:
    batch = noisy_images()
    magnitudes = MAGNITUDES.get(name, [0] * 5)
    images = torch.from_numpy(batch).permute(0, 3, 1, 2).contiguous(memory_format=memory_format)
    ours = operate(name, images, torch.tensor(magnitudes, dtype=torch.float32), fill).permute(0, 2, 3, 1).numpy()
    assert ours.dtype == np.uint8
    for array, magnitude, pixels in zip(batch, magnitudes, ours, strict=True):
        image = Image.fromarray(array)
        arguments = () if timm_operations.LEVEL_TO_ARG[timm_name(name)] is None else (magnitude,)
        options = {"fillcolor": fill, "resample": Image.Resampling.BILINEAR}
        expected = np.asarray(timm_operations.NAME_TO_OP[timm_name(name)](image, *arguments, **options))
        assert equal_pixels(name, pixels, expected), magnitude


@pytest.mark.parametrize("name", ["rotate", "shear_x", "shear_y"])
def test_turned_images_differ_from_pillows_as_the_page_of_fidelity_says(name: str) -> None:
    batch, magnitudes = noisy_images(224, 224), [20 * one for one in (-1.3, -0.7, 0.1, 0.9, 1.4)]
    magnitudes = magnitudes if name == "rotate" else [one / 100 for one in magnitudes]
    images = torch.from_numpy(batch).permute(0, 3, 1, 2)
    ours = operate(name, images, torch.tensor(magnitudes, dtype=torch.float32), FILL).permute(0, 2, 3, 1).numpy()
    shares = []
    for array, magnitude, pixels in zip(batch, magnitudes, ours, strict=True):
        options = {"fillcolor": FILL, "resample": Image.Resampling.BILINEAR}
        image, factor = Image.fromarray(array), float(np.float32(magnitude))
        theirs = np.asarray(timm_operations.NAME_TO_OP[timm_name(name)](image, factor, **options))
        difference = np.abs(pixels.astype(int) - theirs)
        assert difference.max() <= 1
        shares.append((difference > 0).mean())
    assert max(shares) < 0.02
    assert 0 < np.mean(shares) < 0.008


def test_autocontrast_has_pillows_value_for_every_range_of_values() -> None:
    ranges = [(low, high) for low in range(0, 256, 17) for high in range(low, 256, 5)]
    batch = np.stack([np.resize(np.arange(low, high + 1, dtype=np.uint8), (16, 16)) for low, high in ranges])
    images = torch.from_numpy(batch)[:, None].expand(-1, 3, -1, -1)
    ours = operate("autocontrast", images, torch.zeros(len(images)))[:, 0].numpy()
    for pixels, array in zip(ours, batch, strict=True):
        assert np.array_equal(pixels, np.asarray(ImageOps.autocontrast(Image.fromarray(array))))


class NoProducts(TorchDispatchMode):
    """Refuses operations that GPUs compute in TF32 with `matmul_precision=high`, which rounds operands to 10 bits."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert name not in {"mm", "bmm", "addmm", "baddbmm", "convolution", "affine_grid_generator", "einsum"}, name
        return func(*args, **kwargs or {})


@pytest.mark.parametrize("name", NAMES)
def test_no_operation_multiplies_matrices_or_convolves(name: str) -> None:
    images = torch.from_numpy(noisy_images()).permute(0, 3, 1, 2)
    with NoProducts():
        operate(name, images, torch.tensor(MAGNITUDES.get(name, [0.0] * 5), dtype=torch.float32))


ALL_MAGNITUDES = {**MAGNITUDES, **{name: [0.0] * 5 for name in ("autocontrast", "equalize", "invert")}}


@pytest.mark.parametrize("fill", [(0, 0, 0), FILL])
def test_a_kind_does_not_change_images_that_drew_another(fill: tuple[int, int, int]) -> None:
    random = np.random.default_rng(1)
    batch = np.tile(noisy_images(), (13, 1, 1, 1))
    operations = random.integers(0, len(NAMES) + 1, len(batch))
    drawn = [random.choice(ALL_MAGNITUDES[NAMES[number]]) if number < len(NAMES) else 0.0 for number in operations]
    choice, shape = Choice(operations, np.array(drawn)), batch.shape[1:3]
    images = torch.from_numpy(batch).permute(0, 3, 1, 2)
    # note: except on a CPU each kind also computes rows that did not draw it
    for kind in ("cpu", "cuda"):
        arrays = choice.arrays(NAMES, *shape, fixed=kind == "cuda")
        ours = apply(images, [torch.from_numpy(array) for array in arrays], fill)
        for number, magnitude, image, result in zip(operations, drawn, images, ours, strict=True):
            alone = image[None]
            if number < len(NAMES):
                alone = operate(NAMES[number], alone, torch.tensor([magnitude]), fill)
            assert torch.equal(alone[0], result), (kind, number)


def test_array_shapes_do_not_depend_on_the_draws_except_on_a_cpu() -> None:
    shapes = []
    for seed in range(50):
        operations = np.random.default_rng(seed).integers(0, len(NAMES), 256)
        arrays = Choice(operations, np.ones(256)).arrays(NAMES, 40, 56, fixed=True)
        shapes.append([array.shape for array in arrays])
    assert all(shape == shapes[0] for shape in shapes)
    # note: an operation that all images draw still fits
    assert (
        len(Choice(np.zeros(256, dtype=np.int64), np.ones(256)).arrays(["rotate", "color"], 8, 8, fixed=True)[2]) == 256
    )


def test_trivialaugment_draws_uniformly_from_torchvisions_space() -> None:
    assert len(T.TrivialAugmentWide._AUGMENTATION_SPACE) == len(trivialaugment.NAMES) + 1
    counts = np.bincount(trivialaugment.choose(trivialaugment.space(31), np.arange(28_000), seed=2, epoch=0).operations)
    assert stats.chisquare(counts).pvalue > 1e-4
    assert len(counts) == 14


def test_trivialaugment_has_torchvisions_strengths_for_other_numbers_of_them(bound: Callable[..., Any]) -> None:
    ours, published = bound("trivialaugment", bins=7)._space, autoaugment.TrivialAugmentWide()._augmentation_space(7)
    for name, theirs, offset in (("rotate", "Rotate", 0), ("shear_x", "ShearX", 0), ("color", "Color", 1)):
        np.testing.assert_allclose(ours[name], offset + np.stack([published[theirs][0], -published[theirs][0]]))


@pytest.mark.parametrize("name", trivialaugment.NAMES)
def test_trivialaugment_computes_torchvisions_pixels_at_each_strength(name: str) -> None:
    """The class is that of 2021; the newer one solarizes by another level at 11 of 31 strengths."""
    published = autoaugment.TrivialAugmentWide()._augmentation_space(31)
    operation = "".join(part.capitalize() for part in name.split("_")).replace("Autocontrast", "AutoContrast")
    pixels = np.random.default_rng(1).normal(128, 60, (32, 32, 3)).clip(0, 255).astype(np.uint8)
    strength, signed = published[operation]
    magnitudes = trivialaugment.space(31)
    for number in range(31):
        magnitude = float(strength[number]) if strength.ndim else 0.0
        theirs = partial(autoaugment._apply_op, interpolation=T.InterpolationMode.BILINEAR, fill=None)
        signs, image = (1, -1) if signed else (1,), Image.fromarray(pixels)
        expected = [np.asarray(theirs(image, operation, sign * magnitude)).astype(int) for sign in signs]
        values = magnitudes[name][0, [number]]
        batch = torch.from_numpy(pixels).permute(2, 0, 1)[None]
        ours = operate(name, batch, torch.tensor(values, dtype=torch.float32))[0].permute(1, 2, 0)
        # note: the sign of a movement does not matter, both are equally likely
        difference = min((np.abs(ours.numpy().astype(int) - other) for other in expected), key=np.mean)
        assert (difference > 0).mean() < (0.01 if name in (*GEOMETRIC, *MIXES) else 1e-9), number
        assert (difference > 1).mean() < 0.005, number
