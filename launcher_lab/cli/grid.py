"""The grids of `train curve` and `train ablate`: their options, their runs, and how these train or are submitted."""

from __future__ import annotations

import argparse
import itertools
import math
import re
from collections.abc import Sequence
from pathlib import Path

from launcher.cli.auto import with_recipe
from launcher.config.compose import compose
from launcher.config.layers import COMMAND_LINE, leaves
from launcher.config.recipes import AUTO
from launcher.config.resolved import as_mapping, changed, is_free, read
from launcher.config.schema import RunConfig
from launcher.data.identity import COUNTS, identity_if_present
from launcher.data.unreadable import read_skipped
from launcher.errors import Problem, Problems, UserError
from launcher.launch.devices import planned
from launcher.launch.prepare import Prepared, prepare
from launcher.plan.epochs import dilated_epochs
from launcher.records.run import data_path, read_run
from launcher.records.run_folder import RunFolder
from launcher.submit.job import gpus_of_node
from launcher_lab.cli.grid_job import SLURM, submit_array
from launcher_lab.cli.training import Cell, Training, parts
from launcher_lab.cli.trials import Point
from launcher_lab.study.ablation import alternatives

# All runs are composed and checked before the first one starts.
MOST_RUNS = 1000
ALL_FOLDS = "dataset.fold=all"
NO_POINT: Point = {}
_PARALLEL = "runs to train at once, each on an equal part of the GPUs, or of the cores without GPUs (default: 1)"
# Keys that a start finds out, unless they are set.
_FOUND = (*COUNTS, "model.weights_sha256")


def add_options(parser: argparse.ArgumentParser, condition: str = "") -> None:
    """Add the options --parallel, --slurm and --json."""
    parser.add_argument("--parallel", type=int, default=1, metavar="N", help=condition + _PARALLEL)
    parser.add_argument("--slurm", action="store_true", help=condition + SLURM)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def train(
    cells: Sequence[Cell],
    arguments: argparse.Namespace,
    commands: Sequence[Sequence[str]],
    job_words: Sequence[str],
    outcomes: dict[Path, str],
) -> int | None:
    """Check all runs, then train or submit those that have not finished; return the exit code of what stopped that.

    commands: for the job after them. outcomes: of the folders of the runs.
    """
    machine = parts(arguments.parallel, cells[0].composed.config.launch.device)
    prepared = check_all(cells, here=not arguments.slurm, gpus=machine[0].count)
    if arguments.slurm:
        return submit_array(cells, prepared, commands, job_words, outcomes)
    return Training(cells, machine, outcomes).run()


def on_a_recipe(verb: str, arguments: argparse.Namespace, point: Point = NO_POINT) -> list[str]:
    """Return the words of a grid with the recipe that is chosen if they have none.

    Of several values the first counts, of intervals those of `point`.

    Raises UserError as `with_recipe`.
    """
    words = arguments.overrides
    first = [point.get(word.partition("=")[0]) or (alternatives(word, 1) or [word])[0] for word in _with_folds(words)]
    explicit, composed, _ = with_recipe("submit" if arguments.slurm else verb, first)
    rest = [word for word in words if word.lstrip("+") != f"recipe={AUTO}"]
    return [*explicit[: len(explicit) - len(rest)], *rest] if composed else words


def check_all(cells: Sequence[Cell], *, here: bool, gpus: int | None = None) -> list[Prepared]:
    """Prepare every run before the first one starts; the data must exist only if it starts `here`, on so many GPUs.

    Raises UserError with each distinct error of the runs, once.
    """
    prepared, problems = [], Problems()
    for cell in cells:
        with problems.collected():
            run = as_started(cell, here=here, must_exist=here, gpus=gpus)
            check_existing(cell.folder, run.plan.config, here=here)
            prepared.append(run)
    problems.settle()
    return prepared


def as_started(cell: Cell, *, here: bool, must_exist: bool, gpus: int | None = None) -> Prepared:
    """Prepare a run as its start does, so that its config equals the one in its folder.

    It has `gpus` of this machine, or all if None. Not `here`, on a node of a cluster, `auto` stays. Without
    `must_exist` images, and weights of libraries, may be missing.

    Raises UserError if a value cannot work.
    """
    config = cell.composed.config
    devices = planned(config.launch, gpus if here else gpus_of_node(config))
    return prepare(cell.composed, devices=devices, must_exist=must_exist, packages=here, is_new=False)


