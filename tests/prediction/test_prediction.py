"""Predicted steps against sums by hand, and a traced step against the formulas of its network."""

from functools import cache

import pytest
import torch
import torchvision
from torch.utils.flop_counter import FlopCounterMode

from launcher.config.compose import compose
from launcher.config.gpus import Gpu, efficiencies, gpus
from launcher.config.groups import machines
from launcher.config.schema import RunConfig
from launcher.plan.counted import CountedStep, Work, computed
from launcher.plan.plan import Plan, plan_for
from launcher.prediction import step_trace
from launcher.prediction.machines import decoding_threads, loading_rate, thread_rate
from launcher.prediction.prediction import Predictor, counted_steps
from launcher.prediction.rates import Parts, Rates
from launcher.prediction.step_trace import _peak
from launcher.prediction.trace import Call
from tests.counted_steps import made_up

# 1 GB/s of memory, 1 TFLOP/s that products reach, 1 GB/s to each other
GPU = Gpu(memory=1, bandwidth=1, matrix_rate=2, product_rate=1, vector_rate=0.5, link=1, source="")
PRODUCTS = {"convolution": 0.5, "depthwise": 0.1, "matrix": 0.8, "unaligned": 0.25, "group_width": 16}
MEMORY = {
    "memory": {"other": 0.5, "pool": 0.25},
    "bf16": {"pool": 0.064, "batch norm": 1.0},
}  # bytes of 1.95e9 cycles: 0.125 GB/s
STACK = {"products": PRODUCTS, **MEMORY, "call": 1e-3, "kernel": 0.0, "ranks": 0.5}
VALUES = {"stacks": {"eager": STACK, "compiled": STACK}, "captured_call": 0.0, "overlap": 1.0,
          "nodes": {"doubling": 1.0, "network": 1.0}, "row": {"eigenvectors": 2e-3, "qr": 1e-3}}  # fmt: skip
PRODUCT, MOVE = Work("convolution", 10**6, 10**10, 1), Work("other", 10**7, 0, 3)
TINY = ("recipe=mild", "dataset=shapes", "model=resnet18", "algorithms=[channels_last]", "batch_size=4", "epochs=2",
        "schedule.warmup=1ep")  # fmt: skip


def parts(
    *works: Work, gpus: int = 1, channels_last: bool = True, captured: bool = False, precision: str = "fp16",
    gpu: Gpu = GPU,
) -> Parts:  # fmt: skip
    step = CountedStep(64, (), list(works), list(works), 10**7, 0)
    return Rates(gpu, gpus, VALUES).parts(step, launched(channels_last, captured, precision))


@cache
def launched(channels_last: bool, captured: bool, precision: str) -> RunConfig:
    names = "[channels_last]" if channels_last else "[]"
    graphs = f"cuda_graphs={'on' if captured else 'off'}"
    return compose([f"algorithms={names}", graphs, f"precision={precision}"]).config


def test_kernels_have_their_own_efficiency_in_bf16() -> None:
    pool = Work("pool", 10**6, 0, 1)
    without = Gpu(memory=1, bandwidth=1, matrix_rate=2, product_rate=1, vector_rate=0.5, link=1, source="", bf16=False)
    assert parts(pool).memory == pytest.approx(10**6 / 0.25e9)
    assert parts(pool, precision="bf16").memory == pytest.approx(10**6 / 0.125e9)
    assert parts(pool, precision="auto").memory == parts(pool, precision="bf16").memory
    assert parts(pool, precision="auto", gpu=without).memory == parts(pool).memory
    assert parts(MOVE, precision="bf16").memory == parts(MOVE).memory
    norm = Work("batch norm", 10**6, 0, 1)
    assert parts(norm, precision="bf16").memory == parts(norm).memory, "the bandwidth is less"


def test_a_kernel_takes_its_operations_or_its_bytes_each_at_its_efficiency() -> None:
    step = parts(PRODUCT, MOVE)
    assert (step.arithmetic, step.memory) == (pytest.approx(0.020), pytest.approx(3 * 0.020))
    assert step.seconds == pytest.approx(0.080)
    assert step.bound(load=0.0) == "memory"
    assert step.bound(load=0.1) == "loader"
    assert parts(PRODUCT).bound(load=0.0) == "arithmetic"


def test_only_convolutions_copy_tensors_that_are_not_channels_last() -> None:
    assert parts(PRODUCT, channels_last=False).seconds == pytest.approx(0.020 + 2 * 0.002)
    assert parts(MOVE, channels_last=False).seconds == parts(MOVE).seconds


