"""The logger for Prometheus: a text file in the run folder, read by Prometheus' own parser."""

from pathlib import Path

import pytest

from launcher.config.compose import compose
from launcher.loggers.prometheus import PrometheusSink
from launcher.records.metrics import NonFiniteRecord, ResumeRecord, WarningRecord, read_metrics
from launcher.records.run_folder import RunFolder
from tests.made_runs import end, evaluation, log, training
from tests.runs import SMALL, Train

parser = pytest.importorskip("prometheus_client.parser")


def samples(run: Path) -> dict[tuple[str, ...], float]:
    """Return the values of the file by name and labels, without that of the run, which all have."""
    families = parser.text_string_to_metric_families((run / "metrics.prom").read_text())
    found = {}
    for name, labels, value, *_ in (sample for family in families for sample in family.samples):
        assert labels.pop("run") == str(run)
        found[name, *labels.values()] = value
    return found


def test_a_run_has_its_state_in_one_file_and_a_resume_goes_on(train: Train) -> None:
    words = [word for word in SMALL if not word.startswith("logger.tensorboard")]
    train(*words, "run_name=a", "logger=[tensorboard,prometheus]")
    run = train.folder / "runs" / "a"
    rows, found = read_metrics(run / "metrics.jsonl"), samples(run)
    last, evaluated = ([row for row in rows if row["kind"] == kind][-1] for kind in ("train", "eval"))
    assert found["train_step",] == found["train_checkpoint_step",] == found["train_evaluated_step",] == 18
    assert (found["train_epoch",], found["train_loss",]) == (3, last["loss"])
    assert found["train_samples_per_second",] == last["samples_per_second"]
    assert {key[1]: value for key, value in found.items() if key[0] == "train_metric"} == evaluated["metrics"]
    assert found["train_state", "finished"] == 1
    assert found["train_state", "training"] == found["train_state", "stopped"] == 0
    assert list((run / "tensorboard").iterdir())
    assert [path.name for path in run.iterdir() if path.suffix == ".tmp"] == []
    assert [path.name for path in train.folder.iterdir()] == ["runs"]
    train("resume", str(run), "epochs=4", "logger=prometheus")
    assert samples(run)["train_step",] == 24


def test_what_is_not_finite_or_slow_is_counted_until_a_resume(folder: RunFolder) -> None:
    sink = PrometheusSink(folder)
    for record in (NonFiniteRecord(2, 3.0, None, "skip", [[0]]), WarningRecord(3, 3.5, "slow data", "waits")):
        sink.write(record)
    found = samples(folder.path)
    assert (found["train_nonfinite_steps",], found["train_warnings",]) == (1, 1)
    sink.write(ResumeRecord(1, 4.0, 1))
    found = samples(folder.path)
    assert (found["train_nonfinite_steps",], found["train_warnings",], found["train_state", "training"]) == (0, 0, 1)


def test_the_file_is_written_at_most_once_a_second_in_training(folder: RunFolder) -> None:
    sink = PrometheusSink(folder)
    for step in (1, 2, 3):
        sink.write(training(step))
    assert samples(folder.path)["train_step",] == 1
    sink.write(evaluation(3))
    assert samples(folder.path)["train_step",] == 3


def test_a_file_that_cannot_be_written_is_one_warning(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    folder.prometheus.mkdir()
    log(folder, compose(["logger=prometheus"]).config, evaluation(1), end(1, finished=False))
    assert capsys.readouterr().out.count("warning: logger=prometheus failed") == 1
    assert len(read_metrics(folder.metrics)) == 2
