"""The judgements of the doctor from their inputs."""

import os
from pathlib import Path

import pytest

from launcher.compute import probe
from launcher.compute.host_memory import HostMemory
from launcher.compute.probe import ProbeResult
from launcher.config.compose import compose
from launcher.data.loaders import base
from launcher.doctor import machine
from launcher.doctor.examine import examine_data, memory_needs
from launcher.doctor.machine import Finding
from tests.images import write_images

SMI = """0, NVIDIA A100-SXM4-80GB, 550.54.15, 81920, 3, Disabled
1, NVIDIA A100-SXM4-80GB, 550.54.15, 81920, 4010, Disabled
"""
A100 = {"name": "NVIDIA A100-SXM4-80GB", "memory_bytes": 85 * 10**9, "capability": [8, 0], "address": "0000:07:00.0"}
TORCH = {
    **{"torch": "2.15.0", "cuda": "13.2", "hip": None, "nccl": "2.30.7", "gpus": [A100, A100], "bf16": True},
    "error": "",
}


def statuses(findings: list[Finding]) -> dict[str, str]:
    return {finding.name: finding.status for finding in findings}


def test_every_line_except_ok_has_advice() -> None:
    findings = [
        *machine.judge_gpus(None, 2, []),
        *machine.judge_gpus([], 0, []),
        *machine.judge_gpus(None, 0, ["AMD Instinct MI300X"]),
        machine.cores(2, None, 8),
        machine.memory(HostMemory(8 * 10**9, 10**9, "the machine"), 2 * 10**9),
        machine.shared_memory(64 * 10**6, 10**9),
        machine.shared_memory(None, 0),
        machine.disk(10**8, True, Path("runs")),
        machine.disk(10**12, False, Path("runs")),
        machine.judge_torch(ProbeResult(None, "no torch")),
        machine.judge_pillow("12.1.1.post0"),
    ]
    assert all(finding.status != "ok" and finding.advice for finding in findings)


def test_gpus_are_read_from_nvidia_smi() -> None:
    first, second = machine.parse_gpus(SMI)
    assert (first.name, first.driver, first.memory) == ("NVIDIA A100-SXM4-80GB", "550.54.15", 81920 * 2**20)
    assert second.used == 4010 * 2**20
    findings = machine.judge_gpus([first], 1, [])
    assert statuses(findings) == {"GPUs": "ok"}
    assert "1 x NVIDIA A100-SXM4-80GB, 85.9 GB" in findings[0].observation


def test_gpus_in_use_mixed_or_in_mig_mode_are_warnings() -> None:
    first, second = machine.parse_gpus(SMI)
    assert "1 (4.2 GB in use)" in machine.judge_gpus([first, second], 2, [])[0].observation
    (other,) = machine.parse_gpus("0, NVIDIA H200, 550.54.15, 143771, 3, Disabled")
    assert "different models" in machine.judge_gpus([first, other], 2, [])[0].observation
    (cut,) = machine.parse_gpus("0, NVIDIA H200, 550.54.15, 143771, 3, Enabled")
    assert "MIG" in machine.judge_gpus([cut], 1, [])[0].observation


def test_values_that_a_gpu_lacks_are_not_an_error() -> None:
    (gpu,) = machine.parse_gpus("0, Tesla M60, 470.1, [N/A], [N/A], [N/A]")
    assert (gpu.memory, gpu.used, gpu.mig) == (0, 0, False)


