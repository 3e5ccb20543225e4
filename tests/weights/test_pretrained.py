"""Pretrained weights from a file, a run or an export, for the same classes or others."""

import os
import pickle
import re
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torchvision.models.resnet import Bottleneck

from launcher.config import resolved
from launcher.config.compose import compose
from launcher.config.resolved import read
from launcher.config.schema import RunConfig
from launcher.errors import UserError
from launcher.models.build import build_model
from launcher.records.run_folder import RunFolder, checkpoint_name
from launcher.training.networks import read_initial
from launcher.weights.pretrained import pretrained_weights
from tests.commands import refused
from tests.networks import tiny
from tests.runs import SHAPES, SMALL, Here

pytestmark = pytest.mark.usefixtures("tiny_networks")

CLASSES = ["ant", "bee", "cat", "dog", "eel"]


def config_of(weights: Path, classes: int = 5) -> RunConfig:
    config = compose(["dataset=shapes", "model=resnet18", "algorithms=[]"]).config
    model, dataset = replace(config.model, weights=str(weights)), replace(config.dataset, classes=classes)
    return replace(config, model=model, dataset=dataset)


def start(weights: Path, classes: list[str] = CLASSES) -> tuple[dict[str, Tensor], str]:
    pretrained = pretrained_weights(config_of(weights, len(classes)), classes)
    return pretrained.weights, pretrained.notes[0]


@pytest.fixture(scope="module")
def trained() -> dict[str, Tensor]:
    """Return weights for five classes that differ from those of any seed."""
    torch.manual_seed(7)
    state = tiny(num_classes=5).state_dict()
    return {name: (tensor + torch.rand(tensor.shape) / 100).to(tensor.dtype) for name, tensor in state.items()}


@pytest.fixture
def file(trained: dict[str, Tensor], tmp_path: Path) -> Path:
    return safe(trained, tmp_path / "weights.safetensors")


def saved_as(content: Any, path: Path) -> Path:
    torch.save(content, path)
    return path


def safe(weights: dict[str, Tensor], path: Path) -> Path:
    save_file(weights, path)
    return path


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda w: w,
        lambda w: {"state_dict": {f"module.{name}": tensor for name, tensor in w.items()}, "epoch": 3},
        lambda w: {"model": {n: torch.zeros_like(t) for n, t in w.items()}, "state_dict_ema": w},
        lambda w: {"model": {f"module._orig_mod.{name}": tensor for name, tensor in w.items()}, "args": {"lr": 1.0}},
    ],
    ids=["plain", "state_dict", "averaged", "wrapped twice"],
)
def test_published_layouts_of_a_torch_file_load(wrapped: Any, trained: dict[str, Tensor], tmp_path: Path) -> None:
    weights, _ = start(saved_as(wrapped(trained), tmp_path / "file.pth"))
    assert weights.keys() == trained.keys()
    assert all(torch.equal(weights[name], tensor) for name, tensor in trained.items())


def test_weights_of_another_precision_and_without_counters_load(trained: dict[str, Tensor], tmp_path: Path) -> None:
    halves = {n: t.half() if t.is_floating_point() else t for n, t in trained.items() if "num_batches" not in n}
    weights, _ = start(saved_as(halves, tmp_path / "file.pth"))
    assert weights["conv1.weight"].dtype == torch.float32
    assert torch.equal(weights["conv1.weight"], trained["conv1.weight"].half().float())
    assert weights["bn1.num_batches_tracked"] == 0


def test_another_number_of_classes_gets_a_head_of_zero(file: Path, trained: dict[str, Tensor]) -> None:
    config = config_of(file, 3)
    pretrained = pretrained_weights(config, CLASSES[:3])
    fresh = build_model(config.model, 3, config.loss, config.seed).state_dict()
    assert not pretrained.weights["fc.weight"].any()
    assert fresh["fc.weight"].any()
    assert torch.equal(pretrained.weights["fc.bias"], fresh["fc.bias"])
    assert torch.equal(pretrained.weights["layer2.0.conv2.weight"], trained["layer2.0.conv2.weight"])
    assert "a new head for 3 classes instead of 5" in pretrained.notes[0]


def named_checkpoint(trained: dict[str, Tensor], names: list[str], path: Path) -> Path:
    return saved_as({"format": 1, "state": {"step": 3, "weights": trained, "classes": names}}, path)


