"""A Slurm of several nodes on this machine: Debian's programs, and for each node namespaces as of a machine of its own.

They are those of network, host name, mounts and processes; nothing in them outlives the process that starts the nodes.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.runs import in_ranks, slow_down, use_tiny, wait_for

# The first is also the login node, and has the controller and the network's bridge.
NODES = {"node1": "10.77.0.1", "node2": "10.77.0.2", "node3": "10.77.0.3"}
# Files in the cluster's folder: a rank waits in `stop_in_final_evaluation`; a node of `wait_for_loss` is lost.
EVALUATING, LOST = Path("evaluating"), Path("lost")
_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "unshare", "nsenter", "setpriv", "ip", "pkill")
# note: the kernel ends the namespaces of a node with this process, also after a kill
_NODE = "setpriv --pdeathsig KILL unshare --net --uts --mount --pid --fork --kill-child --mount-proc sleep infinity"
# note: cred_expire decides when a requeued job is eligible; its default is two minutes
_CONF = """\
ClusterName=test
SlurmctldHost=node1(10.77.0.1)
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
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def slow_first_turn() -> None:
    """Slow a run down until its job is requeued, and make a job that is stopped wait for it."""
    from launcher.rank.signs import STOP

    if "SLURM_RESTART_COUNT" not in os.environ:
        slow_down()
        if os.environ.get("SLURM_JOB_NAME") in ("cancelled", "limit"):
            _wait_after_step(30, lambda: STOP.requested)


def _wait_after_step(step: int, condition: Callable[[], bool]) -> None:
    from launcher.rank.signs import HEARTBEAT
    from launcher.training.trainer import Trainer

    count = Trainer.count

    def waiting(trainer: Trainer, *arguments: Any) -> None:
        count(trainer, *arguments)
        while trainer.next_step == step and not condition():
            HEARTBEAT.beat()
            time.sleep(0.1)

    Trainer.count = waiting  # type: ignore[assignment, method-assign]


def stop_in_final_evaluation() -> None:
    """Make the final evaluation of the job `limit` wait for a stop signal, the first time."""
    from launcher.rank.signs import STOP
    from launcher.training.trainer import Trainer

    evaluate = Trainer.evaluate

    def waiting(trainer: Trainer, *arguments: Any, **keywords: Any) -> Any:
        if trainer.next_step == trainer.plan.total_steps and not EVALUATING.exists():
            EVALUATING.touch()
            wait_for(lambda: STOP.requested)
        return evaluate(trainer, *arguments, **keywords)

    if os.environ.get("SLURM_JOB_NAME") == "limit":
        Trainer.evaluate = waiting  # type: ignore[assignment, method-assign]


def wait_for_loss() -> None:
    """Make the second turn of the job `pair` wait in the middle until one of its nodes is lost."""
    if (os.environ.get("SLURM_JOB_NAME"), os.environ.get("SLURM_RESTART_COUNT")) == ("pair", "1"):
        _wait_after_step(90, LOST.exists)


def missing() -> str | None:
    """Return why Slurm cannot run here; None if it can."""
    if absent := [name for name in _PROGRAMS if shutil.which(name) is None]:
        return f"{', '.join(absent)} not installed; as root, make setup-rest installs Slurm"
    if subprocess.run([*_NODE.split()[:-2], "true"], capture_output=True, check=False).returncode:
        return "namespaces of network, host name, mounts and processes need root"
    return None


