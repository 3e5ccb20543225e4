"""The launcher chooses the devices of a run once, whatever NVML, CUDA and the ranks detect."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
import torch

import launcher
from launcher.compute.probe import ProbeResult, has_driver, visible_gpus
from launcher.config.compose import compose
from launcher.config.resolved import write
from launcher.config.schema import Launch
from launcher.errors import MachineError, UserError
from launcher.launch import devices
from launcher.launch.devices import Devices, decide
from launcher.plan.plan import Plan
from launcher.rank.group import check_agreement, use_device
from launcher.training import checkpoint
from tests.two_ranks import on_two_ranks

ROOT = Path(launcher.__file__).parent
Capture = pytest.CaptureFixture[str]

A100 = {"name": "NVIDIA A100-SXM4-80GB", "memory_bytes": 85 * 10**9, "capability": [8, 0], "address": "0000:07:00.0"}
TOO_OLD = "The NVIDIA driver on your system is too old (found version 11040)."

# Sets the GPUs that NVML and CUDA report, and the error of CUDA.
Machine = Callable[..., None]


def launch(device: str, nproc: object = "auto") -> Launch:
    return compose([f"launch.device={device}", f"launch.nproc={nproc}"]).config.launch


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(devices, "cards_on_the_bus", lambda: 0)

    def of(nvml: int, cuda: int, error: str = "", build: str | None = "13.0") -> None:
        values = {"torch": "2.15.0", "cuda": build, "hip": None, "gpus": [A100] * cuda, "error": error}
        monkeypatch.setattr(devices, "visible_gpus", lambda: nvml)
        monkeypatch.setattr(devices, "run_probe", lambda script: ProbeResult(values))

    return of


@pytest.mark.parametrize(
    ("gpus", "device", "nproc", "expected"),
    [
        (8, "auto", "auto", ("cuda", 8)),
        (8, "cuda", "auto", ("cuda", 8)),
        (8, "auto", 3, ("cuda", 3)),
        (8, "cpu", "auto", ("cpu", 1)),
        (8, "cpu", 16, ("cpu", 16)),
        (0, "auto", "auto", ("cpu", 1)),
        (0, "auto", 2, ("cpu", 2)),
    ],
)
def test_each_visible_gpu_gets_one_process(
    machine: Machine, gpus: int, device: str, nproc: object, expected: tuple[str, int]
) -> None:
    machine(nvml=gpus, cuda=gpus)
    result = decide(launch(device, nproc))
    assert ((result.kind, result.processes), result.notes) == (expected, [])


@pytest.mark.parametrize("node", ["nvidia0", "nvidiactl", "kfd", "dxg", None])
def test_a_driver_is_detected_by_its_device_files(node: str | None, tmp_path: Path) -> None:
    (tmp_path / "null").touch()
    if node:
        (tmp_path / node).touch()
    assert has_driver(tmp_path) == (node is not None)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *((None, 3), ("0,2", 2), ("", 0), ("1,-1,2", 1), ("0,1,2,3", 3)),
        *(("NoDevFiles", 0), ("0, NoDevFiles", 1), ("none", 0), ("GPU-8f2a,MIG-3c", 2)),
    ],
)
def test_gpus_are_counted_without_torch(
    value: str | None, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for node in ("nvidia0", "nvidia1", "nvidia2", "nvidiactl"):
        (tmp_path / node).touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if value is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert visible_gpus(tmp_path) == expected


def test_a_torch_without_cuda_trains_on_the_cpu(machine: Machine) -> None:
    machine(nvml=1, cuda=0, build=None)
    assert decide(launch("auto")).kind == "cpu"


@pytest.mark.parametrize(
    ("gpus", "device", "nproc", "message"),
    [
        (1, "auto", 2, "launch.nproc=2: 1 GPU is visible; set launch.nproc=1, or launch.device=cpu"),
        (4, "cuda", 8, "launch.nproc=8: 4 GPUs are visible; set launch.nproc=4, or launch.device=cpu"),
        (0, "cuda", "auto", "launch.device=cuda: no GPU is visible"),
        (0, "cuda", 2, "launch.device=cuda: no GPU is visible"),
    ],
)
def test_more_processes_than_visible_gpus_are_refused(
    machine: Machine, gpus: int, device: str, nproc: object, message: str
) -> None:
    machine(nvml=gpus, cuda=gpus)
    with pytest.raises(UserError) as caught:
        decide(launch(device, nproc))
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_gpus_that_cuda_cannot_use_are_an_error_and_not_the_cpu(machine: Machine, device: str) -> None:
    machine(nvml=8, cuda=0, error=TOO_OLD)
    error = r"8 GPUs are visible, but CUDA can use none \(The NVIDIA driver .*\); check the driver with train doctor"
    with pytest.raises(MachineError, match=error):
        decide(launch(device))
    assert decide(launch("cpu")) == Devices("cpu", 1)
    machine(nvml=1, cuda=1, error="torch 2.15.0 has no kernels for NVIDIA A100")
    with pytest.raises(MachineError, match="has no kernels for NVIDIA A100"):
        decide(launch(device))


def test_mig_instances_are_counted_as_by_cuda(machine: Machine) -> None:
    machine(nvml=4, cuda=1)
    result = decide(launch("auto"))
    assert (result.kind, result.processes) == ("cuda", 1)
    visible = "4 GPUs are visible, but CUDA can use only 1"
    assert f"{visible}: the others have failed, or are split into MIG instances" in result.notes[0]
    with pytest.raises(UserError, match=rf"launch.nproc=4: {visible}; set launch.nproc=1"):
        decide(launch("auto", 4))


def test_cards_that_torch_does_not_detect_are_a_note(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(nvml=0, cuda=0)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(devices, "cards_on_the_bus", lambda: 8)
    assert decide(launch("auto")).notes[0].startswith("8 NVIDIA cards on the bus, but torch detects none")
    assert not decide(launch("cpu")).notes
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert not decide(launch("auto")).notes


@pytest.mark.parametrize(("device", "notes"), [("auto", 1), ("cpu", 0)])
def test_a_mac_trains_on_the_cpu_with_a_note(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, device: str, notes: int
) -> None:
    machine(nvml=0, cuda=0)
    monkeypatch.setattr(devices.sys, "platform", "darwin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = decide(launch(device))
    assert (found.kind, len(found.notes)) == ("cpu", notes)
    assert all("launch.device=mps trains on an Apple GPU" in note for note in found.notes)


@pytest.mark.parametrize(
    ("has_gpu", "nproc", "refused"),
    [
        (True, "auto", ""),
        (True, 1, ""),
        (True, 2, "launch.nproc=2: an Apple GPU trains in one process; set launch.nproc=1"),
        (False, "auto", "launch.device=mps: torch detects no Apple GPU"),
    ],
)
def test_an_apple_gpu_is_one_process_if_asked_for(
    monkeypatch: pytest.MonkeyPatch, has_gpu: bool, nproc: object, refused: str
) -> None:
    monkeypatch.setattr(devices, "run_probe", lambda script: ProbeResult({"mps": has_gpu}))
    if refused:
        with pytest.raises(UserError, match=refused):
            decide(launch("mps", nproc))
    else:
        found = decide(launch("mps", nproc))
        assert (found.kind, found.processes, str(found)) == ("mps", 1, "an Apple GPU")
        assert "no run was made on an Apple GPU" in found.notes[0]


def test_a_rank_whose_gpu_fails_reports_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")  # note: so that pytest restores it
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    assert use_device("cpu", 3) == torch.device("cpu")
    with pytest.raises(MachineError, match=r"GPU 63 failed after startup detected it: .*launch.device=cpu"):
        use_device("cuda", 63)
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


def test_every_verb_passes_the_chosen_devices_to_the_launcher(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from launcher.cli.main import main
    from launcher.launch import elastic

    chosen = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(elastic.Launcher, "run", lambda launcher: chosen.append(launcher._devices) or 1)
    machine(nvml=2, cuda=2)
    small = ["dataset.train_samples=96", "dataset.val_samples=50", "dataset.native_size=32"]
    run = [*small, "run_name=run"]
    for words in (["run", *run], ["resume", "runs/run"], ["estimate", *small], ["ablate", *small, "algorithms=[ema]"]):
        chosen.clear()
        main(words)
        assert chosen == [Devices("cuda", 2)], words


def test_evaluation_does_not_fall_back_to_the_cpu(machine: Machine, tmp_path: Path, capsys: Capture) -> None:
    from launcher.cli.main import main

    run = tmp_path / "run"
    run.mkdir()
    write(compose([]).config, run / "config.yaml")
    checkpoint.save({"step": 0, "weights": {}}, run / "checkpoints" / "step-00000000.pt")
    machine(nvml=8, cuda=0, error=TOO_OLD)
    assert main(["eval", str(run)]) == 1
    assert capsys.readouterr().err.startswith("error: 8 GPUs are visible, but CUDA can use none (The NVIDIA driver")


def _mixed_devices(rank: int) -> None:
    with pytest.raises(MachineError, match=r"ranks \[0\] have no GPU, but the others do"):
        check_agreement(("cpu", "cuda")[rank], compose([]).config)


def test_ranks_with_and_without_a_gpu_are_an_error() -> None:
    on_two_ranks(_mixed_devices)


@pytest.mark.parametrize(
    ("words", "features", "kind", "precision"),
    [
        ([], ["avx2", "amx_bf16"], "cpu", "bf16"),
        ([], ["avx2"], "cpu", "auto"),
        ([], ["amx_bf16"], "cuda", "auto"),
        (["precision=fp32"], ["amx_bf16"], "cpu", "fp32"),
        (["algorithms=[progressive_resizing]"], ["amx_bf16"], "cpu", "auto"),
    ],
)
def test_auto_precision_is_bf16_on_a_cpu_with_amx_at_all_sizes_that_gain(
    monkeypatch: pytest.MonkeyPatch, words: list[str], features: list[str], kind: Literal["cpu", "cuda"], precision: str
) -> None:
    monkeypatch.setattr(devices, "processor_features", lambda: features)
    plan = Plan(compose(["dataset.native_size=64", *words]).config, 1, 640)
    assert devices.with_precision(plan, Devices(kind, 1)).config.precision == precision