def test_rows_of_the_head_follow_the_class_names(trained: dict[str, Tensor], tmp_path: Path) -> None:
    """Classes in another order get their own rows; other classes get a new head."""
    reordered = [CLASSES[number] for number in (3, 0, 4, 1, 2)]
    path = named_checkpoint(trained, reordered, tmp_path / "reordered.pt")
    weights, note = start(path)
    network = tiny(num_classes=5).eval()
    images = torch.rand(2, 3, 64, 64)
    network.load_state_dict(trained)
    before = network(images)
    network.load_state_dict(weights)
    torch.testing.assert_close(network(images), before[:, [reordered.index(name) for name in CLASSES]])
    assert "the head's rows of the same 5 classes" in note
    others, note = start(named_checkpoint(trained, ["fox", *CLASSES[1:]], tmp_path / "others.pt"))
    assert not others["fc.weight"].any()
    assert "a new head for 5 classes, since the source has others" in note


def test_a_subset_of_the_classes_keeps_its_rows(trained: dict[str, Tensor], tmp_path: Path) -> None:
    path = named_checkpoint(trained, CLASSES, tmp_path / "file.pt")
    weights, _ = start(path, ["bee", "dog"])
    assert torch.equal(weights["fc.bias"], trained["fc.bias"][[1, 3]])


class Runs:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, ("ran",)


def cut(path: Path, fraction: float) -> Path:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * fraction)])
    return path


def with_another_block(trained: dict[str, Tensor]) -> dict[str, Tensor]:
    block = {name: tensor for name, tensor in trained.items() if name.startswith("layer1.0.")}
    return {**trained, **{name.replace("1.0.", "1.1.", 1): tensor.clone() for name, tensor in block.items()}}


