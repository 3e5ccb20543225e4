"""A run takes over the network of its pretrained weights, and refuses another; a plan prints the same."""

from dataclasses import replace

import pytest

from launcher.config.resolved import read
from tests.runs import SHAPES, SMALL, Here

pytestmark = pytest.mark.usefixtures("tiny_networks")


@pytest.mark.slow
@pytest.mark.parametrize("exported", [False, True])
@pytest.mark.parametrize(
    ("surgery", "usual", "changes"),
    [
        (["algorithms=[blurpool]"], ["recipe=finetune"], ["algorithms.blurpool=on"]),
        (["algorithms=[squeeze_excite,blurpool]", "algorithms.squeeze_excite.latent_channels=8"], ["recipe=finetune"],
         ["algorithms.blurpool=on", "algorithms.squeeze_excite=on"]),
        (["algorithms=[stochastic_depth]", "algorithms.stochastic_depth.keep_scaling=evaluation"], ["recipe=finetune"],
         ["algorithms.stochastic_depth=on"]),
        (["algorithms=[]", "model.activation=silu"], ["recipe=small"],
         ["algorithms.blurpool=off", "model.activation=silu"]),
        (["algorithms=[blurpool]", "algorithms.blurpool.min_channels=8"], ["recipe=small"],
         ["algorithms.blurpool.min_channels=8"]),
        (["algorithms=[blurpool]"], ["recipe=small"], []),
    ],
)  # fmt: skip
def test_the_network_of_the_weights_is_taken_over(
    exported: bool, surgery: list[str], usual: list[str], changes: list[str], here: Here
) -> None:
    source = "runs/first/export" if exported else "runs/first"
    here(*SMALL, "run_name=first", "epochs=1", "schedule.warmup=0ba", *surgery)
    if exported:
        here("export", "runs/first")
    words = [*usual, *SHAPES, f"model.weights={source}"]
    for verb in (["plan"], ["run", "run_name=second"]):
        output = here(*verb, *words).stdout
        assert f"note: using {' '.join(changes)} of the network of these weights\n" in output or not changes
        assert ("the network of these" in output) == bool(changes)
    first, second = (read(here.folder / "runs" / name / "config.yaml") for name in ("first", "second"))
    assert second.algorithms.get("blurpool") == first.algorithms.get("blurpool")
    assert second.algorithms.get("squeeze_excite") == first.algorithms.get("squeeze_excite")
    assert second.model == replace(first.model, weights=source, weights_sha256=second.model.weights_sha256)
    here("resume", "runs/second", "epochs=2")


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Here:
    here = Here(tmp_path_factory.mktemp("refused"))
    here.small("first", "algorithms=[blurpool]", "epochs=1", "schedule.warmup=0ba")
    return here


@pytest.mark.parametrize(
    ("word", "other"),
    [
        ("algorithms.blurpool=off", "algorithms.blurpool=on"),
        ("~algorithms.blurpool", "algorithms.blurpool=on"),
        ("algorithms=[ema,backbone_freezing]", "algorithms.blurpool=on"),
        ("algorithms.blurpool.min_channels=8", "algorithms.blurpool.min_channels=16"),
        ("algorithms.squeeze_excite=on", "algorithms.squeeze_excite=off"),
        ("algorithms.squeeze_excite.latent_channels=8", "algorithms.squeeze_excite=off"),
        ("model.activation=silu", "model.activation=relu"),
    ],
)
def test_another_network_on_the_command_line_is_refused(word: str, other: str, first: Here) -> None:
    words = ["recipe=finetune", *SHAPES, "model.weights=runs/first", word]
    for verb in (["plan"], []):
        done = first(*verb, *words, code=2)
        assert f"runs/first at step 6 has a network with {other}; set that value, or omit the key" in done.stderr
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["model.weights=runs/fist"], "did you mean runs/first?"),
        (["model.weights=runs/first", "model=timm", "model.architecture=test_vit"], "weights of resnet18, not"),
        (["model.weights=note.txt"], "neither safetensors nor torch can read it"),
    ],
)
def test_a_plan_refuses_weights_that_the_run_would_refuse(words: list[str], expected: str, first: Here) -> None:
    (first.folder / "note.txt").write_text("no weights")
    lines = [first(*verb, "recipe=finetune", *SHAPES, *words, code=2).stderr for verb in (["plan"], [])]
    assert expected in lines[0]
    assert lines[0] == lines[1]


def test_a_plan_downloads_nothing(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.weights.load.get_model_weights", None)
    here("plan", "recipe=finetune", *SHAPES, "model.weights=torchvision")
