"""What a budget is spent on: recipes with known lengths, by published points and runs, or what suits the images."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.cli.auto import choices_on_gpus
from launcher.config import recipes
from launcher.config.compose import compose, dataset_at
from launcher.config.fields import size_text
from launcher.config.overrides import parse
from launcher.config.recipes import AUTO
from launcher.config.resolved import is_free, with_absolute_paths
from launcher.data.inspection import Inspection
from launcher.errors import Problem, Problems, UserError
from launcher.prediction.budget import Candidate, worthwhile
from launcher.prediction.lengths import Length, lengths_of, rising
from launcher.results.curves import build_curves
from launcher.results.published import known_curves
from launcher.results.same_images import runs_of, words_of

PUBLISHED = "imagenet"


@dataclass(frozen=True)
class Candidates:
    """Candidates, the words of all, where their qualities are from, and the images, if they were listed."""

    several: list[Candidate]
    words: list[str]
    source: str
    seen: Inspection | None = None


def candidates(words: Sequence[str], gpus: int) -> Candidates:
    """Return the candidates for some images, of the recipe of the command line if it has one.

    gpus: of the largest machine. Raises UserError if the images are missing, or the recipe has no known length.
    """
    assignments = parse(words, problems := Problems())
    problems.settle()
    typed = {one.key: one.value for one in assignments}
    rest = [word for word in words if word.lstrip("+").partition("=")[0] not in ("recipe", AUTO)]
    named = str(typed["recipe"]) if typed.get("recipe") not in (None, AUTO) else None
    path = str(typed.get("dataset.path") or "")
    dataset = str(typed.get("dataset") or (dataset_at(path, PUBLISHED) if path else PUBLISHED))
    if dataset == PUBLISHED:
        # note: published qualities are those of FFCV files
        rest += [] if any(word.startswith("dataloader=") for word in words) else ["dataloader=ffcv"]
        if several := _published(rest, named):
            return Candidates(several, rest, "published results with FFCV files, and your runs")
        raise _unknown(named)
    rest += [] if "dataset" in typed else [f"dataset={dataset}"]
    _check_images(rest)
    if several := _of_runs(rest, typed):
        return Candidates(several, rest, "your finished runs of these images")
    choices, seen = choices_on_gpus(rest, gpus)
    several = [_without_quality(name, own, rest) for name, own in choices if named in (None, name)]
    if not several:
        raise _unknown(named)
    return Candidates(several, rest, "", seen)


def _check_images(words: Sequence[str]) -> None:
    """Refuse words without the folder of their images."""
    dataset = compose(words).config.dataset
    if dataset.path is None and not dataset.is_built_in:
        raise UserError(Problem("is needed to choose for your images; set dataset.path=FOLDER", "dataset.path", None))


def _unknown(recipe: str | None) -> UserError:
    message = f"no length of {recipe or 'any recipe'} has a known quality on these images"
    return UserError(Problem(f"{message}; measure some with `train curve`", "--budget", None))


def _published(words: Sequence[str], named: str | None) -> list[Candidate]:
    """Return the recipe of a name, or all that may be worth their cost, by published points and own runs."""
    runs = compose(words).config.runs
    paths = [str(runs)] if any(Path(runs).glob("*/metrics.jsonl")) else []
    curves = [one for one in known_curves(paths) if one.setting.dataset == PUBLISHED]
    listed = {recipe.name for recipe in recipes.listing()}
    known = []
    for recipe in [named] if named else [name for name in worthwhile(curves) if name in listed]:
        model = compose([f"recipe={recipe}"]).config.model.architecture
        own = [one for one in curves if one.recipe == recipe and one.setting.model == model]
        if lengths := rising(length for curve in own for length in lengths_of(curve)):
            known.append(Candidate(recipe, lengths))
    return known


def _of_runs(words: Sequence[str], typed: dict[str, Any]) -> list[Candidate]:
    """Return the curves of finished runs of the same images."""
    config = with_absolute_paths(compose(words).config)
    if config.task.primary.name != "top1":
        return []
    runs = runs_of(config, typed)
    by_path = {run.path: run for run in runs}
    known = []
    for curve in build_curves(runs):
        words_of_run = words_of(by_path[curve.points[0].paths[-1]])
        own = [word for word in words_of_run if _is_own(word.lstrip("+").partition("=")[0], typed)]
        known.append(Candidate(curve.recipe, rising(lengths_of(curve)), tuple(own), curve.name))
    return known


def _is_own(key: str, typed: dict[str, Any]) -> bool:
    """Return whether a key of a run's command is one that its result depends on, beside the images."""
    return key not in typed and key not in ("recipe", "dataset", "dataset.path") and not is_free(key)


def _without_quality(recipe: str, own: Sequence[str], words: Sequence[str]) -> Candidate:
    """Return a candidate of one epoch up to as many as `recipe=auto` trains."""
    config = compose([f"recipe={recipe}", *own, *words]).config
    weights = " from pretrained weights" if config.model.weights else ""
    label = f"{recipe}{weights}, {size_text(config.task.full_size(config))} px"
    rest = tuple(word for word in own if not word.startswith("epochs=") and word not in words)
    lengths = [Length(epochs, None) for epochs in sorted({1, config.epochs})]
    return Candidate(recipe, lengths, rest, label)
