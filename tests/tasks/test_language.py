"""A language model of text in files: trained, evaluated, resumed, rehearsed and captured, alone and on two ranks."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from launcher.config.compose import compose
from launcher.config.groups import options
from launcher.config.schema import RunConfig
from launcher.data.batch import Batch
from launcher.errors import UserError
from launcher.launch.model_check import check_model
from launcher.plan.checks import check
from launcher.plan.plan import plan_for
from launcher.rank.group import Ranks
from launcher.records.metrics import read_metrics
from launcher.records.run_folder import RunFolder
from launcher.training import compiled
from launcher.training.captured import CapturedSteps
from launcher.training.rehearsal import rehearse
from launcher.training.trainer import Trainer, build_trainer
from tests.graphs import StandIn
from tests.language import RUN, text_in
from tests.trainers import EARLY, alone, assert_resumes, assert_same_state, steps, train_all
from tests.two_ranks import on_ranks, on_two_ranks

# Those that mean something for tokens; each is refused for a reason otherwise.
MEANT = {
    *("alibi", "sequence_length_warmup", "ema", "swa", "gradient_clipping", "label_smoothing", "layer_freezing", "sam"),
    "stochastic_depth",
}


def config_of(folder: Path, *words: str) -> RunConfig:
    sizes = ["dataset.classes=257", f"dataset.path={folder}", f"dataloader.folder={folder}/tokens"]
    return compose([*RUN, *sizes, *words]).config


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return text_in(tmp_path_factory.mktemp("text"))


def test_a_language_model_learns_by_the_loop_and_is_evaluated_by_the_formulas(text: Path, tmp_path: Path) -> None:
    run = alone(config_of(text, "epochs=6"))
    before = run.evaluate(lambda: False)
    assert before
    train_all(run, RunFolder(tmp_path))
    after = run.evaluate(lambda: False)
    assert after
    assert after.metrics["perplexity"] < 0.2 * before.metrics["perplexity"]
    places = torch.arange(11) * (len((text / "val.txt").read_bytes()) // 16) // 11 * 16
    whole = torch.tensor([*(text / "val.txt").read_bytes(), 256])
    nats = 0.0
    model = run.train_step.model.eval()
    for place in places.tolist():
        logits = model(whole[None, place : place + 16])[0].double()
        nats += F.cross_entropy(logits, whole[place + 1 : place + 17], reduction="sum").item()
    assert after.metrics["perplexity"] == pytest.approx(math.exp(nats / 176), rel=1e-5)
    assert after.metrics["bits_per_byte"] == pytest.approx(nats / math.log(2) / 176, rel=1e-5)
    rows = [row for row in read_metrics(tmp_path / "metrics.jsonl") if row["kind"] == "train"]
    assert [row["view"] for row in rows] == [16] * 36


@pytest.mark.parametrize("name", sorted(MEANT))
def test_each_algorithm_that_is_meant_resumes_to_the_same_bits(name: str, text: Path, tmp_path: Path) -> None:
    words = [f"algorithms=[{name}]", *EARLY.get(name, [])]
    words += ["algorithms.sequence_length_warmup.duration=0.9"] * (name == "sequence_length_warmup")
    config = config_of(text, *words)
    check_model(plan_for(config, 1), {})
    assert_resumes(lambda: alone(config), tmp_path / "step-00000003.pt")


@pytest.mark.parametrize("name", sorted({*options("algorithms")} - MEANT))
def test_the_other_algorithms_are_refused_with_a_reason(name: str, text: Path) -> None:
    plan = plan_for(config_of(text, f"algorithms=[{name}]", *EARLY.get(name, [])), 1)

    def checked() -> None:
        check(plan, {})
        check_model(plan, {})

    with pytest.raises(UserError, match=r"has no meaning with task=language|gpt has no|need.* pretrained weights"):
        checked()


def test_models_loaders_and_values_of_images_are_refused(text: Path) -> None:
    counts = ["task=language", "dataset=text", "dataloader=tokens", "model=gpt", "dataset.classes=257"]
    counts += ["dataset.train_samples=48", "dataset.val_samples=11", "batch_size=8"]
    for word, problem in {
        "model=resnet18": "model=resnet18: is for label, but task=language needs tokens; set gpt",
        "dataloader=torchvision": "dataloader=torchvision: is for label, but task=language needs tokens; set tokens",
        "dataset.sampling=balanced": "dataset.sampling=balanced: has no meaning for text",
    }.items():
        with pytest.raises(UserError, match=problem):
            check(plan_for(compose([*counts, word]).config, 1), {})
    with pytest.raises(UserError, match=r"gpt does not accept .17 tokens are more than its context of 16"):
        check_model(plan_for(config_of(text, "task.length=17"), 1), {})


def reference_lengths(total: int, duration: float, least: int, most: int, step_size: int) -> list[int]:
    """As Composer's `_curriculum`: one batch after the other."""
    warmup = int(total * duration)
    update_every = warmup // ((most - least) // step_size)
    lengths = []
    for batch in range(total):
        current = step_size * (batch // update_every)
        lengths.append(min(max(current, least), most))
    return lengths


@pytest.mark.parametrize(
    ("epochs", "duration", "initial", "increment"), [(40, 0.3, 2, 2), (9, 0.7, 3, 1), (2, 1.0, 8, 8)]
)
def test_warmup_lengths_are_the_references_at_all_steps(
    epochs: int, duration: float, initial: int, increment: int, text: Path
) -> None:
    name = "algorithms.sequence_length_warmup"
    values = [f"{name}.duration={duration}", f"{name}.initial={initial}", f"{name}.increment={increment}"]
    plan = plan_for(config_of(text, "algorithms=[sequence_length_warmup]", *values, f"epochs={epochs}"), 1)
    check(plan, {})
    expected = reference_lengths(plan.total_steps, duration, initial, 16, increment)
    assert [plan.view(step) for step in range(plan.total_steps)] == expected


def test_a_warmup_with_more_lengths_than_steps_is_refused(text: Path) -> None:
    words = ["algorithms=[sequence_length_warmup]", "algorithms.sequence_length_warmup.increment=1"]
    with pytest.raises(
        UserError, match=r"increment=1: has 8 lengths, more than the 3 steps of the warmup; set 3 or more"
    ):
        check(plan_for(config_of(text, *words), 1), {})


def test_alibi_cuts_batches_and_warmup_cuts_the_parts(text: Path) -> None:
    both = ["algorithms=[alibi,sequence_length_warmup]", "algorithms.alibi.length_scaling=0.5"]
    run = alone(
        config_of(
            text, *both, "algorithms.sequence_length_warmup.initial=2", "algorithms.sequence_length_warmup.increment=7"
        )
    )
    inputs, labels, indices = next(iter(run.rest_of_epoch()))
    first, last = (run.train_step.prepare(Batch(inputs, labels, indices, run.moment(step))) for step in (0, 11))
    assert last.inputs.tolist() == inputs.reshape(16, 8).tolist()
    assert last.targets.tolist() == labels.reshape(16, 8).tolist()
    assert first.inputs.tolist() == inputs.reshape(16, 8)[:, :2].tolist()
    assert [run.plan.view(step) for step in (0, 11)] == [2, 8]
    assert run.plan.evaluation_size == (16,)
    with pytest.raises(UserError, match="must cut 16 tokens into equal parts"):
        check(plan_for(config_of(text, *both[:1], "algorithms.alibi.length_scaling=0.3"), 1), {})


def test_label_smoothing_is_torchs(text: Path) -> None:
    run = alone(config_of(text, "algorithms=[label_smoothing]", "algorithms.label_smoothing.smoothing=0.2"))
    outputs, targets = torch.randn(3, 5, 257), torch.randint(257, (3, 5))
    expected = F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), label_smoothing=0.2)
    torch.testing.assert_close(run.train_step.objective.loss(outputs, targets), expected)