def test_cards_without_a_driver_are_a_problem(tmp_path: Path) -> None:
    for name, vendor, kind in (("a", "0x10de", "0x030200"), ("b", "0x10de", "0x040300"), ("c", "0x8086", "0x030000")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(f"{vendor}\n")
        (tmp_path / name / "class").write_text(f"{kind}\n")
    cards = probe.cards_on_the_bus(tmp_path)
    assert cards == 1  # note: b is a card's sound output
    assert statuses(machine.judge_gpus(None, cards, [])) == {"GPUs": "problem"}
    assert statuses(machine.judge_gpus(None, 0, [])) == {"GPUs": "warning"}
    assert probe.cards_on_the_bus(tmp_path / "absent") == 0


def test_cuda_is_judged_with_the_driver() -> None:
    both = machine.parse_gpus(SMI)
    assert statuses(machine.judge_cuda(ProbeResult(TORCH), both)) == {"CUDA": "ok", "NCCL": "ok"}
    too_old = "The NVIDIA driver on your system is too old (found version 11040)."
    (blind,) = machine.judge_cuda(ProbeResult({**TORCH, "gpus": [], "nccl": None, "error": too_old}), both)
    assert blind.status == "problem"
    assert f"CUDA_VISIBLE_DEVICES; CUDA's error: {too_old}" in blind.advice
    assert machine.judge_cuda(ProbeResult({**TORCH, "cuda": None, "gpus": []}), both)[0].status == "problem"
    assert statuses(machine.judge_cuda(ProbeResult({**TORCH, "nccl": None}), both))["NCCL"] == "problem"
    assert statuses(machine.judge_cuda(ProbeResult({**TORCH, "gpus": []}), [])) == {"CUDA": "ok"}


@pytest.mark.parametrize(
    ("driver", "cuda", "status"),
    [
        ("580.65.06", "13.2", "ok"),
        ("575.57.08", "13.2", "problem"),
        ("575.57.08", "12.6", "ok"),
        ("470.256.02", "12.6", "problem"),
        ("470.256.02", None, "ok"),
        ("[N/A]", "13.2", "ok"),
    ],
)
def test_a_driver_is_judged_against_the_cuda_of_torch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, driver: str, cuda: str | None, status: str
) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\necho '0, NVIDIA A100-SXM4-80GB, {driver}, 81920, 3, Disabled'\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    gpus = machine.read_gpus()
    assert gpus
    blind = ProbeResult({**TORCH, "cuda": cuda, "gpus": [], "error": "The NVIDIA driver on your system is too old"})
    (finding,) = machine.judge_driver(blind, gpus)
    assert (finding.name, finding.status) == ("driver", status)
    if status == "problem":
        assert f"torch's CUDA {cuda} needs {580 if cuda == '13.2' else 525} or newer" in finding.observation
        assert "install NVIDIA's driver" in finding.advice
    # note: as with CUDA's forward compatibility
    assert machine.judge_driver(ProbeResult({**TORCH, "cuda": cuda}), gpus)[0].status == "ok"
    assert machine.judge_driver(ProbeResult(None, "no torch"), gpus)[0].status == "ok"
    assert machine.judge_driver(blind, []) == []


def test_a_gpu_that_fails_is_a_problem() -> None:
    (failing,) = machine.judge_cuda(ProbeResult({**TORCH, "error": "CUDA error: uncorrectable ECC error\nmore"}), [])
    assert failing.observation == "a GPU fails: CUDA error: uncorrectable ECC error"


def test_the_error_of_a_gpu_without_kernels_has_a_build_that_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    lacks = """
import torch
def lacking(*_, **__):
    raise RuntimeError("CUDA error: no kernel image is available for execution on the device")
torch.zeros, torch.cuda.init, torch.cuda.device_count = lacking, lambda: None, lambda: 1
class Old:
    name, total_memory, major, minor = "V100", 0, 7, 0
torch.cuda.get_device_properties = lambda number: Old
"""
    values = probe.run_probe(f"{lacks}\n{probe.TORCH}").values
    assert values["error"].endswith("has no kernels for V100; use an older one or a build for CUDA 12.6")


def test_amd_gpus_are_reported() -> None:
    (finding,) = machine.judge_gpus(None, 0, ["AMD Instinct MI300X"] * 8)
    assert finding.observation == "8 x AMD Instinct MI300X, through ROCm"
    rocm = {**TORCH, "cuda": None, "hip": "7.1"}
    assert machine.judge_cuda(ProbeResult(rocm), [])[0].observation == "ROCm 7.1, torch detects 2 GPUs, bfloat16"


def test_a_probe_returns_values_or_an_error() -> None:
    assert probe.run_probe("print('{\"a\": 1}')").values == {"a": 1}
    assert probe.run_probe("import nosuchmodule").error == "ModuleNotFoundError: No module named 'nosuchmodule'"
    assert probe.run_probe("import os; os._exit(3)").error == "exited with code 3"


def test_pillow_and_the_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.judge_pillow("12.1.1.post0").status == "warning"
    assert machine.judge_pillow("12.3.0").status == machine.judge_pillow("13.0.0").status == "ok"
    loader = compose(["dataloader=ffcv", "dataloader.decoder=ffcv"]).config.dataloader
    monkeypatch.setattr("launcher.data.jpeg.find_spec", lambda module: None)
    assert machine.judge_decoder(loader).status == "problem"


@pytest.mark.parametrize(("text", "cores"), [("max 100000", None), ("250000 100000", 2.5), ("", None)])
def test_a_containers_quota_of_cores(tmp_path: Path, text: str, cores: float | None) -> None:
    (tmp_path / "cpu.max").write_text(text)
    assert probe.allowed_cores(tmp_path) == cores


def test_a_containers_quota_bounds_the_usable_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "cores_of_mask", lambda: 192)
    for quota, cores in ((16.0, 16), (2.5, 2), (0.5, 1), (None, 192), (400.0, 192)):
        monkeypatch.setattr(probe, "allowed_cores", lambda quota=quota: quota)
        assert probe.usable_cores() == cores
    monkeypatch.setattr(probe, "allowed_cores", lambda: 64.0)
    assert probe.rank_cores(8) == 8


