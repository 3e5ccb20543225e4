"""Compiled training compared with uncompiled training of a network of two residual blocks.

The backend `eager` traces like Inductor, `aot_eager` also differentiates, and neither generates code.
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torchvision.models.resnet import BasicBlock

from launcher.algorithms.base import Transform
from launcher.algorithms.engine import Changes
from launcher.algorithms.mixup import MixUp
from launcher.config.compose import compose
from launcher.data.batch import Batch, Moment
from launcher.errors import UserError
from launcher.models.build import build_model
from launcher.rank.group import Ranks
from launcher.training import checkpoint, compiled, trainer
from launcher.training.trainer import Trainer, build_trainer
from tests.covering import covering
from tests.networks import tiny
from tests.trainers import EARLY, RECIPES, SIZE_FOR_BF16, SMALL, TASKS, VIT, alone, assert_same_state, build, steps
from tests.two_ranks import on_ranks, on_two_ranks

pytestmark = pytest.mark.slow

# note: the warmup evaluates a whole batch, thousands of images in some recipes
WORDS = ["schedule.warmup=0ba", "precision=fp32", "eval_batch_size=16"]
# note: Dynamo takes seconds a recipe; the rest after a change of compiled.py, of algorithms/ or of torch's version
TRACED = [name for name in RECIPES if name in covering() or os.environ.get("TRAIN_TEST_GRAPHS") == "all"]
# Every kind of pass: frozen statistics, micro-batches, dropped branches, many image sizes.
ALL = [
    *("recipe=hot", "dataset.native_size=32", "algorithms.progressive_resizing.size_multiple=1"),
    *("algorithms.sam.interval=2", "device_batch_size=4", "algorithms.stochastic_depth=on"),
    *WORDS,
]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(trainer, "build_model", tiny)
    monkeypatch.setattr(compiled, "BACKEND", "eager")
    torch._dynamo.reset()
    yield
    # note: otherwise its code stays to the end of the process, which then prints statistics
    torch._dynamo.reset()


def one_block(*_: object, num_classes: int = 10, **__: object) -> nn.Module:
    """Return the first stage of the tiny network, half of it to trace."""
    network = tiny()
    network.layer2, network.fc = nn.Identity(), nn.Linear(16, num_classes)
    return network


def one_convolution(*_: object, num_classes: int = 10, **__: object) -> nn.Module:
    """Return the layers before the stages, since Inductor compiles a program for each kernel."""
    network = one_block()
    network.layer1, network.fc = nn.Identity(), nn.Linear(64, num_classes)
    return network


def linear(*_: object, num_classes: int = 10, **__: object) -> nn.Module:
    """Return a layer of the mean color, of which Inductor compiles the fewest kernels."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, num_classes))


def compiled_trainer(*words: str) -> Trainer:
    run = build(*words, "compile=on")
    compiled.compile_run(run)
    return run


def test_all_graphs_are_compiled_before_the_first_step_for_all_sizes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compiled, "BACKEND", "aot_eager")
    plain = build(*ALL)
    start = compiled.graphs()
    run = compiled_trainer(*ALL)
    count = compiled.graphs()
    sizes = {run.plan.view(step) for step in range(run.plan.total_steps)}
    # note: three for passes, and three for preparing batches: one for the first size and two for all others
    assert count - start == 3 + 3 < len(sizes)
    assert f"compiled {count - start} graphs in" in capsys.readouterr().out
    assert_same_state(run, plain)
    assert steps(run, run.plan.total_steps) == pytest.approx(steps(plain, plain.plan.total_steps), rel=1e-4)
    ours, theirs = (one.evaluate(should_stop=lambda: False) for one in (run, plain))
    assert ours
    assert theirs
    assert ours.loss == pytest.approx(theirs.loss, rel=1e-3)
    assert compiled.graphs() == count


