"""mlperf.log against the public compliance checker, and its events by hand."""

import json
from pathlib import Path
from typing import Any

import pytest

from launcher.config.compose import compose
from launcher.errors import UserError
from launcher.plan.plan import Plan
from launcher.records.metrics import EndRecord, EpochRecord, EvalRecord, Record, ResumeRecord, StartRecord, read_metrics
from launcher.records.run_folder import RunFolder
from launcher_lab.cli.mlperf import as_text, log
from tests.made_runs import append

RULES = "4.0.0"  # note: the last rules with ResNet-50


def plan(*words: str) -> Plan:
    return Plan(compose(["dataset=shapes", "batch_size=10", "schedule.warmup=0ba", *words]).config, 1, 100)


def records(*, finished: bool = True) -> list[Record]:
    listed: list[Record] = [StartRecord(0, 1000.0, 1, 20, 2, "cpu", "float32", "top1", "higher")]
    for epoch in (1, 2):
        time = 1000.0 + 20 * epoch
        listed.append(EpochRecord(10 * epoch, time - 5, epoch, 1.0, 15.0, 10.0, 0.0, 15.0 * epoch))
        listed.append(
            EvalRecord(10 * epoch, time, epoch, {"top1": 0.4 * epoch, "top5": 0.9}, 1.0, 50, 5.0, 15.0 * epoch)
        )
    return [*listed, EndRecord(20, 1041.0, finished, 30.0, 10.0, 1.0)]


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    (tmp_path / "config.yaml").write_text("{}")
    return RunFolder(tmp_path)


def lines(folder: RunFolder, run: Plan, rows: list[Record]) -> list[dict[str, Any]]:
    append(folder.metrics, *rows)
    text = as_text(run, read_metrics(folder.metrics), folder.config.stat().st_mtime)
    (folder.path / "mlperf.log").write_text(text)
    return [json.loads(line.removeprefix(":::MLLOG ")) for line in text.splitlines()]


def status(events: list[dict[str, Any]]) -> list[str]:
    return [line["metadata"]["status"] for line in events if line["key"] == "run_stop"]


@pytest.mark.parametrize(
    ("optimizer", "finished"), [("decoupled_sgd", True), ("lamb", True), ("lars", True), ("sgd", False)]
)
def test_the_public_checker_accepts_only_a_finished_run(folder: RunFolder, optimizer: str, finished: bool) -> None:
    checker = pytest.importorskip("mlperf_logging.compliance_checker.mlp_compliance")
    lines(folder, plan(f"optimizer={optimizer}"), records(finished=finished))
    check = checker.make_checker("training", RULES, quiet=False, werror=True)
    assert check.check_file(str(folder.path / "mlperf.log"), f"training_{RULES}/common.yaml") == finished
    assert not (check.warnings and finished)


def test_lars_has_the_keys_of_the_closed_division(folder: RunFolder) -> None:
    words = ["optimizer=lars", "schedule=polynomial", "schedule.warmup=1ep", "epochs=3"]
    values = {line["key"]: line["value"] for line in lines(folder, plan(*words), records())}
    assert {key for key in values if "opt_" in key or "lars" in key} == {
        *("opt_name", "lars_epsilon", "lars_opt_base_learning_rate", "lars_opt_end_learning_rate"),
        *("lars_opt_learning_rate_decay_poly_power", "lars_opt_learning_rate_decay_steps"),
        *("lars_opt_learning_rate_warmup_epochs", "lars_opt_momentum", "lars_opt_weight_decay"),
    }
    assert values["opt_name"] == "lars"
    assert values["lars_opt_learning_rate_decay_steps"] == 20


def test_events_by_hand(folder: RunFolder) -> None:
    events = lines(folder, plan(), records())
    steps = [line for line in events if line["key"].startswith(("epoch_", "eval_")) and line["key"] != "eval_samples"]
    after = {"epoch_start": 0, "epoch_stop": 15_000, "eval_start": 15_000, "eval_accuracy": 20_000, "eval_stop": 20_000}
    assert [(line["key"], line["time_ms"], line["metadata"]["epoch_num"]) for line in steps] == [
        (key, start + time, epoch) for epoch, start in ((1, 1_000_000), (2, 1_020_000)) for key, time in after.items()
    ]
    values = {line["key"]: line["value"] for line in events}
    assert (values["global_batch_size"], values["train_samples"], values["opt_name"]) == (10, 100, "sgd")
    assert values["eval_accuracy"] == pytest.approx(0.8)


def test_a_missed_target_has_the_status_aborted(folder: RunFolder) -> None:
    assert status(lines(folder, plan("target=top1:0.8"), records())) == ["success"]
    assert status(lines(folder, plan("target=top1:0.81"), records())) == ["aborted"]


def test_a_resumed_run_has_each_epoch_once(folder: RunFolder) -> None:
    start, *rest = records()
    again = ResumeRecord(10, 1020.0, 1)
    void = EpochRecord(20, 1030.0, 2, 1.0, 15.0, 10.0, 0.0, 30.0)
    events = lines(folder, plan(), [start, *rest[:2], void, EndRecord(20, 1031.0, False, 0, 0, 0), again, *rest[2:]])
    assert [line["metadata"]["epoch_num"] for line in events if line["key"] == "epoch_stop"] == [1, 2]
    assert status(events) == ["success"]


def test_a_run_without_records_has_no_log(folder: RunFolder) -> None:
    with pytest.raises(UserError, match="has no records yet"):
        log(folder)