class Cluster:
    """The cluster; `folder` has its files and is the working directory of its jobs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._holders: dict[str, subprocess.Popen[bytes]] = {}
        for name in ("state", *(f"spool-{node}" for node in NODES)):
            (folder / name).mkdir()
        nodes = "\n".join(f"NodeName={node} NodeAddr={address} CPUs=2" for node, address in NODES.items())
        (folder / "slurm.conf").write_text(_CONF.format(folder=folder, nodes=nodes))
        hosts = {"localhost": "127.0.0.1", **NODES}
        (folder / "hosts").write_text("".join(f"{address} {host}\n" for host, address in hosts.items()))
        (folder / "key").write_bytes(os.urandom(128))
        (folder / "key").chmod(0o600)
        self.environment = {
            **os.environ,
            **in_ranks(use_tiny, slow_first_turn, stop_in_final_evaluation, wait_for_loss),
        }
        self.environment |= {"SLURM_CONF": str(folder / "slurm.conf"), "OMP_NUM_THREADS": "1"}

    def start(self) -> None:
        for node in NODES:
            self._holders[node] = subprocess.Popen(_NODE.split())
            wait_for(lambda node=node: self._has_started(node))  # type: ignore[misc]
            self.sh(node, f"hostname {node}; mount --bind {self.folder}/hosts /etc/hosts; ip link set lo up")
        self.sh("node1", f"ip link add net type bridge; ip addr add {NODES['node1']}/24 dev net; ip link set net up")
        for node in list(NODES)[1:]:
            peer = ["type", "veth", "peer", "name", "net", "netns", self._first_process(node)]
            # note: the process has this id outside of the nodes only
            self._run("node1", ["--net"], "ip", "link", "add", node, *peer)
            self.sh("node1", f"ip link set {node} master net; ip link set {node} up")
            self.sh(node, f"ip addr add {NODES[node]}/24 dev net; ip link set net up")
        self._start_munge()
        self.on("node1", "slurmctld", "-c")
        for node in NODES:
            self.start_node(node)
        wait_for(lambda: self.on("node1", "sinfo", "--noheader", "--format=%T").split() == ["idle"], 60)

    def start_node(self, node: str) -> None:
        """Start a node's Slurm, and connect it to the others if it was lost."""
        if node != "node1":
            self.on("node1", "ip", "link", "set", node, "up")
        self.on(node, "slurmd", "-N", node)

    def lose(self, node: str) -> None:
        """Cut a node off, then kill everything on it: a power cut, after which no packet is sent."""
        self.on("node1", "ip", "link", "set", node, "down")
        self.sh(node, "kill -KILL -1")
        (self.folder / LOST).touch()

    def stop(self) -> None:
        for holder in self._holders.values():
            holder.kill()
            holder.wait()

    def on(self, node: str, *command: str) -> str:
        """Run a command on a node and return its output."""
        return self._run(node, ["--net", "--uts", "--mount", "--pid", f"--wd={self.folder}"], *command)

    def sh(self, node: str, script: str) -> str:
        return self.on(node, "sh", "-c", script)

    def train(self, *words: str) -> str:
        return self.on("node1", str(Path(sys.prefix) / "bin" / "train"), *words)

    def job(self, number: str) -> dict[str, str]:
        """Return Slurm's description of a job."""
        words = self.on("node1", "scontrol", "--oneliner", "show", "job", number).split()
        return {key: value for key, _, value in (word.partition("=") for word in words)}

    def _start_munge(self) -> None:
        files = {"key-file": "key", "socket": "munge.socket", "pid-file": "munge.pid", "log-file": "munge.log"}
        options = [f"--{name}={self.folder}/{file}" for name, file in {**files, "seed-file": "seed"}.items()]
        self.on("node1", "munged", "--force", *options)

    def _has_started(self, node: str) -> bool:
        first = self._first_process(node)
        return bool(first) and Path(f"/proc/{first}/comm").read_text() == "sleep\n"

    def _first_process(self, node: str) -> str:
        """Return the process whose namespaces are those of the node; empty before it starts."""
        holder = self._holders[node].pid
        return Path(f"/proc/{holder}/task/{holder}/children").read_text().strip()

    def _run(self, node: str, namespaces: list[str], *command: str) -> str:
        whole = ["nsenter", f"--target={self._first_process(node)}", *namespaces, *command]
        done = subprocess.run(whole, env=self.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{node}: {command}: {done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr
