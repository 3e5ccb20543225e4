"""Code of the user's in an empty folder: an algorithm in the typed form, and a network by `_target_`."""

import hashlib
import pickle
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.images import write_images
from tests.own_code import NETS, STRANGER, WORDS_OF_STRANGER, own_folder
from tests.runs import SMALL, Train

pytestmark = pytest.mark.system

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
FILES = {
    **STRANGER,
    "bare.py": BARE,
    "conf/schedule/late.yaml": "defaults: [constant, _self_]\nname: late\n",
    "conf/model/empty.yaml": f"name: empty\n{MODEL}",
    "conf/loss/nothing.yaml": "name: nothing\n",
}


@pytest.fixture
def stranger(train: Train) -> Train:
    return own_folder(train, FILES)


def test_own_code_is_exported_evaluated_and_shown(stranger: Train, tmp_path: Path) -> None:
    words, whole = WORDS_OF_STRANGER, tmp_path / "runs" / "whole"
    stranger(*words, "epochs=1", "schedule.warmup=0ba", "run_name=whole")
    assert (whole / "code" / "nets.py").read_text() == NETS
    stranger("export", str(whole))
    assert (whole / "export" / "nets.py").read_text() == NETS
    assert "top2" in stranger("eval", str(whole)).stdout
    write_images(tmp_path, {"few": 1})
    assert "cat/0.jpg" in stranger("predict", str(whole / "export"), "few").stdout
    assert "look.html" in stranger("look", *words).stdout
    assert "nets.top2" in stranger("show", *words).stdout


def test_changed_code_is_checked_and_counted_again(stranger: Train, tmp_path: Path) -> None:
    plan, nets = ["plan", *WORDS_OF_STRANGER], tmp_path / "nets.py"
    there = [word for word in plan if not word.startswith("launch")] + ["--on", "p4d_24xlarge", "--json"]
    stranger(*plan)
    counted = stranger(*there).stdout
    nets.write_text(NETS.replace("stride=2)", "stride=1)"))
    assert stranger(*there).stdout != counted
    nets.write_text(NETS.replace(".mean((2, 3))", ".mean((1, 2, 3))"))
    assert "which mine does not accept" in stranger(*plan, code=2).stderr
    nets.write_text(NETS)
    mean = "    return F.cross_entropy("
    formulas = tmp_path / "formulas.py"
    formulas.write_text(formulas.read_text().replace(mean, f"    outputs.detach().numpy()\n{mean}"))
    line = stranger(*there, code=2).stderr
    assert "train estimate measures it" in line
    assert line.count("\n") == 1


def test_only_the_code_of_the_run_that_was_named_here_runs(stranger: Train, tmp_path: Path) -> None:
    run, nets = tmp_path / "runs" / "r", tmp_path / "nets.py"
    stranger(*WORDS_OF_STRANGER, "epochs=1", "schedule.warmup=0ba", "run_name=r")
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


# Parts of libraries that would run code in a file, or fetch it, as keys of a config.
LOADERS = {
    "callbacks": {"x": {"_target_": "timm.models._helpers.load_state_dict", "checkpoint_path": "evil.pkl"}},
    "metrics": {"x": {"_target_": "torch.load", "f": "evil.pkl", "weights_only": False, "better": "lower"}},
    "model": {"_target_": "timm.models.create_model", "model_name": "resnet18", "checkpoint_path": "evil.pkl"},
    "schedule": {"_target_": "builtins.exec"},
    "loss": {"_target_": "os.system"},
    "optimizer": {"_target_": "nets.Sign", "lr": 0.1},
}


def test_a_run_folder_from_elsewhere_runs_nothing(stranger: Train, tmp_path: Path) -> None:
    stranger(*SMALL, "epochs=1", "schedule.warmup=0ba", "run_name=r")
    run, marked = tmp_path / "runs" / "r", tmp_path / "ran"
    text = f"open({str(marked)!r}, 'w')\n{NETS}"
    for path in (tmp_path / "nets.py", run / "nets.py", run / "code" / "nets.py", run / "export" / "nets.py"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    (tmp_path / "evil.pkl").write_bytes(pickle.dumps(_Marks(str(marked))))
    plain = yaml.safe_load((run / "config.yaml").read_text())
    for group, values in LOADERS.items():
        named = values if group in ("callbacks", "metrics") else {"name": "x", **values}
        (run / "config.yaml").write_text(yaml.safe_dump({**plain, group: named}))
        for verb in ("eval", "resume", "export"):
            # note: a finished run needs no network to resume
            refuses = (group, verb) != ("model", "resume")
            assert stranger(verb, str(run), code=2 * refuses).stderr.startswith("error: " * refuses), (group, verb)
    assert not marked.exists()


class _Marks:
    """Writes a file when it is unpickled."""

    def __init__(self, path: str):
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self.path, "w")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["code=nets.py", "model=mine", "model.wdth=4"], "no such key; did you mean model.width?"),
        (["model=mine"], "model._target_=nets.TinyNet (model=mine): is neither in torch.nn"),
        (["code=nets.py", "model=mine", "model._target_=os.system"], "=os.system (command line): is neither in"),
        (["code=nets.py", "model=mine", "model._target_=nets.torch.save"], "is not a class or function there"),
        (["code=nowhere.py"], "code=nowhere.py: is neither a file nor a package"),
        (["code=typed.py", "algorithms.dark.probabiliy=1"], "did you mean algorithms.dark.probability?"),
        (["code=bare.py", "schedule=late"], "Late of bare has no after_warmup; write what it lacks"),
        (["code=bare.py", "model=empty"], "Empty of bare has no network; write what it lacks"),
        (["code=bare.py", "loss=nothing"], "Nothing of bare has no function and no labels and no scores; write"),
        (["code=nets.py", "model=timm", "model.architecture=my_tiny"], ""),
        (["model=timm", "model.architecture=resnet18.a1_in1k"], ""),
        (["model=timm", "model.architecture=resnet18.b1"], "is not a timm model"),
    ],
)
def test_words_for_own_code_are_checked(stranger: Train, words: list[str], line: str) -> None:
    assert line in stranger("show", *words, code=2 if line else 0).stderr