def test_steps_are_rehearsed_and_captured_by_length(text: Path) -> None:
    name = "algorithms.sequence_length_warmup"
    words = [f"algorithms=[stochastic_depth,{name[11:]}]", f"{name}.duration=0.5", f"{name}.initial=4"]
    words += [f"{name}.increment=6", "algorithms.stochastic_depth.drop_rate=0.5"]
    plain, run = (alone(config_of(text, *words, "model.dropout=0", "epochs=6")) for _ in range(2))
    lengths = {run.plan.view(step) for step in range(36)}
    assert len(lengths) == 4
    assert rehearse(run) == 4
    device = StandIn()
    run.train_step.captured = CapturedSteps(device, "on")  # type: ignore[arg-type]
    assert steps(run, 36) == steps(plain, 36)
    assert_same_state(run, plain)
    # note: of batch preparation and of the step
    assert device.captures == 2 * 4


def ranks_of(rank: int, count: int) -> Any:
    return Ranks(rank, count, rank, count, torch.device("cpu"))


def compare_ranks(rank: int, text: Path, folder: Path) -> None:
    run = build_trainer(config_of(text, "model.dropout=0"), ranks_of(rank, 2))
    losses = steps(run, 6)
    torch.save([losses, run.weights(), run.evaluate(lambda: False)], folder / f"{rank}.pt")


