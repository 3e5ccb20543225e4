"""Names and locks of run folders."""

import errno
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from launcher.config.compose import compose
from launcher.errors import UserError
from launcher.records.run_folder import RunFolder, create, existing


def test_run_names_are_unique(tmp_path: Path) -> None:
    assert create(tmp_path, "a", unique=True).path.name == "a-1"
    assert create(tmp_path, "a", unique=True).path.name == "a-2"
    (create(tmp_path, "b", unique=False).path / "config.yaml").touch()
    with pytest.raises(UserError, match="set another run_name"):
        create(tmp_path, "b", unique=False)
    with pytest.raises(UserError, match="not a run folder"):
        existing(str(tmp_path))


def test_two_processes_cannot_lock_a_folder(folder: RunFolder) -> None:
    code = (
        "import sys; from pathlib import Path; from launcher.records.run_folder import RunFolder\n"
        "with RunFolder(Path(sys.argv[1])).locked(): print('held')"
    )
    command = [sys.executable, "-c", code, str(folder.path)]
    with folder.locked():
        refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "in use by process" in refused.stderr
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "held\n"


@pytest.mark.parametrize(
    ("words", "holders"),
    [([], 1), (["launch.rdzv=10.0.0.1:29400"], 1), (["launch.rdzv=127.0.0.1:29400"], 3), (["launch.rdzv=[::1]:5"], 3)],
)
def test_each_node_of_a_machine_locks_the_folder(folder: RunFolder, words: list[str], holders: int) -> None:
    launch = compose([*words, *(["launch.nnodes=3"] if words else [])]).config.launch
    with ExitStack() as stack:
        for _ in range(holders):
            stack.enter_context(folder.locked(nodes=launch.nnodes, nodes_here=launch.nodes_here))
        with pytest.raises(UserError, match="in use by process"):
            stack.enter_context(folder.locked(nodes=launch.nnodes, nodes_here=launch.nodes_here))
    with folder.locked(nodes=launch.nnodes, nodes_here=launch.nodes_here):
        assert folder.hosts() == {socket.gethostname()}


WITHOUT_LOCKS = """
import errno, fcntl, os, sys, time
from pathlib import Path
from launcher.files import locks
from launcher.records.run_folder import RunFolder
def flock(*_): raise OSError(int(sys.argv[2]), "no locks")
fcntl.flock, locks._SECONDS = flock, float(sys.argv[3])
with RunFolder(Path(sys.argv[1])).locked():
    print("held", flush=True)
    time.sleep(float(sys.argv[4]))
"""


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_folder_without_locks_is_leased_until_its_process_or_heartbeat_ends(folder: RunFolder, number: int) -> None:
    def start(heartbeat: float, seconds: float) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", WITHOUT_LOCKS, str(folder.path), str(number), str(heartbeat), str(seconds)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    holder = start(30, 100)
    assert holder.stdout.readline() == "held\n"  # type: ignore[union-attr]
    assert folder.is_locked()
    _, refused = start(30, 0).communicate()
    assert f"is in use by process {holder.pid} on {socket.gethostname()}" in refused
    holder.kill()
    assert holder.communicate()[1].startswith(f"note: the file system of {folder.path} has no locks; a lease")
    assert start(30, 0).communicate()[0] == "held\n"
    assert not folder.is_locked()
    # note: the lease of a process on another machine that has ended; only its heartbeat shows that
    holder = start(1, 100)
    assert holder.stdout.readline() == "held\n"  # type: ignore[union-attr]
    holder.kill()
    holder.communicate()
    lease = folder.path / ".lock.lease"
    lease.write_text(lease.read_text().replace(f"host={socket.gethostname()}", "host=elsewhere"))
    assert start(1, 0).communicate()[0] == "held\n"
