"""Corrupted images: the published formulas, their random numbers, and the evaluation on them."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from launcher.config.yaml_file import read_mapping
from launcher.records.run_folder import RunFolder
from launcher_lab.look import corrupted_eval, corruptions
from tests.commands import execute, output_of, refused
from tests.saved_runs import finished

pytestmark = pytest.mark.slow

# Of each kind, for strengths 1 to 5 with NumPy's random numbers of the seed 1 to 5: the mean of the corrupted values,
# and their mean distance to those before, by the public code on `IMAGE`. It is imagenet-c 0.0.3, and for motion_blur
# and snow, which need ImageMagick there, imagecorruptions 1.1.2 with the zoom of the former. NumPy's numbers are
# those of impulse_noise too.
PUBLISHED = {
    "gaussian_noise": [[124.773, 16.157], [124.676, 24.036], [124.723, 35.089], [124.887, 48.48], [125.456, 64.458]],
    "shot_noise": [[124.691, 17.868], [124.012, 27.169], [123.054, 38.292], [118.998, 56.437], [114.871, 69.843]],
    "impulse_noise": [[125.281, 3.902], [125.256, 7.755], [125.589, 11.445], [125.625, 21.828], [125.9, 34.148]],
    "defocus_blur": [[124.674, 4.116], [124.692, 6.836], [124.689, 13.683], [126.312, 20.272], [126.035, 26.407]],
    "glass_blur": [[124.11, 11.326], [124.175, 9.905], [124.337, 22.144], [124.403, 19.825], [124.193, 22.936]],
    "motion_blur": [[124.797, 14.05], [124.856, 21.119], [124.873, 27.306], [124.627, 32.314], [125.245, 34.198]],
    "zoom_blur": [[124.615, 24.424], [124.651, 28.725], [124.71, 30.229], [124.76, 32.164], [124.849, 33.037]],
    "snow": [[169.224, 44.033], [197.995, 72.804], [196.972, 71.782], [208.293, 83.102], [227.226, 102.036]],
    "frost": [[187.719, 62.529], [188.349, 63.201], [223.54, 98.35], [217.284, 92.095], [196.431, 71.406]],
    "fog": [[128.632, 28.126], [147.143, 38.276], [123.856, 39.071], [138.192, 43.115], [119.021, 41.603]],
    "brightness": [[143.693, 18.502], [161.282, 36.091], [175.279, 50.089], [184.47, 59.279], [189.148, 63.957]],
    "contrast": [[124.675, 24.856], [124.676, 28.996], [124.703, 33.138], [124.702, 37.277], [124.685, 39.346]],
    "elastic_transform": [
        [124.899, 49.197],
        [123.957, 55.895],
        [124.861, 29.039],
        [124.426, 29.788],
        [125.053, 26.926],
    ],
    "pixelate": [[125.582, 5.003], [125.675, 6.123], [125.381, 7.591], [125.319, 10.026], [125.51, 12.711]],
    "jpeg_compression": [[125.066, 8.809], [125.223, 10.275], [125.188, 11.071], [125.172, 13.098], [125.358, 15.283]],
}


def image(size: int) -> np.ndarray:
    noise = np.random.RandomState(7).uniform(size=(size // 8, size // 8, 3)).astype(np.float32)
    return np.round(cv2.resize(noise, (size, size), interpolation=cv2.INTER_LINEAR) * 255).astype(np.uint8)


IMAGE = image(224)
# The default.
SEED = 42


class Legacy:
    """The random numbers of the public code by the names of a generator."""

    def __init__(self, seed: int):
        self._state = np.random.RandomState(seed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, {"integers": "randint", "random": "random_sample"}.get(name, name))


@pytest.mark.parametrize("kind", PUBLISHED)
def test_each_kind_and_strength_is_that_of_the_public_code(kind: str) -> None:
    if kind == "frost" and not find_spec("imagecorruptions"):
        pytest.skip("imagecorruptions, which has the photographs of frost, is not installed")
    for strength, expected in zip(corruptions.STRENGTHS, PUBLISHED[kind], strict=True):
        made = corruptions.corrupt(IMAGE, kind, strength, Legacy(strength))
        distance = abs(made.astype(float) - IMAGE).mean()
        # note: a few values are rounded to their neighbour
        assert [made.mean(), distance] == pytest.approx(expected, abs=0.05)


@pytest.mark.parametrize("size", [32, 64, 224])
def test_all_kinds_have_five_strengths_for_each_published_size(size: int) -> None:
    values = read_mapping(Path(corruptions.__file__).with_name("corruptions.yaml"))
    assert list(values) == list(PUBLISHED)
    assert all(len(by_size[size]) == 5 for by_size in values.values())


@pytest.mark.parametrize(
    ("size", "published"), [(16, 32), (32, 32), (44, 32), (48, 64), (112, 64), (160, 224), (384, 224)]
)
def test_the_values_are_those_of_the_nearest_size(size: int, published: int) -> None:
    assert corruptions.published_size(size) == published


@pytest.mark.parametrize("size", [16, 50, 250])
def test_any_size_works_and_the_random_numbers_are_those_of_seed_image_kind_and_strength(size: int) -> None:
    pixels = image(256)[:size, :size]
    for kind in [kind for kind in PUBLISHED if kind != "frost"]:
        made = corruptions.corrupted(pixels, kind, 3, seed=1, index=5)
        assert made.shape == pixels.shape
        assert made.dtype == np.uint8
        assert np.array_equal(made, corruptions.corrupted(pixels, kind, 3, seed=1, index=5))
    others = [corruptions.corrupted(pixels, "fog", *key) for key in ((3, 1, 5), (3, 2, 5), (3, 1, 6), (4, 1, 5))]
    assert len({other.tobytes() for other in others}) == 4


def test_frost_adds_a_part_of_a_photograph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corruptions, "photographs", lambda: (tmp_path / "frost1.png",))
    cv2.imwrite(str(tmp_path / "frost1.png"), np.full((40, 60, 3), (10, 20, 100), np.uint8))
    corruptions._photograph.cache_clear()
    pixels = image(224) // 4
    made = corruptions.corrupted(pixels, "frost", 2, seed=1, index=0)
    assert made == pytest.approx(0.8 * pixels + 0.6 * np.array([100, 20, 10]), abs=1)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_networks: None) -> RunFolder:
    monkeypatch.setattr(corrupted_eval, "kinds", lambda: ["gaussian_noise", "contrast"])
    return finished(tmp_path / "runs", "loss=cross_entropy")


def test_an_evaluation_on_corruptions_prints_a_table_and_their_mean(run: RunFolder) -> None:
    code, output, notes = execute("eval", str(run.path), "--corruptions")
    assert code == 0
    assert [line.split()[0] for line in output.splitlines()[:3]] == ["top-1", "gaussian_noise", "contrast"]
    assert "the mean over 2 kinds" in output
    assert "note: images of 32 px: the strengths are those published for 32 px" in notes
    assert "note: skipping frost" in notes
    printed = json.loads(output_of("eval", str(run.path), "--corruptions", "--json"))
    assert printed == json.loads(output_of("eval", str(run.path), "--corruptions", "--json"))
    clean = json.loads(output_of("eval", str(run.path), "--json"))
    assert printed["clean"] == clean["metrics"]["top1"]
    assert printed["samples"] == clean["samples"]
    assert printed["mean"] == pytest.approx(np.mean([*printed["corruptions"].values()]))
    assert all(len(values) == 5 for values in printed["corruptions"].values())


def test_the_network_gets_the_corrupted_images_of_the_runs_seed(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, evaluate = [], corrupted_eval.evaluate

    def kept(network: Any, task: Any, batches: Any, *rest: Any) -> Any:
        seen.append(loaded := [*batches])
        return evaluate(network, task, loaded, *rest)

    monkeypatch.setattr(corrupted_eval, "evaluate", kept)
    execute("eval", str(run.path), "--corruptions")
    clean, *others = [batches[0] for batches in seen]
    pairs = [(kind, strength) for kind in ("gaussian_noise", "contrast") for strength in range(1, 6)]
    for (kind, strength), (inputs, labels, indices) in zip(pairs, others, strict=True):
        assert labels.tolist() == clean[1].tolist()
        for before, after, index in zip(clean[0], inputs, indices, strict=True):
            expected = corruptions.corrupted(before.permute(1, 2, 0).numpy(), kind, strength, SEED, index)
            assert np.array_equal(after.permute(1, 2, 0).numpy(), expected)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--by-class"], "--by-class is for images as they are; remove it, or --corruptions"),
        (["--csv", "all.csv"], "--csv is for images as they are; remove it, or --corruptions"),
        (["seed=3"], "cannot change in an evaluation"),
    ],
)
def test_other_options_are_refused(run: RunFolder, flags: list[str], message: str) -> None:
    assert message in refused("eval", str(run.path), "--corruptions", *flags)


@pytest.mark.parametrize(("word", "verb"), [("corruptions", "eval"), ("imagenet-c", "eval"), ("robustness", "eval")])
def test_ls_and_the_command_know_the_words(word: str, verb: str) -> None:
    assert f"did you mean the verb {verb}?" in refused("ls", word)
