"""Check the command lines of help texts and docs."""

import re
import shlex
from collections.abc import Iterable, Sequence

from launcher.cli import main as cli
from launcher.cli.auto import with_recipe
from launcher.cli.words import read
from launcher.config.compose import compose
from launcher.submit.job import PREFIX
from launcher_lab.cli.grid import MOST_RUNS, expand, points, without_trials
from launcher_lab.study.ablation import alternatives, grid

HELP = [line.split("  ")[0] for line in map(str.strip, cli._EXAMPLES.splitlines()[1:])]
HELP += [line for verb in cli.VERBS for line in cli.module_of(verb).EXAMPLES]


def covering(lines: Iterable[Sequence[str]]) -> set[tuple[str, ...]]:
    """Return the lines in which a flag, a key or a chosen option is first, after those of help texts."""
    seen = {part for line in HELP for part in _parts(shlex.split(line))}
    chosen = set()
    for words in lines:
        if not _parts(words) <= seen:
            seen |= _parts(words)
            chosen.add(tuple(words))
    return chosen


def _parts(words: Sequence[str]) -> set[str]:
    parts = {word if re.fullmatch(r"[\w.]+=[a-z]\w*", word) else word.partition("=")[0] for word in words}
    return {part for part in parts if re.match("[a-z-]", part)}


def train(words: list[str]) -> None:
    """Check that a `train` command line can be parsed and its values composed."""
    words = words[: words.index(">")] if ">" in words else words
    if words == ["--version"]:
        assert cli.main(words) == 0
        return
    if words[:1] == ["help"]:
        assert cli.main(words) == 0
        return
    verb = words[0] if words and words[0] in cli.VERBS else "run"
    rest = words[1:] if words and words[0] in cli.VERBS else words
    arguments = read(verb, rest, cli.parsers())
    values = [word for word in getattr(arguments, "overrides", []) if not word.startswith(PREFIX)]
    if verb in ("curve", "ablate"):
        values, trials = without_trials(values)
        drawn = points(values, trials)
        variants = grid([], getattr(arguments, "more", []))
        # note: each variant with the first values and point, one with the last ones
        for end, variant in [*((0, variant) for variant in variants), (-1, variants[-1])]:
            choices = [alternatives(word, MOST_RUNS) or [word] for word in [*values, *variant.words]]
            expand([several[end] for several in choices], points=[drawn[end]])
        return
    if "recipe=auto" in values:
        # note: it counts the images, which are not here
        values = ["dataset=shapes" if word.startswith("dataset.path=") else word for word in values]
        values = with_recipe(verb, values).words
    compose([*(["dataloader=ffcv"] if verb == "prepare" else []), *values])