def test_a_fabric_manager_that_is_down_has_its_command() -> None:
    error = "Error 802: system not yet initialized"
    values = {"gpus": [], "error": error, "cuda": "13.2", "hip": None}
    gpus = machine.parse_gpus("0, NVIDIA A100-SXM4-80GB, 580.1, 81920, 3, Disabled")
    (finding,) = machine.judge_cuda(ProbeResult(values), gpus)
    assert "sudo systemctl start nvidia-fabricmanager" in finding.advice
    assert error in finding.advice


def test_cores_are_counted_per_process() -> None:
    assert machine.cores(64, None, 8).status == "ok"
    assert machine.cores(63, None, 8).status == "warning"
    assert "time of 4" in machine.cores(64, 4.0, 1).observation
    assert machine.cores(8, 8.0, 1).status == "ok"


def test_a_folder_for_runs_needs_space() -> None:
    assert machine.disk(10**9, True, Path("runs")).status == "warning"
    assert machine.disk(10**10, True, Path("runs")).status == "ok"


def test_the_need_of_shared_memory_follows_batch_image_size_and_workers() -> None:
    words = ["recipe=mild", "batch_size=1024", "dataloader.workers=4", "dataloader.prefetch=3"]
    assert memory_needs(compose([*words, "eval_batch_size=64"]).config, 1)[1] == 1024 * 3 * 176 * 176 * 4 * 3
    size = compose(words).config.image.eval_size
    assert memory_needs(compose(words).config, 1)[1] == 2048 * 3 * size * size * 4 * 3, "evaluation has more"
    assert memory_needs(compose(["dataloader=synthetic"]).config, 1)[1] == 0


@pytest.mark.parametrize(("cores", "ranks", "workers"), [(2, 1, 2), (16, 4, 4), (64, 2, 24)])
def test_the_need_of_shared_memory_counts_automatic_workers(
    cores: int, ranks: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "usable_cores", lambda: cores)
    monkeypatch.setattr(base, "usable_memory", lambda: HostMemory(10**12, 10**12, "the machine"))
    config = compose(["recipe=mild", "batch_size=1024", "eval_batch_size=64", "dataloader.prefetch=3"]).config
    assert memory_needs(config, ranks)[1] == 1024 * 3 * 176 * 176 * workers * 3


def test_automatic_workers_of_all_ranks_have_half_of_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "usable_cores", lambda: 64)
    of_a_worker = 512 * 3 * 176 * 176 * 2
    monkeypatch.setattr(base, "free_shared_memory", lambda: 2 * 2 * 5 * of_a_worker + 1)
    words = ["recipe=mild", "batch_size=1024", "eval_batch_size=64"]
    config, typed = (compose([*words, *more]).config for more in ([], ["dataloader.workers=30"]))
    assert memory_needs(config, 2)[1] == 2 * 5 * of_a_worker
    assert memory_needs(typed, 2)[1] == 2 * 30 * of_a_worker
    monkeypatch.setattr(base, "free_shared_memory", lambda: of_a_worker)
    assert memory_needs(config, 2)[1] == 2 * of_a_worker, "one worker at least"


def test_data_are_counted_or_a_problem(tmp_path: Path) -> None:
    words = ["dataset=image_folder", f"dataset.path={tmp_path}"]
    (missing,) = examine_data(compose(words).config)
    assert missing.status == "problem"
    assert "has no train/ folder" in missing.advice
    write_images(tmp_path, {"train": 3, "val": 1}, size=(8, 8))
    there, readable, duplicates, alike = examine_data(compose(words).config)
    assert there.status == readable.status == duplicates.status == alike.status == "ok"
    assert readable.observation == "all 8 can be decoded"
    assert "2 classes, 6 training and 2 validation images; decoding all of them now" in there.observation


def test_compiling_for_a_gpu_needs_a_c_compiler_and_the_headers_of_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    neither = machine.judge_compiler("on", tmp_path)
    assert (neither.status, neither.observation) == ("warning", f"no C compiler and no Python.h in {tmp_path}")
    assert "apt-get install gcc libpython3-dev" in neither.advice
    (tmp_path / "gcc").touch(mode=0o755)
    required = machine.judge_compiler("require", tmp_path)
    assert (required.status, required.observation) == ("problem", f"no Python.h in {tmp_path}")
    (tmp_path / "Python.h").touch()
    assert machine.judge_compiler("require", tmp_path).observation == f"{tmp_path / 'gcc'}, with Python.h"
    monkeypatch.setenv("CC", "/opt/missing/cc -m64")
    assert machine.judge_compiler("on", tmp_path).observation == "no C compiler"
