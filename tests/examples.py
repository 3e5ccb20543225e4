"""Check the command lines of help texts and docs."""

from launcher.cli import main as cli
from launcher.cli.auto import with_recipe
from launcher.cli.words import read
from launcher.config.compose import compose
from launcher.submit.job import PREFIX
from launcher_lab.cli.grid import MOST_RUNS, expand
from launcher_lab.cli.trials import points, without_trials
from launcher_lab.study.ablation import alternatives, grid


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
        drawn = points(values, trials, MOST_RUNS)
        for variant in grid([], getattr(arguments, "more", [])):
            choices = [alternatives(word, MOST_RUNS) or [word] for word in [*values, *variant.words]]
            for end in (0, -1):
                expand([several[end] for several in choices], points=drawn)
        return
    if "recipe=auto" in values:
        # note: it counts the images, which are not here
        values = ["dataset=shapes" if word.startswith("dataset.path=") else word for word in values]
        values = with_recipe(verb, values).words
    compose([*(["dataloader=ffcv"] if verb == "prepare" else []), *values])
