"""Code of the user's in an empty folder: an algorithm in the typed form, and a network by `_target_`."""

import hashlib
import signal
from pathlib import Path

import pytest

from tests.runs import SHORT, Train, same, wait_for

pytestmark = pytest.mark.system

NETS = """
from timm.models import register_model
from torch import nn


class TinyNet(nn.Module):
    def __init__(self, num_classes: int, width: int = 8, slope: float = 0.1):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, width, 3, stride=2), nn.BatchNorm2d(width)
        self.head, self.slope = nn.Linear(width, num_classes), slope

    def forward(self, images):
        return self.head(nn.functional.leaky_relu(self.norm(self.conv(images)), self.slope).mean((2, 3)))


@register_model
def my_tiny(pretrained=False, num_classes=10, **_):
    return TinyNet(num_classes)
"""
DARK = """
from dataclasses import replace

from pydantic.dataclasses import dataclass

from launcher import randomness
from launcher.algorithms.base import Algorithm, Transform
from launcher.config.declaration import AlgorithmConfig
from launcher.config.fields import STRICT, Probability


@dataclass(frozen=True, config=STRICT)
class DarkConfig(AlgorithmConfig, change_batch=-5):
    probability: Probability


class Dark(Algorithm[DarkConfig]):
    def change_batch(self, batch, size):
        draws = randomness.uniforms(batch.moment.seed, "dark", batch.moment.epoch, batch.indices, 1)[:, 0]
        halves = (draws < self.values.probability).astype("uint8")
        return Transform([halves], lambda batch, by: replace(batch, inputs=batch.inputs >> by.view(-1, 1, 1, 1)))
"""
MODEL = "architecture: empty\nweights: null\nweights_sha256: null\ncheckpointing: 'off'\n"
BARE = """
from typing import Literal

from pydantic.dataclasses import dataclass

from launcher.config.choices import LossConfig, ModelConfig, ScheduleConfig
from launcher.config.fields import STRICT


@dataclass(frozen=True, config=STRICT)
class Late(ScheduleConfig):
    name: Literal["late"]


@dataclass(frozen=True, config=STRICT)
class Empty(ModelConfig):
    name: Literal["empty"]


@dataclass(frozen=True, config=STRICT)
class Nothing(LossConfig):
    name: Literal["nothing"]
"""
WORDS = ["code=[nets.py,dark.py]", "model=mine", "model.width=4", "algorithms=[dark]", *SHORT, "model=mine"]


@pytest.fixture
def stranger(train: Train, tmp_path: Path) -> Train:
    (tmp_path / "nets.py").write_text(NETS)
    (tmp_path / "dark.py").write_text(DARK)
    (tmp_path / "bare.py").write_text(BARE)
    for name, text in {
        "model/mine": "# Two layers.\n_target_: nets.TinyNet\nwidth: 16\n",
        "schedule/late": "defaults: [constant, _self_]\nname: late\n",
        "model/empty": f"name: empty\n{MODEL}",
        "loss/nothing": "name: nothing\n",
        "algorithms/dark": "# @package algorithms.dark\nprobability: 0.5\n",
    }.items():
        path = tmp_path / "conf" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    train.environment = {**train.environment, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    return train


def words_of_own() -> list[str]:
    return [word for word in WORDS if word != "model=resnet18" and not word.startswith("algorithms.ema")]


def test_own_code_trains_resumes_to_the_same_bits_and_is_exported(stranger: Train, tmp_path: Path) -> None:
    words = words_of_own()
    whole, stopped = tmp_path / "runs" / "whole", tmp_path / "runs" / "stopped"
    stranger(*words, "run_name=whole")
    process = stranger.start(*words, "run_name=stopped")
    wait_for(lambda: any((stopped / "checkpoints").glob("step-*.pt")))
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=400)
    stranger("resume", str(stopped))
    assert same(stranger.decided(whole)["weights"], stranger.decided(stopped)["weights"])
    assert (whole / "code" / "nets.py").read_text() == NETS
    stranger("export", str(whole))
    assert (whole / "export" / "nets.py").read_text() == NETS
    assert "top-1" in stranger("eval", str(whole)).stdout


def test_only_the_code_of_the_run_that_was_named_here_runs(stranger: Train, tmp_path: Path) -> None:
    run, nets = tmp_path / "runs" / "r", tmp_path / "nets.py"
    stranger(*words_of_own(), "epochs=1", "schedule.warmup=0ba", "run_name=r")
    marked = tmp_path / "ran"
    nets.write_text(f"open({str(marked)!r}, 'w')\n{NETS}")
    assert "but" in (line := stranger("eval", str(run), code=2).stderr)
    assert line.count("\n") == 1
    assert "top-1" in stranger("eval", str(run), f"code={run / 'code' / 'nets.py'}").stdout
    copy, config = run / "code" / "nets.py", run / "config.yaml"
    copy.write_text(nets.read_text())
    before = [hashlib.sha256(NETS.encode()).hexdigest(), str(nets)]
    after = [hashlib.sha256(copy.read_bytes()).hexdigest(), str(copy)]
    text = config.read_text()
    for old, new in zip(before, after, strict=True):
        text = text.replace(old, new)
    config.write_text(text)
    for verb in (["eval"], ["export"], ["resume"]):
        assert "was never named on this machine" in stranger(*verb, str(run), code=2).stderr
    assert not marked.exists()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["code=nets.py", "model=mine", "model.wdth=4"], "no such key; did you mean model.width?"),
        (["model=mine"], "model._target_=nets.TinyNet (model=mine): is neither in torch.nn"),
        (
            ["code=nets.py", "model=mine", "model._target_=os.system"],
            "=os.system (command line): is neither in",
        ),
        (["code=nets.py", "model=mine", "model._target_=nets.torch.save"], "is not a class or function there"),
        (["code=nowhere.py"], "code=nowhere.py: is neither a file nor a package"),
        (["code=dark.py", "algorithms.dark.probabiliy=1"], "did you mean algorithms.dark.probability?"),
        (["code=bare.py", "schedule=late"], "Late of bare has no after_warmup; write what it lacks"),
        (["code=bare.py", "model=empty"], "Empty of bare has no library and no network; write what it lacks"),
        (["code=bare.py", "loss=nothing"], "Nothing of bare has no function and no labels and no scores; write"),
        (["code=nets.py", "model=timm", "model.architecture=my_tiny"], ""),
        (["model=timm", "model.architecture=resnet18.a1_in1k"], ""),
        (["model=timm", "model.architecture=resnet18.b1"], "is not a timm model"),
    ],
)
def test_words_for_own_code_are_checked(stranger: Train, words: list[str], line: str) -> None:
    assert line in stranger("show", *words, code=2 if line else 0).stderr
