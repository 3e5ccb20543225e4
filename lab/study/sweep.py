"""A command line with several values for some keys, as the runs of a tradeoff curve."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.study.runs import State, data_path, read_run
from launcher.config.changes import changed, is_free
from launcher.config.compose import Composed, compose
from launcher.config.layers import COMMAND_LINE, leaves
from launcher.config.overrides import alternatives
from launcher.config.resolved import as_mapping, read
from launcher.config.schema import RunConfig
from launcher.data.identity import COUNTS, identity_if_there
from launcher.data.unreadable import read_skipped
from launcher.errors import Problem, Problems, UserError
from launcher.plan.schedule import dilated_epochs
from launcher.records.folder import RunFolder

# Each is composed and checked before the first one starts.
MOST_RUNS = 1000


@dataclass(frozen=True)
class Cell:
    """One run of a grid: the words of its command line, composed, and the folder that it has or will have."""

    words: tuple[str, ...]
    composed: Composed
    folder: Path

    @property
    def state(self) -> State | None:
        """How far the run is; None before it."""
        return read_run(self.folder).state if self.folder.exists() else None

    @property
    def epochs(self) -> int:
        """Its length, after dilation."""
        return dilated_epochs(self.composed.config.epochs, self.composed.config.schedule.dilate)


def expand(words: Sequence[str], name: str | None = None) -> list[Cell]:
    """The runs of all combinations of the values given, as `recipe=mild,hot epochs=8,16 seed=0,1`; seeds outermost.

    Lengths dilate the recipe's own schedule (MosaicML methodology), unless `schedule.dilate` is among the words.
    `name` is told in the folders' names.

    Raises:
        UserError: with every mistake of every combination, each once.
    """
    # note: a plain word is left as it is, for `compose` to judge
    choices = {word.partition("=")[0]: alternatives(word, MOST_RUNS + 1) or [word] for word in words}
    if math.prod(map(len, choices.values())) > MOST_RUNS:
        most = max(words, key=lambda word: len(choices[word.partition("=")[0]]))
        key, _, value = most.partition("=")
        raise UserError(Problem(f"makes more than {MOST_RUNS:,} runs in all", key, value, COMMAND_LINE))
    if "run_name" in choices:
        value = words[list(choices).index("run_name")].partition("=")[2]
        raise UserError(
            Problem("the runs of a grid name themselves; choose their folder by runs=FOLDER", "run_name", value)
        )
    several = [key for key, values in choices.items() if len(values) > 1]
    # note: seeds change slowest, so that every length has a first result before any has a second
    order = sorted(choices, key=lambda key: key != "seed")
    cells, problems = [], Problems()
    for values in itertools.product(*(choices[key] for key in order)):
        chosen = dict(zip(order, values, strict=True))
        with problems.collected():
            cells.append(_cell({key: chosen[key] for key in choices}, several, name))
    problems.settle()
    return cells


def check_existing(folder: Path, config: RunConfig) -> None:
    """See that a folder that is there already is a run of this config, on the images that are there now.

    Raises:
        UserError: it is another run, or none.
    """
    if not folder.exists():
        return
    own, run = dict(leaves(as_mapping(config))), read_run(folder)
    differ = [
        key
        for key in changed(read(RunFolder(folder).config), config)
        # note: what is not counted yet differs from nothing
        if not is_free(key) and not (key in COUNTS and own.get(key) is None)
    ]
    if differ:
        raise UserError(f"{folder} is a run with another {', '.join(differ)}; choose another folder by runs=FOLDER")
    identity = None
    if run.identities:
        identity = identity_if_there(config, read_skipped(RunFolder(folder).skipped, config.dataset))
    if identity not in (None, run.identity) or not (run.identities or run.data_path == data_path(own)):
        where = run.data_path or "built-in images"
        raise UserError(f"{folder} is a run on other images ({where}); choose another folder by runs=FOLDER")


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
    told = [
        chosen[key] for key in several if key in chosen and key not in ("recipe", "seed", "epochs", "schedule.dilate")
    ]
    parts = [
        config.recipe or config.model.architecture,
        config.dataset.name,
        *([name] if name else []),
        *told,
        f"{epochs}ep",
        f"seed{config.seed}",
    ]
    folder = "-".join(re.sub(r"[^\w.=+]+", "_", part) for part in parts)
    return Cell((*words, f"run_name={folder}"), composed, Path(config.runs) / folder)
