"""Verify the folder of a speedrun by the configs and records in it, as data: nothing in it is unpickled or executed."""

import hashlib
import json
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

from launcher import atomic
from launcher.config.layers import leaves
from launcher.config.yaml_file import read_mapping
from launcher.counts import count_of
from launcher.data.index import read_index
from launcher.data.split import Split
from launcher.errors import Problems, UserError, first_few
from launcher.plan.epochs import dilated_epochs
from launcher.records.metrics import Row, is_whole, parse_line, without_void
from launcher.records.progress import wall_seconds
from launcher.records.run_folder import RunFolder, noted_datasets, run_folders
from launcher.regular import read_lines, read_regular
from launcher_lab.study.runs import facts_of
from launcher_lab.study.tracks import Track, p_value, refusals, rules, track

RECORD = "record.json"
_AGAIN = "copy the whole folder again"
# Keys of configs in which the runs differ, and of environments in which they are equal: the program and the machine.
_OWN = ("seed", "run_name")
_SAME = ("version", "commit", "cpu", "gpus")
# Seconds, and a fraction, by which two clocks of a run may differ.
_SECONDS, _FRACTION = 2.0, 0.02


@dataclass(frozen=True)
class RecordRun:
    """A run of a record: its folder's name, final top-1 in percent, minutes of training, and SHA-256 of its files."""

    seed: int
    name: str
    top1: float
    minutes: float
    sha256: Mapping[str, str]


@dataclass(frozen=True)
class SpeedrunResult:
    """What the runs of a folder show: `p` is that of their mean top-1 against the target, both in percent.

    Minutes are of training without evaluation and checkpoints, as in `RunSummary.times`. `runs_at_once`: the most runs
    of the record that trained at the same time on one machine. `index_sha256`: of each run's list of images.
    """

    track: str
    target: float
    recipe: str
    model: str
    epochs: int
    dataset: str
    hardware: str
    runs: Sequence[RecordRun]
    top1_mean: float
    top1_deviation: float
    minutes_mean: float
    minutes_deviation: float
    p: float
    reached: bool
    runs_at_once: int
    index_sha256: Sequence[str]


@dataclass(frozen=True)
class _Run:
    path: Path
    values: Mapping[str, Any]
    rows: Sequence[Row]
    environment: Mapping[str, Any]
    sha256: Mapping[str, str]
    index_sha256: str

    @property
    def seed(self) -> Any:
        return self.values.get("seed")

    @property
    def valid(self) -> list[Row]:
        return without_void(self.rows)


def verified(folder: Path) -> SpeedrunResult:
    """Recompute the result of a speedrun's folder.

    Raises UserError with everything that contradicts the rules of its track, the runs, or each other.
    """
    try:
        stated = json.loads(read_regular(folder / RECORD))
        name = str(stated["track"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise UserError(f"{folder} has no {RECORD} of a track; pass a folder of train speedrun") from None
    result = result_of(folder, track(name))
    plain = json.loads(json.dumps(asdict(result)))
    # note: records of older versions lack them
    stated = {**{name: plain[name] for name in ("runs_at_once", "index_sha256")}, **stated}
    if differ := [key for key in {**plain, **stated} if plain.get(key) != stated.get(key)]:
        raise UserError(f"{folder / RECORD} has other values than the runs: {', '.join(map(repr, differ))}; {_AGAIN}")
    return result


def write_record(folder: Path, result: SpeedrunResult) -> None:
    """Write what `verified` compares with the runs."""
    atomic.write_text(folder / RECORD, json.dumps(asdict(result), indent=2) + "\n")


def result_of(folder: Path, track: Track) -> SpeedrunResult:
    """Compute the result of the runs below a folder.

    Raises UserError with everything that contradicts the rules of the track, or each other.
    """
    runs = sorted(map(_read, [one.path for one in run_folders(folder)]), key=lambda run: str(run.seed).zfill(9))
    problems, seeds = Problems(), [run.seed for run in runs]
    if seeds != [*range(rules().runs)]:
        wanted = f"a record has {count_of(rules().runs, 'run')}, of seeds 0 to {rules().runs - 1}"
        shown = f"{count_of(len(runs), 'run')}, of seeds {', '.join(map(repr, seeds))}"
        raise UserError(f"{folder} has {shown}, and {wanted}; {_AGAIN}")
    for run in runs:
        problems += [replace(one, origin=run.path.name) for one in refusals(track, run.values)]
        with problems.collected():
            _check(run.path.name, [*_disagreements(run), *_trained_on_evaluated(run)])
    with problems.collected():
        _check(str(folder), _differences(runs, track.identity))
    problems.settle()
    return _result(track, runs)


def _check(place: str, faults: Iterable[str]) -> None:
    if listed := [*faults]:
        raise UserError(*(f"{place}: {fault}" for fault in listed))


def _read(path: Path) -> _Run:
    """Read a run as plain data; raises UserError if a file is missing or damaged, or a record has a wrong value."""
    folder, index = RunFolder(path), hashlib.sha256()
    values = dict(leaves(read_mapping(folder.config)))
    try:
        for file in sorted(folder.index.glob("*")):
            index.update(file.name.encode() + hashlib.sha256(read_regular(file, 1 << 30)).digest())
        files = {file.name: read_regular(file) for file in (folder.config, folder.environment, folder.dataset)}
        lines = [*read_lines(folder.metrics)]
        environment = json.loads(files[folder.environment.name])
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} lacks a readable file of a run: {error}; {_AGAIN}") from None
    rows = [parse_line(line) for line in lines if line]
    if wrong := [str(number) for number, row in enumerate(rows, 1) if row is None or not is_whole(row)]:
        raise UserError(f"{folder.metrics}: no whole records in lines {first_few(wrong)}; {_AGAIN}")
    if not isinstance(environment, dict):
        raise UserError(f"{folder.environment} has no values by name; {_AGAIN}")
    files[folder.metrics.name] = b"\n".join(lines)
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    return _Run(path, values, [row for row in rows if row], environment, digests, index.hexdigest())


def _disagreements(run: _Run) -> Iterator[str]:
    """Yield what contradicts each other in the config and the records of a run."""
    valid, values = run.valid, run.values
    of = {kind: [row for row in valid if row["kind"] == kind] for kind in ("start", "eval", "epoch", "end", "lost")}
    if not (len(of["start"]) == len(of["end"]) == 1 and of["eval"] and valid[-1]["kind"] == "end"):
        yield "is not one finished run"
        return
    (start,), (end,), last = of["start"], of["end"], of["eval"][-1]
    try:
        epochs = dilated_epochs(values["epochs"], values["schedule.dilate"])
    except (KeyError, TypeError, ValueError, OverflowError):
        yield "config.yaml has no length"
        return
    sizes = {row["world_size"] for row in run.rows if row["kind"] in ("start", "resume")}
    for what, recorded, expected in (
        ("the end", [end["finished"], end["ended_by"], end["step"]], [True, None, start["total_steps"]]),
        ("the last evaluation's step", last["step"], start["total_steps"]),
        ("its samples", last["samples"], values.get("dataset.val_samples")),
        ("the epochs", [start["epochs"], len(of["epoch"])], [epochs, epochs]),
        ("the metric", [start["primary"], [*last["metrics"]][:1]], ["top1", ["top1"]]),
        ("the numbers of processes", len(sizes), 1),
        ("lost records", len(of["lost"]), 0),
    ):
        if recorded != expected:
            yield f"the records have {what} as {recorded}, not {expected}"
    yield from _of_accuracy(of["eval"])
    yield from _of_clocks(run, end)


def _of_accuracy(evaluations: Sequence[Row]) -> Iterator[str]:
    for row in evaluations:
        correct = (row["metrics"].get("top1") or 0.0) * row["samples"]
        if not 0 <= correct <= row["samples"] or abs(correct - round(correct)) > 1e-3:
            yield f"step {row['step']}: top-1 is no fraction of {count_of(row['samples'], 'sample')}"


def _of_clocks(run: _Run, end: Row) -> Iterator[str]:
    """Yield where the seconds of steps, epochs, the run and the clock do not add up."""
    valid = run.valid
    clocks = [row["train_seconds"] for row in valid if "train_seconds" in row]
    if clocks != sorted(clocks):
        yield "the training time decreases"
    steps = [row for row in valid if row["kind"] == "train"]
    for before, row in pairwise([{"step": 0, "train_seconds": 0.0}, *steps]):
        yield from _unequal(
            f"step {row['step']}: the training time and that of its steps",
            row["train_seconds"] - before["train_seconds"],
            row["step_seconds"] * (row["step"] - before["step"]),
        )
    trained = end["train_seconds"]
    yield from _unequal("the training time and that of its epochs", trained, _sum(valid, "epoch", "seconds"))
    yield from _unequal("the time of evaluation and that of each", end["eval_seconds"], _sum(valid, "eval", "seconds"))
    wall, counted = wall_seconds([*run.rows]), trained + end["eval_seconds"] + end["save_seconds"]
    if any(row["kind"] == "resume" for row in run.rows):
        wall = min(wall, counted)  # note: steps that a resume repeats count once
    yield from _unequal("the clock, and the time of training, evaluation and checkpoints", wall, counted)


def _sum(rows: Iterable[Row], kind: str, name: str) -> float:
    return float(sum(row[name] for row in rows if row["kind"] == kind))


def _unequal(what: str, first: float, second: float) -> Iterator[str]:
    if abs(first - second) > _SECONDS + _FRACTION * max(first, second):
        yield f"{what} differ: {first:.1f} and {second:.1f} s"


def _trained_on_evaluated(run: _Run) -> Iterator[str]:
    """Yield whether images of the training are among those of the evaluation."""
    if (path := run.values.get("dataloader.train")) is not None and path == run.values.get("dataloader.val"):
        yield "trains on the images of the evaluation"
    try:
        index = read_index(RunFolder(run.path).index)
        train, val = (_places(index[split]) if split in index else set() for split in ("train", "val"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, EOFError):
        yield "its index cannot be read"
        return
    if both := len(train & val):
        yield f"trains on {count_of(both, 'image')} of the evaluation"


def _places(images: Split) -> set[tuple[str, int, str]]:
    pieces = map(images.piece, range(len(images.files)))
    return {(piece.file, piece.start, piece.column) for piece in pieces}


def _differences(runs: Sequence[_Run], identity: str | None) -> Iterator[str]:
    """Yield what differs between runs besides their seed, or from the data set of `identity`, and copies of a run."""
    first = runs[0]
    for run in runs[1:]:
        keys = dict.fromkeys([*first.values, *run.values])
        differ = [key for key in keys if key not in _OWN and first.values.get(key) != run.values.get(key)]
        differ += [key for key in _SAME if first.environment.get(key) != run.environment.get(key)]
        differ += [] if _device(first) == _device(run) else ["device"]
        if differ:
            yield f"{first.path.name} and {run.path.name} differ in {first_few(differ)}"
    identities = {identity for run in runs for identity in noted_datasets(RunFolder(run.path)) or ("none",)}
    if len(identities) > 1:
        yield "the runs have different data sets"
    elif identity and identities != {identity}:
        yield "the runs have another data set than the track"
    losses = {run.path.name: [row["loss"] for row in run.valid if row["kind"] in ("train", "eval")] for run in runs}
    for one, other in combinations(losses, 2):
        if losses[one] == losses[other]:
            yield f"{one} and {other} have equal losses: one is a copy"


def _device(run: _Run) -> str:
    start = next((row for row in run.rows if row["kind"] == "start"), {})
    return f"{start.get('world_size')}x {start.get('device')}"


def _result(track: Track, runs: Sequence[_Run]) -> SpeedrunResult:
    """Return the result of runs without contradictions."""
    values, listed = runs[0].values, []
    for run in runs:
        facts = facts_of([*run.rows])
        top1, minutes = facts["evaluations"][-1].top1, facts["times"].counted / 60
        listed.append(RecordRun(run.seed, run.path.name, top1, minutes, run.sha256))
    tops, minutes = [run.top1 for run in listed], [run.minutes for run in listed]
    p = p_value(tops, track.target)
    processor = f" ({runs[0].environment.get('cpu')})" if _device(runs[0]).endswith("x cpu") else ""
    return SpeedrunResult(
        track.name, track.target, str(values.get("recipe")), str(values.get("model.architecture")),
        dilated_epochs(values["epochs"], values["schedule.dilate"]), noted_datasets(RunFolder(runs[0].path))[-1],
        _device(runs[0]) + processor, listed, statistics.fmean(tops), statistics.stdev(tops), statistics.fmean(minutes),
        statistics.stdev(minutes), p, p < rules().p, _at_once(runs), [run.index_sha256 for run in runs],
    )  # fmt: skip


def _at_once(runs: Sequence[_Run]) -> int:
    """Return the most runs that trained at the same time on one machine."""
    spans = list[tuple[object, float, float]]()
    for run in runs:
        starts = [number for number, row in enumerate(run.rows) if row["kind"] in ("start", "resume")]
        for first, after in pairwise([*starts, len(run.rows)]):
            spans.append((run.environment.get("host"), run.rows[first]["time"], run.rows[after - 1]["time"]))
    return max(sum(one == host and start <= time < end for one, start, end in spans) for host, time, _ in spans)
