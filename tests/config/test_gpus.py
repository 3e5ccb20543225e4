"""What the locked torch needs of GPUs and drivers, in conf/torch.yaml and on the pages."""

import json
import re
from pathlib import Path

import pytest
import torch

from launcher.config.gpus import gpus, locked_torch, unsupported
from launcher.config.groups import machines
from tests.commands import execute, output_of, refused

ROOT = Path(__file__).parents[2]
LOCKED = f"torch=={torch.__version__.partition('+')[0]}" in (ROOT / "requirements.lock").read_text()


@pytest.mark.skipif(not LOCKED or not torch.version.cuda, reason="not the torch of requirements.lock for CUDA")
def test_the_values_are_those_of_the_locked_torch() -> None:
    oldest = min(int(name.removeprefix("sm_")) for name in torch.cuda.get_arch_list())
    assert (locked_torch().cuda, locked_torch().capability) == (int(str(torch.version.cuda).split(".")[0]), oldest / 10)


def test_every_gpu_has_a_capability_and_only_v100_is_unsupported() -> None:
    assert all(gpu.capability < 20 for gpu in gpus().values())
    assert [name for name in gpus() if unsupported(name)] == ["V100 16GB"]
    assert not unsupported("GTX 1080")  # note: not in conf/gpus.yaml


@pytest.mark.parametrize("page", ["README.md", "docs/cloud.md", "Dockerfile"])
def test_pages_have_the_driver(page: str) -> None:
    oldest = locked_torch().drivers[locked_torch().cuda]
    assert re.findall(r"driver\s+(\d+)\s+or\s+newer", (ROOT / page).read_text()) == [str(oldest)]


def test_unsupported_machines_are_marked() -> None:
    shown = output_of("ls", "hardware")
    assert "V100 16GB *" in shown
    assert "A100 40GB *" not in shown
    assert "* torch has no kernels for V100 16GB: compute capability 7.0, below 7.5" in shown
    listed = {row["name"]: row["problem"] for row in json.loads(output_of("ls", "hardware", "--json"))["hardware"]}
    assert {name for name, problem in listed.items() if problem} == {
        name for name, machine in machines().items() if machine.gpu == "V100 16GB"
    }


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("plan", "recipe=mild", "--on", "8xV100"), "--on=lambda_8x_v100: torch has no kernels for V100 16GB"),
        (("plan", "recipe=mild", "--on", "p3_2xlarge"), "set --on=runpod_1x_rtx4090, the nearest that works"),
        (("plan", "recipe=mild", "hardware=lambda_8x_v100"), "set hardware=runpod_8x_rtx4090, the nearest that works"),
        (("submit", "--slurm", "recipe=mild", "hardware=bm_gpu3_8"), "set hardware=runpod_8x_rtx4090, the nearest"),
    ],
)
def test_unsupported_machines_are_refused(words: tuple[str, ...], line: str) -> None:
    assert line in refused(*words)


def test_a_job_on_the_cpu_takes_any_machine() -> None:
    code, out, errors = execute(
        "submit", "--slurm", "recipe=mild", "dataset=shapes", "hardware=lambda_8x_v100", "launch=cpu"
    )
    assert code == 0, errors
    assert "driver" not in out
