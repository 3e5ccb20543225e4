"""With `launch.numa=on` each rank uses only the cores of its GPU's NUMA node that the launcher may use."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from launcher.compute.probe import ProbeResult, numa_cores, numa_nodes
from launcher.doctor.machine import judge_nodes
from tests.forked import Command
from tests.runs import ended

HERE = Path(__file__).parent
GPUS = ["0000:01:00.0", "0000:c1:00.0"]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux binds processes to cores")


def system(folder: Path, cores: Mapping[int, str], nodes: Sequence[int]) -> Path:
    """Write what Linux shows of the cores of NUMA nodes, and of the nodes of two GPUs."""
    files = {f"devices/system/node/node{node}/cpulist": text for node, text in cores.items()}
    files |= {f"bus/pci/devices/{gpu}/numa_node": str(node) for gpu, node in zip(GPUS, nodes, strict=True)}
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True)
        path.write_text(f"{text}\n")
    return folder


def test_a_gpu_has_the_cores_of_its_node_that_the_process_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = system(tmp_path, {0: "0-3,8-11", 1: "4-7,12-15"}, [1, 0])
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 9, 6, 13})
    assert numa_nodes(GPUS, folder) == ["1", "0"]
    assert numa_cores(GPUS, folder) == [[6, 13], [0, 1, 2, 9]]
    assert numa_cores([GPUS[1]] * 2, folder) == [[0, 1, 2, 9]] * 2


@pytest.mark.parametrize(
    ("cores", "nodes", "addresses", "reason"),
    [
        ({0: "0-7"}, [0, 0], GPUS, "this machine shows one NUMA node"),
        ({}, [0, 0], GPUS, "this machine shows one NUMA node"),
        ({0: "0-1", 1: "2-3"}, [0, 1], [], "only GPUs have one"),
        ({0: "0-1", 1: "2-3"}, [0, -1], GPUS, "the NUMA node of GPU 1 is unknown, or "),
        ({0: "0-1", 1: "2-3"}, [0, 1], [GPUS[0], None], "the NUMA node of GPU 1 is unknown, or "),
        ({0: "0-1", 1: "2-3"}, [0, 1], [*GPUS, "0000:e1:00.0"], "the NUMA node of GPU 2 is unknown, or "),
        ({0: "0-1", 1: "4-5"}, [0, 1], GPUS, "the NUMA node of GPU 1 is unknown, or this process may use none "),
        ({0: "0-1", 1: ""}, [0, 1], GPUS, "the NUMA node of GPU 1 is unknown, or this process may use none "),
    ],
)
def test_nothing_is_bound_where_a_node_or_its_cores_are_unknown(
    cores: Mapping[int, str],
    nodes: Sequence[int],
    addresses: Sequence[str | None],
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    bound = numa_cores(addresses, system(tmp_path, cores, nodes))
    assert isinstance(bound, str)
    assert bound.startswith(reason)


def test_the_doctor_shows_the_nodes_of_gpus_where_there_are_several(tmp_path: Path) -> None:
    seen = ProbeResult({"gpus": [{"address": gpu} for gpu in GPUS]})
    (line,) = judge_nodes(seen, system(tmp_path / "several", {0: "0", 1: "1"}, [1, 0]))
    assert (line.status, line.observation.partition(";")[0]) == ("ok", "1, 0, GPU by GPU")
    assert judge_nodes(seen, system(tmp_path / "one", {0: "0", 1: "1"}, [1, 1])) == []
    assert judge_nodes(seen, tmp_path / "none") == judge_nodes(ProbeResult(None, "failed"), tmp_path) == []


def ranks(folder: Path, *words: str) -> tuple[str, list[dict[str, object]]]:
    """Run two ranks on the CPU beside the GPUs of a machine; return what is printed, and the files of each."""
    run = folder / "run"
    run.mkdir()
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1])]),
        "SYSTEM": str(folder),
    }
    environment.pop("OMP_NUM_THREADS", None)
    environment["TORCH_CPP_LOG_LEVEL"] = "FATAL"
    output, _ = ended(Command(["launch_driver", str(run), "use_cores", *words], folder, environment), 0)
    names = ("cores", "worker", "share", "threads")
    return output, [{name: json.loads((run / f"{name}-{rank}").read_text()) for name in names} for rank in (0, 1)]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
@pytest.mark.parametrize("numa", ["on", "off"])
def test_ranks_and_their_loader_workers_use_the_cores_beside_their_gpu(tmp_path: Path, numa: str) -> None:
    first, *others = sorted(os.sched_getaffinity(0))
    system(tmp_path, {0: str(first), 1: ",".join(map(str, others))}, [1, 0])
    output, seen = ranks(tmp_path, f"launch.numa={numa}")
    own = [others, [first]] if numa == "on" else [[first, *others]] * 2
    share = [len(others), 1] if numa == "on" else [max(1, (1 + len(others)) // 2)] * 2
    assert output == ""
    assert [[one["cores"], one["worker"], one["share"]] for one in seen] == [
        [cores, cores, count] for cores, count in zip(own, share, strict=True)
    ]
    assert [one["threads"] for one in seen] == [min(share)] * 2


def test_ranks_of_one_node_share_its_cores_and_a_reason_is_printed(tmp_path: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))
    system(tmp_path / "two", {0: ",".join(map(str, cores)), 1: "4000"}, [0, 0])
    _, seen = ranks(tmp_path / "two", "launch.numa=on")
    assert [[one["cores"], one["share"]] for one in seen] == [[cores, max(1, len(cores) // 2)]] * 2
    (tmp_path / "none").mkdir()
    output, seen = ranks(tmp_path / "none", "launch.numa=on")
    assert output == "launch.numa=on: processes use all cores (this machine shows one NUMA node)\n"
    assert [one["cores"] for one in seen] == [cores] * 2
