"""Nodes of a cluster on this machine: empty folders, in which bash runs a job with the files that it brings."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from launcher.submit.job import PORT
from tests.runs import draw_nothing, in_ranks

_TRAIN = f"""#!{sys.executable}
import functools, os, sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from pathlib import Path
from tests.forked import Command
from tests.other_machine import be_host
before = [functools.partial(be_host, Path.home().name)] if "launch.nnodes=2" in sys.argv else []
sys.exit(Command(["launcher", *sys.argv[1:]], Path.cwd(), os.environ, 1, 2, before).wait())
"""
# `make setup` installs train into the checkout.
_MAKE = '#!/bin/bash\n[ "$*" = setup ] && mkdir -p .venv/bin && ln -sf "$(command -v train)" .venv/bin/train\n'
# Runs a task per home folder.
_SRUN = """#!/bin/bash
while [[ "$1" == --* ]]; do shift; done
for home in $HOMES; do HOME=$home "$@" & tasks+=($!); done
for task in "${tasks[@]}"; do wait "$task" || code=$?; done
exit "${code:-0}"
"""
_SCONTROL = '#!/bin/bash\n[ "$1" != show ] || echo 127.0.0.1\n'


def write(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file and its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


class EmptyNodes:
    """The nodes of a job, new for each of its turns, and the folder of runs, which they share."""

    def __init__(self, folder: Path, count: int) -> None:
        self.runs, self.program = folder / "runs", folder / "bin" / "train"
        self._nodes = [folder / f"node{number}" for number in range(count)]
        for name, text in (("train", _TRAIN), ("make", _MAKE), ("srun", _SRUN), ("scontrol", _SCONTROL)):
            write(folder / "bin" / name, text, 0o755)

    def kubernetes(self, text: str) -> list[tuple[int, str]]:
        """Run the containers of a Job or TrainJob with the files of its ConfigMap; return exit codes and errors."""
        config_map, *_, job = yaml.safe_load_all(text)
        if len(self._nodes) == 1:
            pod = job["spec"]["template"]["spec"]
            (start,) = pod["containers"]
        else:
            (patch,) = job["spec"]["runtimePatches"]
            (node,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
            pod, start = node["template"]["spec"]["template"]["spec"], job["spec"]["trainer"]
        (volume,) = (one["configMap"] for one in pod["volumes"] if one["name"] == "files")
        assert volume["name"] == config_map["metadata"]["name"]
        nodes = self._new()
        for node in nodes:
            hidden = node / "job" / "..data"  # note: to whose files the kubelet writes symbolic links
            for item in volume["items"]:
                write(hidden / item["path"], config_map["data"][item["key"]])
            for top in list(hidden.iterdir()):
                (node / "job" / top.name).symlink_to(top)
        script = start["command"][2].replace("/runs", str(self.runs))
        return self._run(nodes, script, PET_MASTER_ADDR="127.0.0.1", PET_MASTER_PORT=str(_free_port()))

    def sky(self, text: str, project: Path) -> list[tuple[int, str]]:
        """Run a task of SkyPilot with its files of the project or all of them; return exit codes and errors."""
        task, nodes = yaml.safe_load(text), self._new()
        for node in nodes:
            if "workdir" in task:
                shutil.copytree(project, node, dirs_exist_ok=True)
            for target, source in task.get("file_mounts", {}).items():
                if isinstance(source, str):
                    write(node / target[1:], (project / source).read_text())
        script = (task.get("setup", "") + task["run"]).replace(f":{PORT}", f":{_free_port()}")
        script = script.replace("/runs", str(self.runs))
        return self._run(nodes, script, SKYPILOT_NODE_IPS="127.0.0.1\n" * len(self._nodes))

    def slurm(self, text: str) -> list[tuple[int, str]]:
        """Run a batch script, which starts in another folder than it was submitted in; return exit codes and errors."""
        nodes = self._new()
        job = {"SLURM_JOB_ID": str(_free_port() - 20000), "SLURM_CPUS_ON_NODE": "2", "SLURM_JOB_NODELIST": "node[7-8]"}
        return self._run(nodes[:1], text, HOMES=" ".join(map(str, nodes)), **job)

    def _new(self) -> list[Path]:
        for node in self._nodes:
            shutil.rmtree(node, ignore_errors=True)
            node.mkdir()
        return self._nodes

    def _run(self, nodes: Sequence[Path], script: str, **environment: str) -> list[tuple[int, str]]:
        own = {"PATH": f"{self.program.parent}:{os.environ['PATH']}", **in_ranks(draw_nothing), **environment}
        # note: a new machine has seen no code, and remembers what it has seen in the cache
        here = ("TRAIN_CODE", "XDG_CACHE_HOME")
        clean = {name: value for name, value in os.environ.items() if name not in here}
        processes = [
            subprocess.Popen(
                ["bash", "-c", script.replace("cd /job", f"cd {node}/job")],
                cwd=node, env={**clean, **own, "HOME": str(node)}, stderr=subprocess.PIPE, text=True,
            ) for node in nodes
        ]  # fmt: skip
        errors = [process.communicate(timeout=600)[1] for process in processes]
        return [(process.returncode, text) for process, text in zip(processes, errors, strict=True)]


def _free_port() -> int:
    """Return a free port below those that Linux chooses."""
    for port in range(20000 + os.getpid() % 9000, 32000):
        with socket.socket() as free:
            if free.connect_ex(("127.0.0.1", port)):
                return port
    raise AssertionError("no free port")