# Functions that write a wrong file from good weights, and its error.
BAD: dict[str, tuple[Callable[[dict[str, Tensor], Path], object], str]] = {
    "text": (
        lambda w, path: path.write_text("no weights, but long\n" * 20),
        "is not a file of weights or is cut short",
    ),
    "empty": (lambda w, path: path.touch(), "is not a file of weights or is cut short"),
    "pickle": (lambda w, path: path.write_bytes(pickle.dumps({"fc.bias": Runs()}, protocol=2)), "could run code"),
    "code in a torch file": (
        lambda w, path: torch.save({**w, "hook": Runs()}, path),
        "contains posix.mkdir, more than tensors, and could run code; set another file",
    ),
    "torch cut short": (lambda w, path: cut(saved_as(w, path), 0.5), "is not a file of weights or is cut short"),
    "safetensors cut short": (lambda w, path: cut(safe(w, path), 0.5), "is not a complete safetensors file"),
    "metadata of its own": (lambda w, path: save_file(w, path, {"surgery": "{"}), "has metadata that are not JSON"),
    "no weights": (lambda w, path: torch.save({"epoch": 3, "lr": [1.0]}, path), "contains no mapping of names"),
    "an image's tensor": (lambda w, path: torch.save(torch.rand(3, 8, 8), path), "contains no mapping of names"),
    "another program's": (lambda w, path: torch.save({"state": {"weights": 3}}, path), "contains no mapping of names"),
    "not finite": (lambda w, path: safe({**w, "bn1.bias": w["bn1.bias"] * torch.nan}, path), "bn1.bias is not finite"),
    "more": (lambda w, path: safe(with_another_block(w), path), "layer1.1.bn1.weight is not part of the network"),
    "bottlenecks": (
        lambda w, path: safe(tiny(num_classes=5, block=Bottleneck).state_dict(), path),
        "layer1.0.conv1.weight is 16x64x1x1 instead of 16x64x3x3",
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_wrong_file_is_an_error_of_one_line(kind: str, trained: dict[str, Tensor], here: Here) -> None:
    path, (write, expected) = here.folder / "file.pth", BAD[kind]
    write(trained, path)
    words = ["recipe=none", "dataset=shapes", "model=resnet18", "launch=cpu", "run_name=bad"]
    done = here(*words, f"model.weights={path.name}", code=2)
    assert len(done.stderr.splitlines()) == 1
    assert f"model.weights={path.name}: " in done.stderr
    assert expected in done.stderr
    assert done.stderr.count(" is missing") + done.stderr.count("not part") + done.stderr.count("instead") <= 10
    assert not (here.folder / "runs").exists()
    assert not Path("ran").exists()


@pytest.mark.parametrize("of", ["state_dict", "module", "whole module", "ema", "old format"])
def test_a_file_with_another_class_is_refused_with_a_line_that_converts_it(
    of: str, trained: dict[str, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny(num_classes=5)
    model.load_state_dict(trained)
    best, own = {"best": Fraction(1, 2)}, f"{type(model).__module__}.{type(model).__qualname__}"
    content, name = {
        "state_dict": ({"state_dict": trained, **best}, "fractions.Fraction"),
        "module": ({"model": model, "ema": None, **best}, own),
        "whole module": (model, own),
        "ema": ({"model": tiny(num_classes=5).state_dict(), "ema": trained, **best}, "fractions.Fraction"),
        "old format": ({"state_dict": trained, **best}, "fractions.Fraction"),
    }[of]
    monkeypatch.chdir(tmp_path)
    torch.save(content, "my best.pth", _use_new_zipfile_serialization=of != "old format")
    with pytest.raises(UserError) as raised:
        start(Path("my best.pth"))
    (line,) = str(raised.value).splitlines()
    assert f"contains {name}, more than tensors, and could run code; only if you trust it, convert it" in line
    _, _, command = line.partition(" and set 'my best-weights.pt' instead: ")
    _, _, program, *files = shlex.split(command)
    monkeypatch.setattr(sys, "argv", ["-c", *files])
    exec(program, {})
    weights, _ = start(Path("my best-weights.pt"))
    assert all(torch.equal(weights[name], tensor) for name, tensor in trained.items())


def test_a_missing_file_suggests_a_similar_name(file: Path) -> None:
    with pytest.raises(UserError, match=r"is not a file, run folder or export; did you mean \S*weights.safetensors\?"):
        start(file.with_name("weight.safetensors"))
    (file.parent / "empty").mkdir()
    with pytest.raises(
        UserError, match=r"is not a file, run folder or export; set one of these, hub:NAME/MODEL, torchvision or timm"
    ):
        start(file.parent / "empty")


def test_a_file_in_a_folder_called_checkpoints_needs_no_run(file: Path) -> None:
    """The cache of torchvision's weights has this name."""
    folder = file.parent / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    assert start(file)[0].keys() == start(file.rename(folder / file.name))[0].keys()


def test_a_run_without_a_checkpoint_or_of_another_network_is_refused_before_torch_is_imported(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "launcher.weights.pretrained", None)
    run = RunFolder(here.folder / "runs" / "first")
    run.checkpoints.mkdir(parents=True)
    resolved.write(config_of(Path("none")), run.config)
    words = ["plan", *SHAPES, "model=resnet50", f"model.weights={run.path}"]
    # note: an error shortens long values
    shown = r"=\S+: has no checkpoint yet; type train resume \S+runs/first\n"
    assert re.fullmatch(rf"error: model\.weights{shown}", refused(*words))
    teacher = ["recipe=small", f"algorithms.distillation.teacher={run.path}"]
    assert re.search(rf"algorithms\.distillation\.teacher{shown}", refused("plan", *SHAPES, "model=resnet18", *teacher))
    (run.checkpoints / checkpoint_name(1)).touch()
    assert "weights of resnet18, not resnet50; set model=resnet18" in refused(*words)


def test_weights_with_another_digest_are_refused(file: Path) -> None:
    config = config_of(file)
    digest = pretrained_weights(config, CLASSES).config.model.weights_sha256
    assert digest is not None
    pinned = replace(config, model=replace(config.model, weights_sha256=digest))
    assert pretrained_weights(pinned, CLASSES).config == pinned
    save_file({**load_file(file), "fc.bias": torch.ones(5)}, file)
    with pytest.raises(UserError, match=f"model.weights_sha256={digest}: .* has the digest"):
        pretrained_weights(pinned, CLASSES)


@pytest.mark.parametrize("source", ["runs/first", "runs/first/checkpoints/best.pt", "runs/first/export"])
def test_a_run_starts_from_the_weights_of_another(source: str, here: Here) -> None:
    """A learning rate of 0 keeps all weights and averages; resuming needs no file of the first run."""
    short = ["epochs=1", "schedule.warmup=0ba"]
    here(*SMALL, "run_name=first", "algorithms=[blurpool,ema]", *short)
    if source.endswith("export"):
        here("export", "runs/first")
    words = [f"model.weights={source}", "algorithms=[blurpool,ema]", "optimizer.lr=0", "optimizer.weight_decay=0"]
    here(*SMALL, "run_name=second", *words, *short, "algorithms.ema.half_life=1000000ba")
    first, second = here.folder / "runs/first", here.folder / "runs/second"
    before, after = here.state(first)["weights"], here.state(second)["weights"]
    assert isinstance(before, dict)
    assert isinstance(after, dict)
    parameters = [name for name in before if "running" not in name and "num_batches" not in name]
    assert all(torch.equal(before[name], after[name]) for name in parameters)
    torch.testing.assert_close(after["bn1.running_mean"], before["bn1.running_mean"], rtol=0.1, atol=0.01)
    assert read(second / "config.yaml").model.weights_sha256
    (second / "initial.safetensors").unlink()
    here("resume", "runs/second", "epochs=2")


def test_damaged_initial_weights_of_a_run_are_an_error(file: Path) -> None:
    for write in (file.unlink, lambda: file.write_bytes(b"cut")):
        write()
        with pytest.raises(UserError, match="the run's pretrained weights, cannot be read"):
            read_initial(SimpleNamespace(initial=file))  # type: ignore[arg-type]
