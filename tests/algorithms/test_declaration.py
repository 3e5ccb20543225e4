"""An algorithm outside of the launcher can be planned, estimated, advised on, run, exported and predicted with."""

import runpy
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Literal, Self

import numpy as np
import pytest
import torch
from PIL import Image
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from launcher.algorithms.base import Algorithm, Context, Transform
from launcher.algorithms.engine import Engine
from launcher.config.algorithms import Algorithms
from launcher.config.compose import compose
from launcher.config.declaration import AlgorithmConfig, RunPlan, Size
from launcher.config.fields import STRICT, Count
from launcher.data.batch import Batch, Moment
from launcher.errors import Problem, UserError
from launcher.measure.diagnosis import diagnose
from launcher.measure.estimate import Measurement, sizes_by_round
from launcher.models.build import Surgery, build_model
from launcher.plan.checks import check, notes
from launcher.plan.plan import Plan
from launcher.plan.step_kinds import StepKind, step_kinds, step_samples
from launcher.weights.classifier import classifier_of_export, model_card, predictions, trained_network
from launcher.weights.export_files import write_export
from tests import measurements

EVAL = ["image.eval_size=64", "image.eval_resize=64"]
HALF = 20  # steps of small images


@dataclass(frozen=True, config=STRICT)
class StrangerConfig(
    AlgorithmConfig,
    change_model=35,
    change_batch=15,
    after_step=15,
    excludes={"sam": "its noise would hide what SAM looks for"},
):
    interval: Count

    def acts_at(self, plan: RunPlan, step: int) -> int:
        return (step + 1) % self.interval == 0

    def size_after(self, plan: RunPlan, step: int, size: Size) -> Size:
        return (size[0] // 2, size[1] // 2) if step < HALF else size

    def problems(self, plan: RunPlan) -> Iterator[Problem]:
        if self.interval > plan.total_steps:
            yield Problem("is longer than the run", "interval", self.interval)

    def notes(self, plan: RunPlan) -> Iterator[str]:
        yield f"noise every {self.interval} steps"

    @classmethod
    def advice(cls, values: Self | None, bound: Literal["data", "step"]) -> str | None:
        return f"algorithms.stranger is on: {values is not None}" if bound == "step" else None


@dataclass(frozen=True, config=STRICT)
class Extended(Algorithms):
    stranger: StrangerConfig | None = None


def sharpen(network: nn.Module, *, interval: int) -> None:
    """Multiply the logits."""
    network.register_forward_hook(lambda module, images, logits: times(logits, interval))


def times(logits: Tensor, factor: int) -> Tensor:
    return logits * factor


class Stranger(Algorithm[StrangerConfig]):
    """Multiplies logits, halves images, and adds one to a layer's weights."""

    surgery = Surgery(sharpen, parts=(times,))

    def change_model(self, model: nn.Module) -> None:
        sharpen(model, interval=self.values.interval)

    def change_batch(self, batch: Batch, size: Size) -> Transform | None:
        height, width = self.values.size_after(self.context.plan, batch.moment.step, size)
        return Transform((), lambda batch: replace(batch, images=batch.images[..., :height, :width]))

    def after_step(self, model: nn.Module, moment: Moment, applied: Tensor) -> None:
        if self.values.acts_at(self.context.plan, moment.step):
            with torch.no_grad():
                next(model.parameters()).add_(1.0)


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the class as the module of an algorithm."""
    module = ModuleType("launcher.algorithms.stranger")
    module.Stranger = Stranger  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)


def plan(*words: str, interval: int = 4) -> Plan:
    """Return a plan of 40 steps with this algorithm and those of the words, for images of 64 px."""
    base = ["epochs=4", "batch_size=64", "schedule.warmup=0ba", "dataset=shapes", "dataset.native_size=64"]
    config = compose([*base, "image.reference=64", "image.train_size=64", *EVAL, *words]).config
    algorithms = Extended(**config.algorithms.active(), stranger=StrangerConfig(interval=interval))
    return Plan(replace(config, algorithms=algorithms), 1, 640)


def test_the_plan_has_it_at_its_place() -> None:
    algorithms = plan("algorithms=[ema,stochastic_depth,ghost_batchnorm,swa]").config.algorithms
    assert algorithms.acting("after_step") == ["ema", "stranger", "swa"]
    assert algorithms.acting("change_model")[:3] == ["stochastic_depth", "stranger", "ghost_batchnorm"]


def test_its_exclusions_and_wrong_values_are_refused_and_its_notes_printed() -> None:
    with pytest.raises(UserError) as caught:
        check(plan("algorithms=[sam]", interval=50), {})
    assert [str(problem) for problem in caught.value.problems] == [
        "algorithms.stranger=on: cannot be combined with sam: its noise would hide what SAM looks for "
        "(algorithms.sam=off or algorithms.stranger=off)",
        "algorithms.stranger.interval=50: is longer than the run",
    ]
    check(plan("algorithms=[ema]"), {})
    assert "noise every 4 steps" in notes(plan("algorithms=[]"))


@pytest.mark.parametrize(("words", "small", "full"), [("[]", 32, 64), ("[colout]", 30, 60)])
def test_the_plan_has_the_image_size_after_it(words: str, small: int, full: int) -> None:
    run = plan(f"algorithms={words}")
    assert [run.image_size(step) for step in (0, HALF - 1, HALF, 39)] == [small, small, full, full]
    assert {run.loaded_size(step) for step in range(40)} == {64}


def test_its_steps_are_separate_kinds_and_the_estimate_counts_them() -> None:
    run = plan("algorithms=[]")
    kinds = {kind: len(steps) for kind, steps in step_kinds(run).items()}
    acting = ("stranger",)
    assert kinds == {StepKind(32, ()): 15, StepKind(32, acting): 5, StepKind(64, ()): 15, StepKind(64, acting): 5}
    samples = step_samples(step_kinds(run))
    assert {sample.kind for sample in samples} == kinds.keys()
    assert all((step + 1) % 4 == 0 for sample in samples if sample.kind.acting for step in sample.steps)
    ((small, large),) = sizes_by_round(run, measured(run))
    assert (small.image_size, small.steps, large.steps) == (32, 20, 20)
    assert small.step_seconds == pytest.approx((15 * 0.1 + 5 * 0.3) / 20)


def measured(run: Plan) -> Measurement:
    """Return a measurement with steps of 0.3 s where the algorithm acts, else 0.1 s."""
    return measurements.measured(run, lambda kind: 0.3 if kind.acting else 0.1, 0.01)


def test_diagnose_prints_its_advice() -> None:
    run = plan("algorithms=[]")
    assert "algorithms.stranger is on: True" in diagnose(run, measured(run)).advice


def test_it_acts_at_its_steps_and_on_its_images() -> None:
    run = plan("algorithms=[]")
    engine, model = Engine(Context(run, 10)), nn.Linear(1, 1)
    nn.init.zeros_(model.weight)
    sizes = []
    for step in range(run.total_steps):
        moment = Moment(0, 0, step, run.total_steps)
        batch = Batch(torch.zeros(1, 3, 64, 64), torch.zeros(1), np.arange(1), moment)
        sizes.append(engine.change_batch(batch, model, lambda x, y: x, lambda images: images).images.shape[2])
        engine.after_step(model, moment, torch.tensor(True))
    assert model.weight.item() == 10
    assert sizes == [run.image_size(step) for step in range(run.total_steps)]


def test_its_surgery_is_part_of_exports_and_predictions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = plan("algorithms=[blurpool]", "precision=fp32")
    monkeypatch.setattr("launcher.weights.card.validate", lambda values: run.config)
    config, classes = run.config, run.config.dataset.classes
    assert classes
    untouched = build_model(config.model, classes, config.loss, config.seed)
    Engine(Context(run, classes)).change_model(untouched)
    state = {"weights": untouched.state_dict(), "step": 40, "config": {}}
    network, surgeries = trained_network(run, state)
    assert list(surgeries) == ["blurpool", "stranger"]
    write_export(state["weights"], tmp_path, model_card(run, state, surgeries, None), surgeries)
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "image.png")
    classifier = classifier_of_export(tmp_path, "cpu")
    ((likeliest,),) = [prediction.classes for prediction in predictions(classifier, [str(tmp_path / "image.png")], 1)]
    assert "launcher" not in (tmp_path / "model.py").read_text()
    elsewhere = runpy.run_path(str(tmp_path / "model.py"))["load"]()
    images = classifier.normalize(torch.from_numpy(pixels).permute(2, 0, 1)[None])
    with torch.inference_mode():
        expected = network.eval()(images)
        for rebuilt in (classifier.network, elsewhere):
            torch.testing.assert_close(rebuilt(images), expected)
    assert likeliest[1] == pytest.approx(expected.softmax(1).max().item(), rel=1e-3)