@pytest.mark.parametrize("name", TASKS)
def test_mixed_rows_of_targets_have_the_graphs_of_others(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """MixUp and CutMix each change some of the batches."""
    monkeypatch.setattr(compiled, "BACKEND", "aot_eager")
    monkeypatch.setattr(trainer, "build_model", build_model)
    words = [*TASKS[name], *WORDS, "algorithms.mixup.probability=0.5", "algorithms.label_smoothing=off"]
    run, plain = compiled_trainer(*words), build(*words)
    count = compiled.graphs()
    assert steps(run, 8) == pytest.approx(steps(plain, 8), rel=1e-4)
    assert compiled.graphs() == count


def test_compiled_bf16_equals_uncompiled_bf16_up_to_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "BACKEND", "aot_eager")
    words = [*WORDS, "precision=bf16", SIZE_FOR_BF16]
    assert steps(compiled_trainer(*words), 3) == pytest.approx(steps(build(*words), 3), rel=2**-8)


def test_a_failed_compilation_prints_its_reason_once_and_trains_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    freezing = ["algorithms=[layer_freezing]", *EARLY["layer_freezing"], *WORDS]
    assert steps(compiled_trainer(*freezing), 2) == steps(build(*freezing), 2)
    reason = "layer_freezing changes which parameters learn at many steps"
    line = f"compile=on: compilation failed ({reason}); training uncompiled"
    assert capsys.readouterr().out.splitlines() == [line]
    with pytest.raises(UserError, match=r"^compile=require: compilation failed \(layer_freezing changes"):
        compiled.compile_run(build(*freezing, "compile=require"))
    breaking = BasicBlock.forward
    monkeypatch.setattr(
        BasicBlock, "forward", lambda block, images: [torch._dynamo.graph_break(), breaking(block, images)][1]
    )
    assert steps(compiled_trainer(*WORDS), 2) == steps(build(*WORDS), 2)
    assert capsys.readouterr().out.startswith("compile=on: compilation failed (Call to `torch._dynamo.graph_break()`")


def test_more_graphs_than_sizes_and_kinds_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_KINDS", 2)
    run = compiled_trainer("algorithms=[]", *WORDS)

    def one_size_after_the_other() -> None:
        for batch in range(2, 5):
            run.train_step.objective(torch.zeros(batch, 3, 32, 32), torch.zeros(batch, dtype=torch.long))

    with pytest.raises(torch._dynamo.exc.FailOnRecompileLimitHit):
        one_size_after_the_other()


@pytest.mark.parametrize(
    "words",
    [
        ["model=timm", "model.architecture=test_vit", "model.img_size=32"],
        ["model=timm", "model.architecture=test_convnext", "dataset.native_size=32"],
        VIT,
        [*VIT, "algorithms=[distillation]", *EARLY["distillation"], "device_batch_size=4"],
    ],
)
def test_other_models_compute_the_same_compiled(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trainer, "build_model", build_model)
    small = [*SMALL, *WORDS, "optimizer.lr=0.001", "algorithms=[ema]", *words]
    plain, run = (alone(compose([*small, f"compile={switch}"]).config) for switch in ("off", "on"))
    compiled.compile_run(run)
    assert capsys.readouterr().out.startswith("compiled ")
    assert steps(run, 2) == pytest.approx(steps(plain, 2), rel=1e-5)


