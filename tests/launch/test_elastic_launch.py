"""Two real ranks, started by a launcher in another process; all processes of a run have its working directory."""

import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from torch.distributed.elastic.agent.server import WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs

from launcher.config.compose import compose
from launcher.console import console
from launcher.files.log_lines import of_a_rank
from launcher.launch.devices import Devices
from launcher.launch.elastic import Launcher
from launcher.records.progress import TerminalView
from tests import patience
from tests.forked import Command
from tests.runs import ended, processes_of, wait_for

HERE = Path(__file__).parent

Start = Callable[..., Command]


def two_nodes() -> list[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return ["launch.nnodes=2", f"launch.rdzv=127.0.0.1:{free.getsockname()[1]}"]


def is_listening(rendezvous: str) -> bool:
    host, port = rendezvous.partition("=")[2].split(":")
    with suppress(OSError), socket.create_connection((host, int(port))):
        return True
    return False


def both(run: Path, name: str) -> Callable[[], bool]:
    return lambda: all((run / f"{name}-{rank}").exists() for rank in (0, 1))


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "runs" / "run"
    folder.mkdir(parents=True)
    yield folder
    left = processes_of(folder)
    for process in left:
        process.kill()
    assert not left


@pytest.fixture
def start(run: Path) -> Start:
    def started(target: str, *overrides: str) -> Command:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1])])}
        environment.pop("OMP_NUM_THREADS", None)
        environment["TORCH_CPP_LOG_LEVEL"] = "FATAL"
        return Command(
            ["launch_driver", str(run), target, *overrides], run.parents[1], environment, before=(patience.of_elastic,)
        )

    return started


def test_two_ranks_share_the_cores_and_append_to_their_logs(start: Start, run: Path) -> None:
    output = ""
    for _ in range(2):
        process = start("succeed")
        output += process.communicate(timeout=240)[0]
        assert process.returncode == 0
    for rank in (0, 1):
        logged = (run / "logs" / f"rank-{rank}.log").read_text().splitlines()
        assert [*map(of_a_rank, logged)] == [f"rank {rank} of 2 was here"] * 2
        assert (run / f"frames-{rank}").read_text() == "shown"
        assert int((run / f"threads-{rank}").read_text()) == max(1, len(os.sched_getaffinity(0)) // 2)
    assert output == "rank 0 of 2 was here\n" * 2
    assert sorted(path.name for path in (run / "logs").iterdir()) == ["rank-0.log", "rank-1.log"]


def test_an_exception_ends_a_blocked_peer_and_its_workers(start: Start, run: Path) -> None:
    process = start("second_raises")
    wait_for(both(run, "child"))
    _, errors = process.communicate(timeout=200)  # elastic would wait 300 s
    assert process.returncode == 1
    assert errors.startswith("error: rank 1 failed: ValueError: broken on purpose (host ")
    assert 'raise ValueError("broken on purpose")' in errors
    assert "broken on purpose" in (run / "logs" / "rank-1.log").read_text()


@pytest.mark.slow
def test_the_cause_is_printed_and_not_the_lost_connection_of_the_peer(start: Start, run: Path) -> None:
    output, errors = ended(start("second_raises_before_a_barrier"), 1)
    assert errors.startswith("error: rank 1 failed: ValueError: broken on purpose")
    assert "Traceback" in (run / "logs" / "rank-0.log").read_text()
    assert "Traceback" not in output


def test_a_user_error_in_a_rank_prints_only_its_lines(start: Start, run: Path) -> None:
    output, errors = ended(start("second_is_misused"), 2)
    assert (output, errors) == ("", "dataset.path=there: set another\nand check the step\n")


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)]
)
def test_a_stop_signal_lets_the_ranks_save_a_checkpoint(
    start: Start, run: Path, number: signal.Signals, code: int
) -> None:
    process = start("save_on_request")
    wait_for(both(run, "ready"))
    process.send_signal(number)
    process.send_signal(number)
    output, _ = ended(process, code)
    assert both(run, "saved")()
    assert "press Ctrl-C again to stop at once" in output


@pytest.mark.slow
def test_a_stop_signal_to_every_process_acts_like_one_to_the_launcher(start: Start, run: Path) -> None:
    process = start("save_on_request")
    wait_for(both(run, "ready"))
    for member in processes_of(run):
        with suppress(psutil.NoSuchProcess):  # note: a child may have ended since
            member.send_signal(signal.SIGTERM)
    ended(process, 143)
    assert both(run, "saved")()


@pytest.mark.slow
def test_a_second_ctrl_c_stops_blocked_ranks_at_once(start: Start, run: Path) -> None:
    process = start("never_end")
    wait_for(both(run, "ready"))
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    ended(process, 130)