def test_two_ranks_learn_and_evaluate_the_same_as_one(text: Path, tmp_path: Path) -> None:
    one: Trainer = alone(config_of(text, "model.dropout=0"))
    on_two_ranks(compare_ranks, text, tmp_path)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in range(2))
    steps(one, 6)
    for name, weight in one.weights().items():
        torch.testing.assert_close(first[1][name], weight)
        assert torch.equal(first[1][name], second[1][name])
    assert first[2] == second[2]
    alone_too = one.evaluate(lambda: False)
    assert alone_too
    assert (first[2].samples, alone_too.samples) == (11, 11)
    assert first[2].metrics == pytest.approx(alone_too.metrics, rel=1e-5)


def evaluate_at_first(rank: int, text: Path, folder: Path) -> None:
    run = build_trainer(config_of(text), ranks_of(rank, 3))
    torch.save(run.evaluate(lambda: False), folder / f"{rank}.pt")


def test_three_ranks_evaluate_the_last_partial_batch_as_one(text: Path, tmp_path: Path) -> None:
    """11 sequences are batches of 6 and 5, and two sequences at most on each of three ranks."""
    on_ranks(3, evaluate_at_first, text, tmp_path)
    one, two, three = (torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in range(3))
    assert one == two == three
    expected = alone(config_of(text)).evaluate(lambda: False)
    assert expected
    assert (one.samples, one.metrics) == (11, pytest.approx(expected.metrics, rel=1e-6))


@pytest.mark.slow
@pytest.mark.parametrize("alibi", [[], ["alibi", "stochastic_depth"]])
def test_steps_of_all_lengths_are_compiled_before_the_first(alibi: list[str], text: Path, traced: None) -> None:
    name = "algorithms.sequence_length_warmup"
    words = [f"algorithms=[{','.join([*alibi, name[11:]])}]", f"{name}.duration=0.8", f"{name}.initial=2"]
    words += [f"{name}.increment=2", "algorithms.alibi.length_scaling=0.5"][: 1 + len(alibi)]
    words += ["model.dropout=0", "epochs=6", "precision=fp32"]
    plain, run = (alone(config_of(text, *words, f"compile={switch}")) for switch in ("off", "on"))
    start = compiled.graphs()
    compiled.compile_run(run)
    count, lengths = compiled.graphs(), {run.plan.view(step) for step in range(36)}
    # note: one that cuts batches to each length, and three or four for passes of all, as torch finds what varies
    assert 3 <= count - start - len(lengths) <= 4
    assert len(lengths) == (4 if alibi else 8)
    assert_same_state(run, plain)
    assert steps(run, 36) == pytest.approx(steps(plain, 36), rel=1e-4)
    assert compiled.graphs() == count
