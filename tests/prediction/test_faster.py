"""`compile=auto` and `cuda_graphs=auto`: the fastest steps by prediction, where nothing speaks against them."""

from dataclasses import replace

import pytest

from launcher.config.compose import compose
from launcher.config.gpus import efficiencies, gpus
from launcher.config.schema import RunConfig
from launcher.doctor.machine import Finding
from launcher.launch.devices import Devices
from launcher.launch.prepare import Prepared
from launcher.plan.plan import plan_for
from launcher.prediction import start
from launcher.prediction.faster import described, fastest, why_eager, with_eager_steps
from launcher.prediction.prediction import Predictor
from launcher.prediction.start import with_fastest_steps

IMAGENET = ["dataset=imagenet", "dataset.train_samples=1281167", "dataset.val_samples=50000", "dataloader=synthetic"]
MILD = ["recipe=mild", *IMAGENET]
H100 = "NVIDIA H100 80GB HBM3"


def config_of(*words: str) -> RunConfig:
    return compose(words).config


@pytest.mark.parametrize(
    ("words", "gpu", "reason"),
    [
        ([], "H100 80GB", None),
        ([], "T4 16GB", "compute capability below 8"),
        (["deterministic=true"], "H100 80GB", "deterministic=true"),
        (["model.checkpointing=on"], "H100 80GB", "model.checkpointing=on"),
    ],
)
def test_some_runs_are_eager_whatever_is_predicted(words: list[str], gpu: str, reason: str | None) -> None:
    config = config_of(*MILD, *words)
    assert why_eager(config, gpus()[gpu]) == reason
    chosen = fastest(config, gpus()[gpu], lambda one: -len(described(one)))
    assert described(chosen) == ("eager" if reason else "compiled and captured")


def test_code_of_ones_own_stays_eager() -> None:
    config = replace(config_of(*MILD), code=["nets.py"])
    assert described(fastest(config, gpus()["H100 80GB"], lambda one: -len(described(one)))) == "eager"


@pytest.mark.parametrize(
    ("typed", "allowed"),
    [
        ([], {"eager", "captured", "compiled", "compiled and captured"}),
        (["compile=off"], {"eager", "captured"}),
        (["cuda_graphs=require"], {"captured", "compiled and captured"}),
        (["compile=off", "cuda_graphs=off"], {"eager"}),
    ],
)
def test_what_is_typed_stays(typed: list[str], allowed: set[str]) -> None:
    seen: list[str] = []

    def seconds(config: RunConfig) -> float:
        seen.append(described(config))
        return 1.0

    chosen = fastest(config_of(*MILD, *typed), gpus()["H100 80GB"], seconds)
    assert set(seen) == allowed
    assert described(chosen) == seen[0], "of equal ones the plainest"


def prepared(*words: str, gpu: str | None = H100, kind: str = "cuda") -> Prepared:
    plan = plan_for(config_of(*MILD, *words), 8)
    return Prepared(plan, Devices(kind, 8, gpu=gpu))  # type: ignore[arg-type]


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "judge_compiler", lambda value: Finding("compiler", "cc, with Python.h"))


@pytest.mark.usefixtures("compiler")
def test_a_start_takes_the_fastest_steps_and_says_what_they_save() -> None:
    run = with_fastest_steps(prepared())
    machine = replace(run.plan.config.hardware, gpu="H100 80GB", gpus=8, cores=208)
    predictor = Predictor(prepared().plan)
    times = {
        words: predictor.seconds(config_of(*MILD, *words), machine, gpus()["H100 80GB"], efficiencies())
        for words in [(f"compile={c}", f"cuda_graphs={g}") for c in ("off", "on") for g in ("off", "on")]
    }
    assert min(times, key=lambda words: times[words]) == (
        f"compile={run.plan.config.compile}",
        f"cuda_graphs={run.plan.config.cuda_graphs}",
    )
    assert min(times.values()) < times["compile=off", "cuda_graphs=off"]
    assert run.notes[0].startswith(f"compile=auto: {described(run.plan.config)} steps, predicted to take ")
    assert Predictor(run.plan).on(machine, gpus()["H100 80GB"]).steps == described(run.plan.config)


def test_a_start_without_a_compiler_captures_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "judge_compiler", lambda value: Finding("compiler", "no C compiler", status="warning"))
    run = with_fastest_steps(prepared())
    assert run.plan.config.compile == "off"
    assert run.notes[0].endswith(" (no C compiler)")


@pytest.mark.usefixtures("compiler")
def test_other_devices_and_unknown_gpus_are_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    on_the_cpu = with_fastest_steps(prepared(kind="cpu", gpu=None))
    assert (on_the_cpu.plan.config.compile, on_the_cpu.plan.config.cuda_graphs, on_the_cpu.notes) == ("off", "off", [])
    unknown = with_fastest_steps(prepared(gpu="NVIDIA X1"))
    assert unknown.plan.config == with_eager_steps(unknown.plan.config)
    assert unknown.notes == ["compile=auto: eager steps, since NVIDIA X1 cannot be predicted; compile=on may be faster"]

    def fail(plan: object) -> None:
        raise ValueError

    monkeypatch.setattr(start, "Predictor", fail)
    assert with_fastest_steps(prepared()).notes == [
        "compile=auto: eager steps, since they cannot be predicted (ValueError)"
    ]
    typed = prepared("compile=on", "cuda_graphs=off")
    assert with_fastest_steps(typed) is typed