@pytest.mark.slow
def test_a_stop_signal_ends_the_wait_for_the_ranks_of_another_node(start: Start, run: Path) -> None:
    several = two_nodes()
    other = start("save_on_request", *several)
    process = start("succeed", *several)
    wait_for(lambda: len(list(run.glob("ready-*"))) == len(list(run.glob("threads-*"))) == 2)
    # note: the launcher has no sign of its wait
    time.sleep(2)
    before = time.monotonic()
    process.send_signal(signal.SIGTERM)
    ended(process, 143)
    assert time.monotonic() - before < 200, "elastic itself waits for 300 s"
    other.send_signal(signal.SIGTERM)
    ended(other, 143)


@pytest.mark.slow
def test_a_node_that_was_stopped_does_not_wait_for_a_lost_one(start: Start, run: Path) -> None:
    several = two_nodes()
    lost = start("never_end", *several)
    wait_for(lambda: is_listening(several[1]))
    process = start("save_slowly", *several)
    wait_for(lambda: len(list(run.glob("ready-*"))) == 4)
    process.send_signal(signal.SIGTERM)
    lost.kill()
    before = time.monotonic()
    ended(process, 143)
    assert time.monotonic() - before < 200
    assert len(list(run.glob("saved-*"))) == 2


@pytest.mark.slow
def test_ranks_that_another_node_stopped_are_no_finished_run(start: Start) -> None:
    output, _ = ended(start("be_stopped"), 143)
    assert output == "stopped, since a rank or another node has received a stop signal\n"


@pytest.mark.slow
def test_a_failed_checkpoint_after_a_stop_request_is_a_failure(start: Start, run: Path) -> None:
    process = start("fail_on_request")
    wait_for(both(run, "ready"))
    process.send_signal(signal.SIGTERM)
    _, errors = ended(process, 1)
    assert errors.startswith("error: rank 1 failed: OSError: no space to save")


def test_ranks_restart_from_a_checkpoint(start: Start, run: Path) -> None:
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "step-00000010.pt").touch()
    output, _ = ended(start("fail_once", "launch.max_restarts=2"))
    assert (run / "continued-1").exists()
    assert "error: rank 1 failed: ValueError: broken once" in output
    assert "restarting from the newest checkpoint (1 of 2)" in output
    logged = (run / "logs" / "rank-0.log").read_text().splitlines()
    assert [*map(of_a_rank, logged)] == ["rank 0 starts"] * 2


@pytest.mark.slow
def test_an_error_before_the_first_checkpoint_is_not_retried(start: Start, run: Path) -> None:
    _, errors = ended(start("fail_once", "launch.max_restarts=2"), 1)
    assert errors.startswith("error: rank 1 failed: ValueError: broken once")


@pytest.mark.slow
def test_ranks_that_never_connect_end_the_first_attempt_and_are_all_named(
    start: Start, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECONDS_TO_CONNECT", "4")
    output, errors = ended(start("second_never_connects", "launch.max_restarts=3"), 1)
    assert "restarting" not in output
    assert output.count("connecting 2 processes") == 1
    assert errors.startswith("error: ranks 0, 1 did not connect within 4 s; "), errors
    assert re.search(r"; ranks 0, 1 in join_ranks \(group\.py:\d+\); ", errors)
    assert "try NCCL_P2P_DISABLE=1, or type train doctor" in errors


@pytest.mark.slow
def test_a_gpu_lost_before_a_restart_does_not_move_the_run_to_the_cpu(start: Start, run: Path) -> None:
    output, errors = ended(start("gpu_lost_before_a_restart", "launch.device=cuda", "launch.max_restarts=1"), 1)
    assert "restarting from the start (1 of 1)" in output
    assert re.match(r"error: rank \d: GPU \d failed after startup detected it: ", errors), errors
    assert not any((run / f"trained-{rank}").exists() for rank in (0, 1))


@pytest.mark.slow
def test_restarts_are_limited_and_the_likely_cause_is_reported(start: Start, run: Path) -> None:
    output, errors = ended(start("second_is_killed", "launch.max_restarts=2"), 1)
    assert [f"({number} of 2)" in output for number in (1, 2, 3)] == [True, True, False]
    first, *rest = errors.splitlines()
    assert first.startswith("error: rank 1 failed: killed by SIGKILL, probably out of memory")
    assert rest == ["a line of rank 1"] * 3 + [f"full log: {run / 'logs' / 'rank-1.log'}"]


def test_the_agent_has_no_argument_that_pytorch_2_11_lacks(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Agent(LocalElasticAgent):
        def __init__(self, spec: WorkerSpec, logs_specs: DefaultLogsSpecs):
            raise NotImplementedError("reached")

    monkeypatch.setattr("launcher.launch.elastic.LocalElasticAgent", Agent)
    settings = compose(["launch=cpu"]).config.launch
    with pytest.raises(NotImplementedError, match="reached"):
        Launcher(run, Devices("cpu", 1), settings, TerminalView(console())).run()
