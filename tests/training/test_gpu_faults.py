"""Slow and sick GPUs are found by what their driver has seen, through NVIDIA's own Python package."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from launcher.records.metrics import read_metrics
from launcher.training.gpu_faults import GpuFaults, fault_code
from tests.images import write_images
from tests.runs import SHORT, SMALL, Train, draw_nothing, use_tiny
from tests.slow_ranks import slow_folder_of_rank_1, xid_of_rank_1

HOT, BRAKE, POWER_CAP, IDLE = 0x40, 0x80, 0x4, 0x1
THERMAL, POWER, ECC, ROWS = 1, 2, 4, 8
CODES = """
import json, os, sys, types, torch
from pathlib import Path
from launcher.training.gpu_faults import fault_code
torch.cuda.get_device_properties = lambda device: types.SimpleNamespace(uuid=sys.argv[1])
codes = []
for state in json.loads(sys.argv[2]):
    Path(os.environ["FAKE_DRIVER"]).write_text(state)
    codes.append(fault_code(torch.device("cuda", 0)))
print(codes)
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("pynvml", reason="needs nvidia-ml-py")
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs a C compiler on Linux")
    library = tmp_path_factory.mktemp("driver") / "libnvidia-ml.so.1"
    source = Path(__file__).with_name("driver.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return library


def _codes(driver: Path, tmp_path: Path, *states: str, uuid: str = "1234") -> list[int]:
    environment = {**os.environ, "LD_LIBRARY_PATH": str(driver.parent), "FAKE_DRIVER": str(tmp_path / "state")}
    command = [sys.executable, "-c", CODES, uuid, json.dumps(states)]
    codes: list[int] = json.loads(subprocess.run(command, check=True, env=environment, capture_output=True).stdout)
    return codes


@pytest.mark.slow
def test_the_driver_is_read_through_its_package(driver: Path, tmp_path: Path) -> None:
    states = [f"{IDLE | POWER_CAP} 5 0 0", f"{HOT | IDLE} 5 0 0", f"{BRAKE} 6 0 0", "0 6 1 79", "0 6 1 79"]
    assert _codes(driver, tmp_path, *states) == [0, THERMAL, POWER | ECC, ECC | ROWS | 16 * 79, ECC | ROWS | 16 * 79]


@pytest.mark.slow
def test_what_a_gpu_does_not_support_is_no_fault(driver: Path, tmp_path: Path) -> None:
    assert _codes(driver, tmp_path, "-1 -1 -1 -1", f"{HOT} -1 -1 48") == [0, THERMAL]
    assert _codes(driver, tmp_path, f"{HOT} 5 1 0", uuid="a part of a GPU") == [0]
    environment = {**os.environ, "FAKE_DRIVER": str(tmp_path / "state"), "LD_LIBRARY_PATH": str(tmp_path)}
    command = [sys.executable, "-c", CODES, "1234", json.dumps([f"{HOT} 5 1 0"])]
    assert subprocess.run(command, check=True, env=environment, capture_output=True).stdout == b"[0]\n", "no driver"
    assert fault_code(torch.device("cpu")) == 0


@pytest.mark.slow
def test_a_package_with_other_names_is_as_none(driver: Path, tmp_path: Path) -> None:
    (tmp_path / "state").write_text(f"{HOT} 5 1 0")
    old = "import pynvml\ndel pynvml.nvmlClocksEventReasonSwThermalSlowdown\n" + CODES
    environment = {**os.environ, "LD_LIBRARY_PATH": str(driver.parent), "FAKE_DRIVER": str(tmp_path / "state")}
    command = [sys.executable, "-c", old, "1234", json.dumps([f"{HOT} 5 1 0"])]
    assert subprocess.run(command, check=True, env=environment, capture_output=True).stdout == b"[0]\n"


def test_clocks_count_after_two_intervals_and_errors_at_once() -> None:
    faults = GpuFaults()
    found = [faults.add([0, code]) for code in (THERMAL, THERMAL, THERMAL, 0, THERMAL, THERMAL)]
    assert [[one.rank for one in new] for new in found] == [[], [1], [], [], [], [1]]
    assert "lowers its clocks because it is too hot; check its cooling" in found[1][0].line("node-2")
    faults = GpuFaults()
    found = [faults.add([code]) for code in (ECC, ECC | 16 * 79, ECC | 16 * 48, ROWS | 16 * 48)]
    lines = [[one.line("node-2") for one in new] for new in found]
    assert [len(new) for new in lines] == [1, 1, 1, 1]
    assert lines[0][0].startswith("the GPU of rank 0 on node-2 has new memory errors that ECC could not correct; ")
    assert lines[1][0].startswith("the GPU of rank 0 on node-2 reported Xid error 79; ")


@pytest.mark.system
def test_a_run_names_the_rank_once_in_output_records_and_summary(train: Train) -> None:
    train.before = (use_tiny, draw_nothing, xid_of_rank_1)
    output = train(*SHORT, "epochs=2", "run_name=a").stdout
    (row,) = [row for row in read_metrics(train.folder / "runs/a/metrics.jsonl") if row["kind"] == "warning"]
    assert row["rank"] == 1
    assert output.count(f"warning: {row['text']}") == 1
    assert "GPU fault" in output
    assert "rank 1 on" in row["text"]
    assert "Xid error 79" in row["text"]


@pytest.mark.system
def test_diagnose_names_slow_ranks_and_sick_gpus(train: Train) -> None:
    write_images(train.folder / "images", {"train": 96, "val": 4}, size=(32, 32))
    train.before = (use_tiny, draw_nothing, slow_folder_of_rank_1, xid_of_rank_1)
    words = [word for word in SMALL if not word.startswith(("dataset", "launch.nproc"))]
    data = ["dataset=image_folder", "dataset.path=images", "dataset.native_size=32", "dataloader=torchvision"]
    found = json.loads(train("diagnose", *words, *data, "launch.nproc=2", "--json", "--seconds", "2").stdout)
    assert "rank 1 on" in found["advice"][0]
    assert any("Xid error 79" in line for line in found["advice"])
    assert any("check the disk of" in line for line in found["advice"]), found["advice"]