@pytest.mark.parametrize(
    ("work", "seconds"),
    [
        (Work("matrix", 0, 10**9, 1), 10**9 / 0.8e12),
        (Work("matrix", 0, 10**9, 1, aligned=False), 10**9 / 0.2e12),
        (Work("convolution", 0, 10**9, 1, group_width=4), 10**9 / 0.125e12),
        (Work("convolution", 0, 10**9, 1, group_width=32), 10**9 / 0.5e12),
        (Work("depthwise", 0, 10**9, 1, group_width=1), 10**9 / (0.1 * 0.5e12)),
        (Work("depthwise", 10**6, 10**8, 1, group_width=1, aligned=False), 3 * 10**6 / 0.5e9),
        (Work("matrix", 0, 10**9, 1, fill=0.5), 10**9 / 0.4e12),
        (Work("convolution", 10**6, 10**8, 1, aligned=False), 3 * 10**6 / 0.5e9),
        (Work("pool", 10**6, 0, 1), 10**6 / 0.25e9),
        (Work("batch norm", 10**6, 0, 1), 10**6 / 0.5e9),
    ],
    ids=lambda value: f"{value.kind} {value.group_width} {value.aligned}" if isinstance(value, Work) else "",
)
def test_each_kind_of_kernel_has_its_efficiency(work: Work, seconds: float) -> None:
    step = parts(work)
    assert step.arithmetic + step.memory == pytest.approx(seconds)


def test_ranks_share_eigenvectors_and_all_compute_qr() -> None:
    works = (Work("eigenvectors", 10**6, 100, 1), Work("qr", 10**6, 100, 1))
    assert [parts(*works, gpus=gpus).arithmetic for gpus in (1, 4)] == pytest.approx([0.3, 0.15])


def test_the_host_bounds_many_small_kernels_unless_they_are_captured() -> None:
    many = Work("other", 1000, 0, 100)
    assert parts(many).seconds == pytest.approx(0.1)
    assert parts(many).bound(load=0.0) == "launches"
    assert parts(many, captured=True).seconds == pytest.approx(100 * 2e-6)