def test_batches_of_other_sizes_and_transforms_are_prepared_uncompiled(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def doubled(batch: Batch) -> Batch:
        return replace(batch, inputs=batch.inputs * 2)

    def by_step(batch: Batch) -> Batch:
        return replace(batch, inputs=batch.inputs * batch.moment.step)

    twice, stepped = (Transform((), apply) for apply in (doubled, by_step))
    monkeypatch.setattr(MixUp, "change_batch", lambda *_: twice)
    run = compiled_trainer("algorithms=[mixup]", *WORDS)
    prepare, start = run.train_step.preparation.change, compiled.graphs()
    moment = Moment(0, 0, 5, 9)
    for chain, size, value in (([twice], 4, 2), ([twice], 5, 2), ([twice, twice], 4, 4), ([stepped], 4, 5)):
        batch = Batch(torch.ones(2, 3, size, size), torch.zeros(2, dtype=torch.long), np.arange(2), moment)
        assert prepare(Changes(chain, torch.empty(0), None), batch).inputs.eq(value).all()
    assert compiled.graphs() == start
    capsys.readouterr()
    broken = Transform((), lambda batch: [torch._dynamo.graph_break(), batch][1])
    monkeypatch.setattr(MixUp, "change_batch", lambda *_: broken)
    compiled_trainer("algorithms=[mixup]", *WORDS)
    assert capsys.readouterr().out.startswith("compile=on: compilation failed (")


def train_on_two_ranks(rank: int) -> None:
    trainer.build_model = tiny
    ranks, words = Ranks(rank, 2, rank, 2, torch.device("cpu")), ["algorithms=[ema]", *WORDS, *SMALL]
    plain = build_trainer(compose(words).config, ranks)
    config = compose([*words, "compile=on"]).config
    losses = steps(plain, 3)
    for backend, compiles in (("eager", True), ("eager" if rank else "none such", False)):
        compiled.BACKEND = backend
        run = build_trainer(config, ranks)
        compiled.compile_run(run)
        assert (run.train_step.objective._compiled_call_impl is not None) == compiles
        count = compiled.graphs()
        assert steps(run, 3) == pytest.approx(losses, rel=1e-4)
        assert compiled.graphs() == count
        ours, theirs = (list(one.train_step.model.parameters()) for one in (run, plain))
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)


def compile_on_a_node(rank: int, count: int, folder: str) -> None:
    torch.set_num_threads(1)
    trainer.build_model, os.environ["TORCHINDUCTOR_CACHE_DIR"] = linear, folder
    words = ["algorithms=[mixup]", *WORDS, *SMALL, "batch_size=12", "compile=require"]
    run = build_trainer(compose(words).config, Ranks(rank, count, rank, count, torch.device("cpu")))
    with torch._inductor.config.patch({"cpp.vec_isa_ok": True, "cpp.simdlen": 1}):
        compiled.compile_run(run)
    inductor = torch._dynamo.utils.counters["inductor"]
    assert (inductor["fxgraph_cache_miss"] > 0, inductor["fxgraph_cache_hit"] > 0) == (rank == 0, rank > 0)


@pytest.mark.system
def test_one_rank_of_a_node_compiles_and_the_others_read_its_cache(tmp_path: Path) -> None:
    on_ranks(3, compile_on_a_node, 3, str(tmp_path))


def test_ranks_compile_within_ddp_and_all_train_uncompiled_if_one_fails() -> None:
    on_two_ranks(train_on_two_ranks)


@pytest.mark.system
@pytest.mark.parametrize("name", TRACED)
def test_every_recipe_computes_the_same_compiled(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trainer, "build_model", one_block)
    # note: Dynamo cannot trace the generator of random erasing's noise
    words = [f"recipe={name}", *WORDS, *["algorithms.random_erasing.fill=zero"] * name.startswith("efficienttrain")]
    run = compiled_trainer(*words)
    count = compiled.graphs()
    assert steps(run, 3) == pytest.approx(steps(build(*words), 3), rel=1e-4)
    assert compiled.graphs() == count
    assert capsys.readouterr().out.startswith("compiled ")


@pytest.mark.system
# note: otherwise it compiles larger programs, and one for each instruction set of the processor
@torch._inductor.config.patch({"cpp.vec_isa_ok": True, "cpp.simdlen": 1})
def test_inductor_computes_the_same_and_resumes_to_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compiled, "BACKEND", "inductor")
    monkeypatch.setattr(trainer, "build_model", one_convolution)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    words = ["recipe=mild", "algorithms.ema.update_interval=2ba", *WORDS]
    plain, whole = build(*words), compiled_trainer(*words)
    before = steps(whole, 5)
    checkpoint.save(whole.state_dict(), tmp_path / "step-00000005.pt")
    after = steps(whole, 4)
    assert before + after == pytest.approx(steps(plain, 9), rel=1e-3)
    assert "from the cache" not in capsys.readouterr().out
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    again = build(*words, "compile=on")
    again.load_state_dict(checkpoint.load(tmp_path / "step-00000005.pt"))
    compiled.compile_run(again)
    assert "from the cache" in capsys.readouterr().out
    assert steps(again, 4) == after
    assert_same_state(again, whole)