def expand(words: Sequence[str], name: str | None = None, points: Sequence[Point] = (NO_POINT,)) -> list[Cell]:
    """Return the runs of all combinations of values, as in `recipe=mild,hot epochs=8,16 seed=0,1`; seeds vary slowest.

    Keys with intervals have the values of each of the `points`.

    Lengths dilate the recipe's schedule (MosaicML methodology), unless the words set `schedule.dilate`. The names of
    the folders contain `name`.

    Raises UserError with each distinct error of the combinations, once.
    """
    words = _with_folds(words)
    # note: `compose` checks the words with one value
    choices = {
        key: alternatives(word, MOST_RUNS + 1) or [word]
        for word in words
        if (key := word.partition("=")[0]) not in points[0]
    }
    if math.prod(map(len, choices.values())) * len(points) > MOST_RUNS:
        most = max(choices, key=lambda key: len(choices[key]))
        value = next(word for word in words if word.startswith(f"{most}=")).partition("=")[2]
        raise UserError(Problem(f"makes more than {MOST_RUNS:,} runs; list fewer values", most, value, COMMAND_LINE))
    if "run_name" in choices:
        value = choices["run_name"][0].partition("=")[2]
        message = "cannot be set for a grid; set the parent folder with runs=FOLDER"
        raise UserError(Problem(message, "run_name", value))
    several = [*points[0], *(key for key, values in choices.items() if len(values) > 1)]
    # note: every length gets a first result before any gets a second
    order = sorted(choices, key=lambda key: key != "seed")
    cells, problems = [], Problems()
    for values, point in itertools.product(itertools.product(*(choices[key] for key in order)), points):
        chosen = dict(zip(order, values, strict=True))
        with problems.collected():
            cells.append(_cell({**{key: chosen[key] for key in choices}, **point}, several, name))
    problems.settle()
    return cells


def _with_folds(words: Sequence[str]) -> list[str]:
    """Return the words with all folds in place of `dataset.fold=all`.

    Raises UserError if no word sets their number.
    """
    if ALL_FOLDS not in words:
        return [*words]
    folds = [value for key, _, value in (word.partition("=") for word in words) if key == "dataset.folds"]
    if not folds or not folds[-1].isdecimal():
        raise UserError(Problem("needs their number; add dataset.folds=5", "dataset.fold", "all", COMMAND_LINE))
    every = ",".join(map(str, range(1, int(folds[-1]) + 1)))
    return [f"dataset.fold={every}" if word == ALL_FOLDS else word for word in words]


def check_existing(folder: Path, config: RunConfig, *, here: bool) -> None:
    """Check that an existing folder is a run of this config, on the current images.

    `config` is that of a start `here`, or else elsewhere, where `auto` may have become any value, as that of compile
    always may.

    Raises UserError if the folder has another run, or no run.
    """
    if not folder.exists():
        return
    own, run = dict(leaves(as_mapping(config))), read_run(folder)
    open_keys = ("compile",) if here else own
    unknown = [key for key in own if (own[key] is None and key in _FOUND) or (own[key] == AUTO and key in open_keys)]
    differ = [key for key in changed(read(RunFolder(folder).config), config) if not is_free(key) and key not in unknown]
    if differ:
        raise UserError(
            f"{folder} is a run with other values of {', '.join(differ)}; set another folder with runs=FOLDER"
        )
    identity = None
    if run.identities:
        identity = identity_if_present(config, read_skipped(RunFolder(folder).skipped, config.dataset))
    if identity not in (None, run.identity) or not (run.identities or data_path(run.values) == data_path(own)):
        where = data_path(run.values) or "built-in images"
        raise UserError(f"{folder} is a run on other images ({where}); set another folder with runs=FOLDER")


def _cell(chosen: dict[str, str], several: Sequence[str], name: str | None) -> Cell:
    words = list(chosen.values())
    composed = compose(words)
    if "epochs" in chosen and "schedule.dilate" not in chosen:
        del chosen["epochs"]
        own = compose(list(chosen.values())).config.epochs
        words = [*chosen.values(), f"schedule.dilate={composed.config.epochs / own!r}"]
        composed = compose(words)
    config = composed.config
    epochs = dilated_epochs(config.epochs, config.schedule.dilate)
    other = [key for key in several if key not in ("recipe", "seed", "epochs", "schedule.dilate")]
    first = [config.recipe or config.model.architecture, config.dataset.name, *([name] if name else [])]
    parts = [*first, *(chosen[key] for key in other), f"{epochs}ep", f"seed{config.seed}"]
    folder = "-".join(re.sub(r"[^\w.=+]+", "_", part) for part in parts)
    return Cell((*words, f"run_name={folder}"), composed, Path(config.runs) / folder)
