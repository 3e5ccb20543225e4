"""Schedule-Free AdamW compared with the three sequences of its paper, and in evaluations and checkpoints."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from launcher.config.compose import compose
from launcher.errors import UserError
from launcher.optimizers.base import build_optimizer, set_lr
from launcher.plan.checks import check, notes
from launcher.plan.plan import Plan
from launcher.training import checkpoint
from tests.formulas import PEAK, assert_follows, packaged, set_gradients, small_model
from tests.trainers import build, steps


class Sequences:
    """Computes x, y and z of Defazio et al. 2024, with q = k^r * (highest lr)^p as in the authors' library.

    `submitted`: as in their submission to AlgoPerf, with the bias correction of the learning rate.
    """

    def __init__(self, r: float, p: float, decay: float, *, submitted: bool = False):
        self.r, self.p, self.decay, self.submitted = r, p, decay, submitted
        self.averages: list[Tensor] = []

    def __call__(self, weight: Tensor, gradient: Tensor, lr: float, step: int, state: dict[str, Any]) -> Tensor:
        x, z = state.get("x", weight), state.get("z", weight)
        y = 0.8 * x + 0.2 * z
        torch.testing.assert_close(y, weight, rtol=1e-9, atol=1e-9)
        state["v"] = 0.95 * state.get("v", 0.0) + 0.05 * gradient**2
        decay = self.decay if weight.ndim > 1 else 0.0
        if self.submitted:
            rate = lr * math.sqrt(1 - 0.95**step)
            z = z - rate * gradient / (state["v"].sqrt() + 1e-3) - rate * decay * y
        else:
            z = z - lr * (gradient / ((state["v"] / (1 - 0.95**step)).sqrt() + 1e-3) + decay * y)
        state["highest"] = max(state.get("highest", 0.0), lr)
        q = step**self.r * state["highest"] ** self.p
        state["sum"] = state.get("sum", 0.0) + q
        x = (1 - q / state["sum"]) * x + q / state["sum"] * z
        state["x"], state["z"] = x, z
        self.averages.append(x)
        return 0.8 * x + 0.2 * z


# note: the highest learning rate matters while it rises
@pytest.mark.parametrize(("r", "p"), [(0.0, 2.0), (0.5, 0.0), (1.0, 1.5)])
def test_schedule_free_follows_its_formula(r: float, p: float) -> None:
    values = {"beta1": 0.8, "beta2": 0.95, "epsilon": 1e-3, "weight_decay": 0.3, "step_power": r, "lr_power": p}
    assert_follows(packaged("schedule_free_adamw", **values), Sequences(r, p, 0.3), rates=[0.02, 0.05, 0.1, 0.08, 0.04])


def test_the_submission_to_algoperf_also_corrects_the_rate_of_the_decay() -> None:
    values = {"beta1": 0.8, "beta2": 0.95, "epsilon": 1e-3, "weight_decay": 0.3}
    submitted = packaged("schedule_free_adamw", bias_correction="learning_rate", **values)
    assert_follows(submitted, Sequences(0.0, 2.0, 0.3, submitted=True))
    with pytest.raises(AssertionError, match="not close"):
        assert_follows(submitted, Sequences(0.0, 2.0, 0.3))
    assert compose(["recipe=algoperf_schedule_free"]).config.optimizer.bias_correction == "learning_rate"


def test_the_average_is_evaluated_and_training_continues_unchanged() -> None:
    config = packaged("schedule_free_adamw", beta1=0.8, beta2=0.95, epsilon=1e-3, weight_decay=0.3)
    model, expected = small_model(), Sequences(0.0, 2.0, 0.3)
    built = build_optimizer(config, model, PEAK)
    fresh = built.evaluation_weights(model)
    assert all(map(torch.equal, fresh.values(), model.state_dict().values()))
    states: list[dict[str, Any]] = [{} for _ in model.parameters()]
    weights = [p.detach().double() for p in model.parameters()]
    for step in range(1, 5):
        set_gradients(model, step)
        built.step()
        triples = zip(weights, model.parameters(), states, strict=True)
        weights = [expected(w, p.grad.double(), PEAK, step, state) for w, p, state in triples]
    averages = built.evaluation_weights(model)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    inside: dict[str, Tensor] = {}
    built.before_gradients(lambda: inside.update({name: t.clone() for name, t in model.state_dict().items()}))
    for (name, _), state in zip(model.named_parameters(), states, strict=True):
        torch.testing.assert_close(averages[name].double(), state["x"], rtol=1e-5, atol=1e-6)
        assert torch.equal(inside[name], averages[name])
        assert not torch.equal(before[name], averages[name])
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


SCHEDULE_FREE = ["algorithms=[]", "optimizer=schedule_free_adamw", "schedule=constant"]


def test_a_checkpoint_contains_the_average_and_the_evaluation_uses_it(tmp_path: Path) -> None:
    run = build(*SCHEDULE_FREE)
    steps(run, 4)
    checkpoint.save(run.state_dict(), tmp_path / "step.pt")
    state = checkpoint.load(tmp_path / "step.pt")
    assert any(not torch.equal(state["weights"][name], tensor) for name, tensor in state["model"].items())
    run.evaluate(lambda: False)
    evaluated = run.evaluation_model.state_dict()
    assert all(torch.equal(evaluated[name], tensor) for name, tensor in state["weights"].items())


def test_every_second_step_updates_the_statistics_of_the_averaged_weights() -> None:
    run = build(*SCHEDULE_FREE, "optimizer.statistics_interval=2")
    norm = next(m for m in run.train_step.model.modules() if isinstance(m, nn.BatchNorm2d))
    weights, updates = [], [int(norm.num_batches_tracked)]

    def observe(module: nn.Module, inputs: Any) -> None:
        if module.track_running_stats:
            weights.append([p.detach().clone() for p in run.train_step.model.parameters()])

    norm.register_forward_pre_hook(observe)
    averages = []
    for _ in range(4):
        averages.append([run.weights()[name].clone() for name, _ in run.train_step.model.named_parameters()])
        steps(run, 1)
        updates.append(int(norm.num_batches_tracked))
    assert updates == [0, 1, 1, 2, 2]
    for tensors, expected in zip(weights, (averages[0], averages[2]), strict=True):
        assert all(map(torch.equal, tensors, expected))


@pytest.mark.parametrize("name", ["ema", "swa"])
def test_a_second_average_is_refused(name: str) -> None:
    config = compose(["optimizer=schedule_free_adamw", f"algorithms=[{name}]", "batch_size=8"]).config
    with pytest.raises(UserError, match=rf"algorithms.{name}.* both replace the weights to evaluate and save; use one"):
        check(Plan(config, 1, 320), {})


def test_a_falling_schedule_with_averaged_weights_gets_a_note() -> None:
    def notes_on(*words: str) -> list[str]:
        config = compose(["optimizer=schedule_free_adamw", "batch_size=16", *words]).config
        return [line for line in notes(Plan(config, 1, 320)) if "schedule" in line]

    assert "schedule=cosine" in notes_on("schedule=cosine")[0]
    assert not notes_on("schedule=constant")


def test_a_rate_of_zero_changes_nothing() -> None:
    model = small_model()
    before = [p.detach().clone() for p in model.parameters()]
    built = build_optimizer(packaged("schedule_free_adamw"), model, PEAK)
    set_gradients(model, 0)
    set_lr(built, 0.0)
    built.step()
    assert all(map(torch.equal, before, model.parameters()))
    assert all(math.isfinite(float(value.sum())) for value in built.evaluation_weights(model).values())
