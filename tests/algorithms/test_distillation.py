"""Distillation compared with the formulas of its papers, and with a teacher from a run, an export or timm."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.transforms.v2.functional import normalize, resize

from launcher.algorithms.base import Context, Teacher
from launcher.algorithms.engine import Engine
from launcher.config.resolved import read
from launcher.training import checkpoint
from tests.runs import SMALL, Here
from tests.trainers import EARLY, build, steps

ON = ["algorithms=[distillation]", *EARLY["distillation"]]
MEAN, STD = [0.5, 0.4, 0.3], [0.2, 0.3, 0.4]


class Seen(nn.Module):
    """A teacher that keeps its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs: list[Tensor] = []

    def forward(self, images: Tensor) -> Tensor:
        self.inputs.append(images)
        return images.mean((1, 2, 3))[:, None] * torch.arange(10.0)


@pytest.mark.parametrize("form", ["soft", "hard"])
@pytest.mark.parametrize("mixed", [False, True])
def test_the_loss_is_that_of_the_paper(
    form: str, mixed: bool, context: Callable[..., Context], batch: Callable[..., Any]
) -> None:
    words = [f"algorithms.distillation.{word}" for word in (f"form={form}", "temperature=2.5", "weight=0.7")]
    run = context(*ON, *words)
    engine = Engine(replace(run, teacher=Teacher(Seen(), (16, 16), [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])))
    loaded = batch(targets=torch.rand(8, 10).softmax(1) if mixed else None)
    changed = engine.change_batch(loaded, lambda images: images)
    logits = torch.randn(8, 10, dtype=torch.float64)
    taught = Seen()(loaded.inputs).double()
    labels = F.cross_entropy(logits, loaded.targets)
    if form == "soft":  # Hinton et al. 2015, section 2, with the entropy of the teacher, which has no gradient
        p, q = ((one / 2.5).exp() / (one / 2.5).exp().sum(1, keepdim=True) for one in (taught, logits))
        towards = 2.5**2 * (p * (p / q).log()).sum() / 8
    else:  # Touvron et al. 2021, equation 3
        towards = F.cross_entropy(logits, taught.argmax(1))
    ours = engine.change_loss(F.cross_entropy)(logits, changed.targets)
    torch.testing.assert_close(ours.double(), 0.3 * labels + 0.7 * towards, rtol=1e-5, atol=1e-6)


def test_the_teacher_sees_the_mixed_images_once_at_its_own_size_and_normalization() -> None:
    words = ["algorithms=[distillation,mixup,sam]", *EARLY["distillation"], "algorithms.sam.interval=1"]
    run = build(*words, "device_batch_size=4", "dataset.mean=[0.1,0.2,0.3]", "dataset.std=[0.3,0.2,0.1]")
    seen, forwarded = Seen(), list[Tensor]()
    run.train_step.engine.active["distillation"].context = replace(
        run.train_step.engine.active["distillation"].context, teacher=Teacher(seen, (24, 24), MEAN, STD)
    )
    run.train_step.model.register_forward_pre_hook(lambda module, inputs: forwarded.append(inputs[0].detach()))
    steps(run, 1)
    assert [len(images) for images in seen.inputs] == [4, 4]
    assert len(forwarded) == 4  # note: two passes of two micro-batches
    pixels = torch.cat(forwarded[:2]) * torch.tensor([0.3, 0.2, 0.1]).view(3, 1, 1)
    pixels = pixels + torch.tensor([0.1, 0.2, 0.3]).view(3, 1, 1)
    expected = normalize(resize(pixels, [24, 24], antialias=True), MEAN, STD)
    torch.testing.assert_close(torch.cat(seen.inputs), expected, rtol=1e-4, atol=1e-4)
    assert not torch.cat(seen.inputs).requires_grad


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the runs `teacher`, and `student` that has learned from it by a relative path."""
    path = tmp_path_factory.mktemp("distilled")
    train = Here(path)
    train.small("teacher", "epochs=2")
    train.small("student", *TAUGHT, "algorithms.distillation.teacher=runs/teacher", "epochs=2")
    return path


TAUGHT = ["algorithms.distillation=on", "checkpoint.every=1ep"]


def test_a_student_keeps_its_teacher_beside_its_weights(folder: Path) -> None:
    student, teacher = (folder / "runs" / name for name in ("student", "teacher"))
    values = read(student / "config.yaml").algorithms.teaching
    assert values
    assert values.teacher == str(teacher)
    ours, theirs = (checkpoint.newest_valid(run / "checkpoints") for run in (student, teacher))
    assert ours
    assert theirs
    assert ours.keys() == theirs.keys()
    assert ours["weights"].keys() == theirs["weights"].keys()
    kept = load_file(student / "teacher.safetensors")
    assert all(torch.equal(kept[name], tensor) for name, tensor in theirs["weights"].items())


def test_only_the_same_teacher_resumes_a_run(folder: Path) -> None:
    train, kept, own = Here(folder), folder / "runs/student/teacher.safetensors", folder / "runs/teacher"
    content = kept.read_bytes()
    kept.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    changed = train("resume", "runs/student", "epochs=3", code=2).stderr
    assert changed.count("\n") == 1
    assert "is another teacher than that of this run" in changed
    other = train("resume", "runs/student", "algorithms.distillation.teacher=runs/other", code=2).stderr
    assert "algorithms.distillation.teacher=runs/other" in other
    kept.unlink()
    train("resume", "runs/student", "epochs=4")
    assert kept.read_bytes() == content
    kept.unlink()
    train("resume", "runs/teacher", "epochs=3")
    newer = train("resume", "runs/student", "epochs=5", code=2).stderr
    assert f"{own}" in newer
    assert "is another teacher than that of this run" in newer


def test_a_teacher_of_other_classes_is_refused(folder: Path) -> None:
    train, key = Here(folder), "algorithms.distillation.teacher"
    of_timm = train("plan", *SMALL, *TAUGHT, f"{key}=resnet50", code=2).stderr
    assert f"{key}=resnet50: has 1,000 outputs of task=classification, and the run 10" in of_timm
    assert f"{key}=null" in train("plan", *SMALL, *TAUGHT, code=2).stderr
    assert "is neither a path nor a model" in train("plan", *SMALL, *TAUGHT, f"{key}=runs/none", code=2).stderr
    path = next((folder / "runs/teacher/checkpoints").glob("step-*"))
    state = checkpoint.load(path)
    checkpoint.save({**state, "classes": state["classes"][::-1]}, path)
    named = train("plan", *SMALL, *TAUGHT, f"{key}={path}", code=2).stderr
    assert "has other classes: number 0 is " in named
    config = folder / "runs/teacher/config.yaml"
    whole = config.read_text()
    config.write_text(whole.replace("\nseed:", "\nseeds:"))
    assert "config.yaml): seed is missing" in train("plan", *SMALL, *TAUGHT, f"{key}=runs/teacher", code=2).stderr
    config.write_text(whole)


@pytest.mark.usefixtures("tiny_networks")
def test_the_plan_has_the_cost_of_an_exported_teacher(folder: Path) -> None:
    train = Here(folder)
    train("export", "runs/teacher", "-o", "exported")
    planned = train("plan", *SMALL, *TAUGHT, "algorithms.distillation.teacher=exported").stdout
    assert "note: the teacher, resnet18 at 24 px, adds 33% to the operations of a step of 24 px" in planned
