"""Several loggers at once: `logger=[tensorboard,wandb,mlflow]`, their values, and a run that some of them fail."""

import sys
import time
from unittest.mock import MagicMock

import pytest

from launcher import installation
from launcher.config.compose import compose
from launcher.loggers import several
from launcher.loggers.remote import RemoteSink
from launcher.loggers.several import SeveralSinks
from launcher.records.metrics import read_metrics
from tests.commands import output_of, refused
from tests.made_runs import end, evaluation
from tests.runs import SMALL, Here
from tests.tracking_server import Server

URI = "logger.mlflow.uri=http://127.0.0.1:9"


def test_a_list_turns_on_each_logger_with_its_own_values() -> None:
    words = ["logger.wandb.project=mine", "logger=[tensorboard,wandb,mlflow]", URI, "logger.interval=7ba"]
    logger = compose(words).config.logger
    assert (logger.name, logger.interval, logger.tensorboard) == ("several", "7ba", True)
    assert (logger.wandb.project, logger.wandb.entity, logger.mlflow.experiment) == ("mine", None, "train")  # type: ignore[attr-defined]
    assert logger.mlflow.uri == "http://127.0.0.1:9"  # type: ignore[attr-defined]
    one = compose(["logger=[wandb,jsonl]", "logger.wandb.project=mine"]).config.logger
    assert (one.wandb.project, one.mlflow, one.tensorboard) == ("mine", None, False)  # type: ignore[attr-defined]
    assert compose(["logger=[wandb]", "logger.project=mine"]).config.logger.project == "mine"  # type: ignore[attr-defined]
    assert "logger.wandb.project=mine" in output_of("show", *words, "--origin")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["logger=[wandb,mlfow]"], "logger=[wandb,mlfow] (command line): no such logger; did you mean mlflow?"),
        (["logger=wandb,mlflow"], "no such logger; type logger=[wandb,mlflow]"),
        (["logger=[]"], "logger=[] (command line): takes one option; type logger=NAME"),
        (["model=[resnet18,resnet50]"], "takes one option; type model=NAME"),
        (["logger=[wandb,mlflow]", "logger.wandb.projeckt=a"], "did you mean logger.wandb.project?"),
    ],
)
def test_a_wrong_list_is_refused(words: list[str], message: str) -> None:
    assert message in refused("show", *words)


def test_each_logger_is_checked_by_its_own_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(installation, "_is_installed", lambda module: module != "wandb")
    code_and_lines = refused("logger=[tensorboard,mlflow]", "launch=cpu")
    assert "logger.mlflow.uri=null: no server; set logger.mlflow.uri=http://HOST:5000" in code_and_lines
    assert "logger=wandb: needs the package wandb" in refused("logger=[tensorboard,wandb]", "launch=cpu")


def test_a_run_does_not_notice_loggers_that_fail_and_resumes_with_them(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, library = MagicMock(), MagicMock(Error=OSError)
    broken.MlflowClient.side_effect = ValueError("this library is broken")
    monkeypatch.setitem(sys.modules, "mlflow", broken)
    monkeypatch.setitem(sys.modules, "mlflow.entities", broken)
    monkeypatch.setitem(sys.modules, "wandb", library)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    monkeypatch.setattr(installation, "_is_installed", lambda module: True)
    words = [word for word in SMALL if not word.startswith("logger.tensorboard")]
    process = here(*words, "run_name=a", "logger=[tensorboard,wandb,mlflow]", "logger.wandb.mode=offline", URI)
    lines = [line for line in process.stdout.splitlines() if line.startswith("warning: ")]
    assert len(lines) == 2, process.stdout
    assert any("MLflow: this library is broken; training continues" in line for line in lines)
    assert any("TensorBoard failed" in line for line in lines)
    run = here.folder / "runs" / "a"
    rows = [row for row in read_metrics(run / "metrics.jsonl") if row["kind"] == "train"]
    sent = [call.args[0] for call in library.init.return_value.log.call_args_list]
    assert [values["step"] for values in sent if "train/loss" in values] == [row["step"] for row in rows]
    here("resume", str(run), "epochs=4")
    assert len({call.kwargs["id"] for call in library.init.call_args_list}) == 1


def test_servers_that_never_respond_share_the_seconds_of_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(several, "CLOSE_SECONDS", 6)
    servers = [Server(), Server(), Server()]
    for server in servers[1:]:
        server.responds.clear()
    sinks = SeveralSinks([RemoteSink(f"server {number}", server) for number, server in enumerate(servers)])
    sinks.write(evaluation(10))
    sinks.write(end(20))
    start = time.monotonic()
    sinks.close()
    assert time.monotonic() - start < 11, "one after the other, they take 12 s"
    assert (servers[0].steps, servers[0].outcome) == ([10, 20], "finished")
    assert capsys.readouterr().out.count("warning: server ") == 2
    for server in servers:
        server.responds.set()