def test_an_all_reduce_is_exposed_if_the_backward_pass_is_shorter() -> None:
    # note: two GPUs send the 10 MB of gradients once, in 10 ms, behind two thirds of the step
    assert parts(MOVE, gpus=2).all_reduce == pytest.approx(0.060)
    short = Work("other", 3 * 10**6 // 2, 0, 1)
    assert parts(short, gpus=2).all_reduce == pytest.approx(0.003 + 0.010 - 2 / 3 * 0.003)


def test_workers_beyond_the_cores_add_the_gain_of_their_loader() -> None:
    values = efficiencies()
    assert decoding_threads("torchvision", 64, 128, values) == 64
    assert decoding_threads("torchvision", 64, 96, values) == 48 + 0.25 * 16
    assert decoding_threads("ffcv", 96, 96, values) == 96
    assert decoding_threads("ffcv", 200, 96, values) == 96
    share, operation = values["loaders"]["share"], values["loaders"]["operation"]
    assert thread_rate("ffcv", 132**2, 0, values) == pytest.approx(1256 * share["ffcv"])
    assert thread_rate("torchvision", 132**2, 0, values) == pytest.approx(722 * share["torchvision"])
    longer = 1 / thread_rate("ffcv", 112**2, 2, values) - 1 / thread_rate("ffcv", 112**2, 0, values)
    assert longer == pytest.approx(2 * operation["seconds"] / 4), "a quarter of the area of 224 px"
    assert thread_rate("ffcv", 224**2, 0, values) < thread_rate("ffcv", 176**2, 0, values)


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.prediction.prediction.counted_steps", made_up)


EAGER = ("compile=off", "cuda_graphs=off")


def run(*words: str, gpus: int = 8) -> Plan:
    return plan_for(compose([*words, *EAGER, "dataset=imagenet"]).config, gpus)


@pytest.mark.usefixtures("by_hand")
def test_steps_are_added_up_over_the_schedule() -> None:
    plan, machine = run("recipe=mild", "epochs=36", "dataloader=synthetic"), machines()["p5_48xlarge"]
    once = Predictor(plan).on(machine, gpus()["H100 80GB"])
    moved = sum(1000 * 256 * plan.view(step) ** 2 for step in range(plan.total_steps))
    stack = efficiencies()["stacks"]["eager"]
    expected = moved / (stack["memory"]["other"] * 3350e9) / stack["ranks"]
    # note: the convolution here is compute-bound and takes longer than its bytes alone
    assert once.steps_seconds > expected
    assert sum(phase.steps for phase in once.phases) == plan.total_steps
    twice = Predictor(plan).on(machine, gpus()["H100 80GB"], correction=2.0)
    assert twice.steps_seconds == pytest.approx(2 * once.steps_seconds)


@pytest.mark.usefixtures("by_hand")
def test_the_range_is_the_error_of_figures_with_the_same_bottleneck() -> None:
    def width(*words: str) -> float:
        wall = Predictor(run("recipe=mild", *words)).on(machines()["p5_48xlarge"], gpus()["H100 80GB"]).estimate.wall
        assert wall.seconds / wall.low == pytest.approx(wall.high / wall.seconds)
        return wall.high / wall.seconds - 1

    spread = efficiencies()["spread"]
    assert width("dataloader=synthetic") == pytest.approx(spread["device"])
    assert width("dataloader.workers=1") == pytest.approx(spread["loader"])


@pytest.mark.usefixtures("by_hand")
def test_a_loader_that_is_slower_than_the_step_is_the_bottleneck() -> None:
    plan, machine = run("recipe=mild", "dataloader.workers=1"), machines()["p5_48xlarge"]
    prediction = Predictor(plan).on(machine, gpus()["H100 80GB"])
    assert {phase.bound for phase in prediction.phases} == {"loader"}
    rate = loading_rate(plan, machine, 176**2, efficiencies())
    assert rate == pytest.approx(8 * 697 * efficiencies()["loaders"]["share"]["torchvision"])
    assert prediction.steps_seconds == pytest.approx(plan.total_steps * 2048 / rate)
    assert loading_rate(run("recipe=mild", "dataloader.workers=0"), machine, 176**2, efficiencies()) == rate


@pytest.fixture(scope="module")
def traced() -> list[CountedStep]:
    return counted_steps(plan_for(compose(TINY).config, 1))


def test_a_traced_step_has_its_networks_products_and_gradients(traced: list[CountedStep]) -> None:
    (step,) = traced
    classes = compose(TINY).config.dataset.classes
    network = torchvision.models.resnet18(num_classes=classes)
    assert step.gradient_bytes == 4 * sum(parameter.numel() for parameter in network.parameters())

    with FlopCounterMode(display=False) as counter, torch.device("meta"):
        torchvision.models.resnet18(num_classes=classes)(torch.zeros(4, 3, step.view, step.view))
    convolutions = sum(work.operations * work.count for work in step.eager if work.kind == "convolution")
    assert {work.kind for work in step.eager if work.operations} == {"convolution", "matrix"}
    # note: the images want no gradient
    assert 2.8 < convolutions / counter.get_total_flops() < 3
    assert sum(w.moved * w.count for w in step.fused) < sum(w.moved * w.count for w in step.eager)
    assert step.peak_bytes > 3 * step.gradient_bytes  # weights, gradients, momentum, and what the backward pass wants


def test_a_vision_transformer_of_timm_has_the_products_of_its_formula() -> None:
    words = ("recipe=mild", "model=timm", "model.architecture=vit_tiny_patch16_224", "dataset=imagenet",
             "algorithms=[channels_last]", "batch_size=4", "image.train_size=224",
             "model.arguments.depth=3")  # fmt: skip
    step = counted_steps(plan_for(compose(words).config, 1))[0]
    tokens, width, depth, batch = 197, 192, 3, 4
    linear = 2 * depth * 12 * width**2 * tokens + 2 * width * 1000
    patches = 2 * (tokens - 1) * 768 * width
    attention = 2 * depth * 2 * tokens**2 * width
    # note: images need no gradient; attention computes its scores again in the backward pass
    expected = batch * (3 * linear + 2 * patches + (1 + 2.5) * attention)
    for works in (step.eager, step.fused):
        assert sum(work.operations * work.count for work in works) == pytest.approx(expected, rel=1e-3)
        assert {work.kind for work in works if work.operations} == {"matrix", "convolution"}


def test_layer_norm_is_in_float32_as_in_the_autocast_of_a_gpu() -> None:
    words = ["model=timm", "model.architecture=convnext_atto", "dataset=imagenet", "recipe=baseline",
             "dataloader=synthetic", "batch_size=4", "precision=bf16"]  # fmt: skip
    (step,) = counted_steps(plan_for(compose(words).config, 1))
    pixels, channels = 4 * 56 * 56, 40
    # note: those of the stem, two blocks and the next stage: all numbers in and out, weights, statistics of each pixel
    norm = 4 * (2 * pixels * channels + 2 * channels + 2 * pixels)
    assert sum(work.count for work in step.eager if work.kind == "other" and work.moved == norm) == 4


def test_depthwise_grouped_and_unaligned_convolutions_are_distinguished() -> None:
    words = ["model=timm", "dataset=imagenet", "recipe=baseline", "dataloader=synthetic", "batch_size=4"]

    def kinds(architecture: str) -> set[tuple[str, int, bool]]:
        (step,) = counted_steps(plan_for(compose([*words, f"model.architecture={architecture}"]).config, 1))
        return {
            (one.kind, one.group_width, one.aligned) for one in step.eager if one.kind in ("convolution", "depthwise")
        }

    stem, plain = ("convolution", 0, False), ("convolution", 0, True)
    assert kinds("resnext50_32x4d") >= {stem, plain, ("convolution", 4, True), ("convolution", 8, True)}
    assert {kind[:2] for kind in kinds("mobilenetv2_100")} == {("convolution", 0), ("depthwise", 1)}


@pytest.mark.usefixtures("by_hand")
def test_evaluation_takes_a_pass_for_each_view_and_its_mirror_image() -> None:
    def evaluation(flips: str, views: str = "centre") -> float:
        words = ("recipe=baseline", "dataloader=synthetic", f"image.eval_flip_average={flips}")
        words += ("image.eval_resize=256", f"image.eval_views={views}")
        times = Predictor(run(*words)).on(machines()["p5_48xlarge"], gpus()["H100 80GB"]).estimate
        assumed = efficiencies()["assumed"]
        return times.evaluation.seconds - (times.evaluations * assumed["epoch_start"] + assumed["first_batch"])

    assert evaluation("true") == pytest.approx(2 * evaluation("false"), rel=0.05)
    assert evaluation("true", "5crop") == pytest.approx(10 * evaluation("false"), rel=0.05)


@pytest.mark.usefixtures("by_hand")
def test_the_first_step_of_a_size_takes_longer_where_cudnn_tunes() -> None:
    def training(*words: str) -> float:
        plan = run("recipe=baseline", "dataloader=synthetic", *words)
        return Predictor(plan).on(machines()["p5_48xlarge"], gpus()["H100 80GB"]).estimate.training.seconds

    assert training() - training("deterministic=true") == pytest.approx(efficiencies()["assumed"]["tuning"])


def test_image_sizes_that_a_cpu_cannot_compute_in_bf16_are_traced() -> None:
    words = [word.replace("mild", "baseline") for word in TINY] + ["image.train_size=16", "precision=bf16"]
    (step,) = counted_steps(plan_for(compose(words).config, 1))
    (whole,) = counted_steps(plan_for(compose([*words, "precision=fp32"]).config, 1))
    assert step.view == whole.view <= 16
    # note: weights are cast in each step, and there are few images: more calls
    assert sum(work.count for work in step.eager) > sum(work.count for work in whole.eager)


def test_a_trace_is_cached_by_what_the_step_computes(
    traced: list[CountedStep], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_trace, "trace_steps", lambda *_: pytest.fail("traced again"))
    assert counted_steps(plan_for(compose([*TINY, "seed=3", "epochs=4"]).config, 1)) == traced
    steps = computed(plan_for(compose(TINY).config, 1))
    assert computed(plan_for(compose([*TINY, "batch_size=8"]).config, 1)) != steps
    assert computed(plan_for(compose([*TINY, "optimizer=lamb"]).config, 1)) != steps


def test_a_storage_is_held_from_its_first_write_to_its_last_use() -> None:
    def call(reads: dict[int, int], writes: dict[int, int]) -> Call:
        return Call("add", "elementwise", "network", reads, writes)

    # note: weight 1 was there before; 2 is held over the second call, 3 is written with it, 4 when 2 is gone
    calls = [call({1: 10}, {2: 100}), call({1: 10}, {3: 50}), call({2: 100}, {3: 50}), call({3: 50}, {4: 70})]
    assert _peak(calls) == 10 + 100 + 50
