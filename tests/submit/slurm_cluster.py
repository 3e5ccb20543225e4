"""A Slurm of two nodes on this machine: Debian's programs, and a network, host name and /etc/hosts for each node."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from tests.runs import in_ranks, slow_down, use_tiny, wait_for

NODES = ("one", "two")
_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "unshare", "nsenter", "ip")
# note: cred_expire decides when a requeued job is eligible; its default is two minutes
_CONF = """\
ClusterName=test
SlurmctldHost=one(10.77.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmdTimeout=10
KillWait=20
SchedulerParameters=sched_interval=1,batch_sched_delay=0
NodeName=one NodeAddr=10.77.0.1 CPUs=2
NodeName=two NodeAddr=10.77.0.2 CPUs=2
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def slow_first_turn() -> None:
    """Slow a run down until its job is requeued."""
    if "SLURM_RESTART_COUNT" not in os.environ:
        slow_down()


def missing() -> str | None:
    """Return why Slurm cannot run here; None if it can."""
    if absent := [name for name in _PROGRAMS if shutil.which(name) is None]:
        return f"{', '.join(absent)} not installed; as root, scripts/setup_tests.sh installs Slurm"
    if subprocess.run(["unshare", "--net", "--uts", "--mount", "true"], capture_output=True, check=False).returncode:
        return "namespaces of network, host name and mounts need root"
    return None


class Cluster:
    """The cluster; `folder` has its files and is the working directory of its jobs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._holders: dict[str, subprocess.Popen[bytes]] = {}
        for name in ("state", *(f"spool-{node}" for node in NODES)):
            (folder / name).mkdir()
        (folder / "slurm.conf").write_text(_CONF.format(folder=folder))
        (folder / "hosts").write_text("127.0.0.1 localhost\n10.77.0.1 one\n10.77.0.2 two\n")
        (folder / "key").write_bytes(os.urandom(128))
        (folder / "key").chmod(0o600)
        ours = {"SLURM_CONF": str(folder / "slurm.conf"), "OMP_NUM_THREADS": "1"}
        self.environment = {**os.environ, **in_ranks(use_tiny, slow_first_turn), **ours}

    def start(self) -> None:
        folder, munge = self.folder, ["key-file=key", "socket=munge.socket", "pid-file=munge.pid", "log-file=munge.log"]
        absolute = [f"--{name}={folder}/{file}" for name, _, file in (one.partition("=") for one in munge)]
        self._run(["munged", "--force", *absolute, f"--seed-file={folder}/seed"])
        for node in NODES:
            command = ["unshare", "--net", "--uts", "--mount", "sleep", "infinity"]
            self._holders[node] = holder = subprocess.Popen(command)
            wait_for(lambda holder=holder: Path(f"/proc/{holder.pid}/comm").read_text() == "sleep\n")  # type: ignore[misc]
            setup = f"hostname {node}; mount --bind {folder}/hosts /etc/hosts; ip link set lo up"
            self.on(node, "sh", "-c", setup)
        self.on("one", "ip", "link", "add", "veth0", "type", "veth", "peer", "name", "veth0", "netns", self._pid("two"))
        for node, address in (("one", "10.77.0.1/24"), ("two", "10.77.0.2/24")):
            self.on(node, "sh", "-c", f"ip addr add {address} dev veth0; ip link set veth0 up")
        self.on("one", "slurmctld", "-c")
        for node in NODES:
            self.start_node(node)
        wait_for(lambda: self.on("one", "sinfo", "--noheader", "--format=%T").split() == ["idle"], 60)

    def start_node(self, node: str) -> None:
        self.on(node, "slurmd", "-N", node)

    def lose(self, node: str) -> None:
        """Kill everything on a node, as a power cut does."""
        own = Path(f"/proc/{self._pid(node)}/ns/uts").readlink()
        for process in psutil.process_iter():
            try:
                if process.pid != self._holders[node].pid and Path(f"/proc/{process.pid}/ns/uts").readlink() == own:
                    process.send_signal(signal.SIGKILL)
            except (OSError, psutil.Error):
                continue

    @property
    def program(self) -> Path:
        return Path(sys.prefix) / "bin" / "train"

    def stop(self) -> None:
        for file in self.folder.glob("*.pid"):
            self._run(["kill", file.read_text().strip()], check=False)
        for node, holder in self._holders.items():
            self.lose(node)
            holder.kill()
            holder.wait()

    def on(self, node: str, *command: str) -> str:
        """Run a command on a node and return its output."""
        return self._run(
            ["nsenter", f"--target={self._pid(node)}", "--net", "--uts", "--mount", f"--wd={self.folder}", *command]
        )

    def train(self, *words: str) -> str:
        return self.on("one", str(self.program), *words)

    def job(self, number: str) -> dict[str, str]:
        """Return Slurm's description of a job."""
        words = self.on("one", "scontrol", "--oneliner", "show", "job", number).split()
        return {key: value for key, _, value in (word.partition("=") for word in words)}

    def _pid(self, node: str) -> str:
        return str(self._holders[node].pid)

    def _run(self, command: list[str], *, check: bool = True) -> str:
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )
        assert not check or done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr
