"""`train speedrun track=TRACK recipe=RECIPE`: train the runs of a record, test it, and keep what verifies it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from launcher.config.compose import compose
from launcher.config.layers import COMMAND_LINE, leaves
from launcher.config.overrides import word_of
from launcher.config.resolved import as_mapping
from launcher.config.schema import RunConfig
from launcher.console import console, only_json, print_json, table, verbatim
from launcher.counts import count_of
from launcher.data.identity import identity
from launcher.errors import Problem, UserError
from launcher_lab.cli.curve import check_all, expand
from launcher_lab.cli.grid_job import SLURM, submit_array, take_job_words
from launcher_lab.cli.training import PARALLEL, Cell, Training, parts
from launcher_lab.study.ablation import alternatives
from launcher_lab.study.tracks import Track, refusals, rules, track
from launcher_lab.study.verify import SpeedrunResult, result_of, verified, write_record

EXAMPLES = [
    "train speedrun track=78.1 recipe=mild epochs=50 dataset.path=/data/imagenet",
    "train speedrun track=shapes recipe=small dataset=shapes dataset.native_size=32 epochs=8",
    "train speedrun track=own:62.5 recipe=small dataset.path=/data/flowers epochs=20",
    "train speedrun --verify runs/speedrun-78.1-mild-50ep",
]
_TRACK = "track="
# Words that the rules decide.
_OURS = {
    "seed": "the runs of a record have the seeds of its rules, so that none is chosen; omit it",
    "run_name": "cannot be set for several runs; set the parent folder with runs=FOLDER",
}


def configure(parser: argparse.ArgumentParser) -> None:
    verify = "verify the folder of a record from its configs and records alone; words such as dataset.path=FOLDER also "
    parser.add_argument("--verify", metavar="FOLDER", help=f"{verify}compare its data set with yours")
    parser.add_argument("--parallel", type=int, default=1, metavar="N", help=PARALLEL)
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--slurm", action="store_true", help=SLURM)
    instead.add_argument("--json", action="store_true", help="print one JSON object")
    words = "track=75.9, 78.1, 80.0, 81.0 (ImageNet), shapes, or own:TOP1, and the values of the runs"
    parser.add_argument("overrides", nargs="*", metavar="key=value", help=words)


def main(arguments: argparse.Namespace) -> int:
    if arguments.verify is not None:
        return _show(_verify(Path(arguments.verify), arguments.overrides), is_json=arguments.json)
    job_words = take_job_words(arguments)
    chosen, words = _track(arguments.overrides)
    cells, folder = _cells(chosen, words)
    _check(chosen, cells[0].composed.config, are_counted=False)
    machine = parts(arguments.parallel, cells[0].composed.config.launch.device)
    prepared = check_all(cells, here=not arguments.slurm, gpus=machine[0].count)
    if arguments.slurm:
        return submit_array(cells, prepared, (["speedrun", *arguments.overrides],), job_words, {})
    _check(chosen, prepared[0].plan.config)
    training = Training(cells, machine)
    with only_json(arguments.json):
        code = training.run()
    if code is not None:
        return code
    if {*training.outcomes.values()} - {"finished", "already finished"}:
        return 1
    result = result_of(folder, chosen)
    write_record(folder, result)
    return _show(result, is_json=arguments.json, folder=folder)


def _track(words: Sequence[str]) -> tuple[Track, list[str]]:
    """Return the track, and the other words.

    Raises UserError if there is no track, or a word that the rules decide or with several values.
    """
    names = [word.removeprefix(_TRACK) for word in words if word.startswith(_TRACK)]
    if len(names) != 1:
        raise UserError("set one track, such as track=78.1")
    others = [word for word in words if not word.startswith(_TRACK)]
    pairs = [(key, value) for key, _, value in (word.partition("=") for word in others)]
    problems = [Problem(_OURS[key], key, value, COMMAND_LINE) for key, value in pairs if key in _OURS]
    several = [word.partition("=") for word in others if len(alternatives(word, 2) or ()) > 1]
    problems += [Problem("takes one value: a record has one config", key, value) for key, _, value in several]
    if problems:
        raise UserError(*problems)
    return track(names[0]), others


def _cells(chosen: Track, words: Sequence[str]) -> tuple[list[Cell], Path]:
    """Return the runs of a record, and the folder that has them alone."""
    first = expand(words)[0]
    config = first.composed.config
    name = f"speedrun-{chosen.name.replace(':', '')}-{config.recipe or config.model.architecture}-{first.epochs}ep"
    folder = Path(config.runs) / name
    others = [word for word in words if not word.startswith("runs=")]
    return expand([*others, word_of("runs", str(folder)), f"seed={rules().seeds}"]), folder


def _check(chosen: Track, config: RunConfig, *, are_counted: bool = True) -> None:
    if problems := [*refusals(chosen, dict(leaves(as_mapping(config))), are_counted=are_counted)]:
        raise UserError(*problems)


def _verify(folder: Path, words: Sequence[str]) -> SpeedrunResult:
    """Return the recomputed result of a folder.

    Raises UserError if it contradicts itself or the rules, is no record, or has another data set than the words.
    """
    result = verified(folder)
    if words and identity(compose(words).config) != result.dataset:
        raise UserError(f"{folder} has another data set than {' '.join(words)}; set dataset.path to that of the track")
    if not result.reached:
        raise UserError(f"{folder} is no record: {_verdict(result)}; train longer, or pass another folder")
    return result


def _show(result: SpeedrunResult, *, is_json: bool, folder: Path | None = None) -> int:
    if is_json:
        print_json(asdict(result))
        return 0
    out, rows = console(), table("seed", "top-1 %", "minutes")
    for run in result.runs:
        rows.add_row(str(run.seed), f"{run.top1:.2f}", f"{run.minutes:.2f}")
    mean = (f"{result.top1_mean:.2f} ± {result.top1_deviation:.2f}", f"{result.minutes_mean:.2f}")
    rows.add_row("mean", mean[0], f"{mean[1]} ± {result.minutes_deviation:.2f}")
    out.print(rows)
    shared = "" if result.runs_at_once == 1 else f", {count_of(result.runs_at_once, 'run')} at once"
    out.print(verbatim(f"track {result.track} on {result.hardware}{shared}: {_verdict(result)}"))
    if folder is not None:
        out.print(verbatim(f"to verify it: train speedrun --verify {folder}"))
    return 0


def _verdict(result: SpeedrunResult) -> str:
    compared = f"p = {result.p:.2g} for a mean above {result.target:g} %"
    return f"a record, {compared}" if result.reached else f"the target is missed, {compared} is not below {rules().p:g}"
