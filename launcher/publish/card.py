"""The model card of a run in Markdown, with Hugging Face's metadata, from the files of its folder; without paths."""

import math
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from launcher.config.keys import path_keys
from launcher.config.resolved import read
from launcher.config.schema import RunConfig
from launcher.config.tasks import TaskConfig
from launcher.config.yaml_file import as_yaml
from launcher.counts import count_of
from launcher.errors import UserError, one_line
from launcher.records.metrics import Row
from launcher.records.progress import duration
from launcher.records.run import RunSummary, read_run
from launcher.records.run_folder import RunFolder

# Hugging Face's names.
_PIPELINES = {"class": "image-classification", "classes": "image-classification", "pixels": "image-segmentation"}
_METRICS = {"top1": "accuracy", "macro_f1": "f1", "map": "mean_average_precision"}
# Metrics that are the share of images whose class is right.
_SHARES_OF_IMAGES = ("top1", "top5")
_Z = 1.959963984540054  # of the normal distribution at 97.5 %
_PACKAGES = ("torch", "torchvision", "timm")
_DIGITS = 12  # of the fingerprint


def card(
    folder: RunFolder, *, step: int | None = None, use: Sequence[str] = (), library: str | None = None
) -> tuple[dict[str, Any], str]:
    """Return the metadata of a run's card, and its text in Markdown.

    step: that of the weights, whose evaluation the card has; None for the last one. use: commands in place of those on
    the run folder. library: the one that loads the model; None for the network's.

    Raises UserError if the run has no such evaluation, or its config cannot be read.
    """
    config, run = read(folder.config), read_run(folder.path)
    if run.state in ("damaged", "unreadable"):
        raise UserError(f"{folder.path} is {run.state}: {run.problem}; restore the file")
    evaluations = [
        (split, row)
        for split, kind in (("validation", "eval"), ("test", "test"))
        for row in [row for row in run.rows if row["kind"] == kind and step in (None, row["step"])][-1:]
    ]
    if step is not None and not evaluations:
        raise UserError(f"{folder.path} has no evaluation of its checkpoint of step {step:,}; add --best")
    if not evaluations:
        raise UserError(f"{folder.path} has no evaluation yet; type train resume {shlex.quote(str(folder.path))}")
    name = shlex.quote(folder.path.name)
    parts = [
        f"# {config.model.architecture} on {config.dataset.title}",
        _section(
            "Results", _table(("metric", "value", "95 % interval", "split", "n"), _results(config.task, evaluations))
        ),
        _section("Training", _table(("", ""), [*_training(config, run, evaluations[0][1])])),
        _section("Data", _table(("", ""), [*_data(config, run)])),
        _section("Versions", _table(("", ""), [*_versions(run)])),
        _section("Repeat", _code(_command(run))),
        _section("Use", _code(use or (f"train predict {name} IMAGES", f"train export {name}"))),
    ]
    return _metadata(config, folder.path.name, evaluations, library), "\n\n".join(parts) + "\n"


def as_text(metadata: dict[str, Any], body: str) -> str:
    """Return the file README.md."""
    return f"---\n{as_yaml(metadata)}---\n\n{body}"


def _metadata(
    config: RunConfig, name: str, evaluations: Sequence[tuple[str, Row]], library: str | None
) -> dict[str, Any]:
    """Return the metadata; the license is left to the user."""
    tag = "text-generation" if "tokens" in config.task.needs else _PIPELINES.get(config.task.labelled)
    results = [
        {
            "task": {"type": tag or config.task.name},
            "dataset": {"name": config.dataset.name, "type": config.dataset.name, "split": split},
            "metrics": [
                {"type": _METRICS.get(metric.name, metric.name), "value": value, "name": metric.title}
                for metric in config.task.metrics
                if (value := row["metrics"].get(metric.name)) is not None
            ],
        }
        for split, row in evaluations
    ]
    return {
        "library_name": library or ("timm" if config.model.library == "timm" else "pytorch"),
        **({"pipeline_tag": tag} if tag else {}),
        "tags": [*([tag] if tag else []), config.model.architecture, config.recipe or "no recipe"],
        "model-index": [{"name": name, "results": results}],
    }


def _results(task: TaskConfig, evaluations: Sequence[tuple[str, Row]]) -> list[tuple[object, ...]]:
    return [
        (metric.title, metric.text(value), _interval(metric.name, value, row["samples"]), split, f"{row['samples']:,}")
        for split, row in evaluations
        for metric in task.metrics
        for value in [row["metrics"].get(metric.name)]
    ]


def _interval(name: str, value: float | None, count: int) -> str:
    """Return Wilson's 95 % interval (1927) of a share of images; empty for metrics that are none."""
    if name not in _SHARES_OF_IMAGES or value is None or not count:
        return ""
    middle = (value + _Z**2 / (2 * count)) / (1 + _Z**2 / count)
    half = _Z * math.sqrt(value * (1 - value) / count + (_Z / (2 * count)) ** 2) / (1 + _Z**2 / count)
    return f"{middle - half:.2%} to {middle + half:.2%}"


def _training(config: RunConfig, run: RunSummary, last: Row) -> Iterable[tuple[object, ...]]:
    names = ", ".join(name for name, _ in config.algorithms.items()) or "none"
    yield "state", run.state
    yield "recipe", config.recipe or "none"
    yield "epochs", f"{last['epoch']:g} of {run.epochs}"
    yield "batch size", f"{config.batch_size} on {run.hardware}"
    yield "optimizer", f"{config.optimizer.name}, peak learning rate {config.optimizer.lr:g}, {config.schedule.name}"
    yield "algorithms", names
    yield "seed", config.seed
    if config.model.weights is not None:
        yield "pretrained weights", Path(config.model.weights).name
    if run.times:
        yield "training time", duration(run.times.training)
    if (money := run.money("training")) is not None:
        yield "cost of training", f"{money:,.2f} {run.currency}"


def _data(config: RunConfig, run: RunSummary) -> Iterable[tuple[object, ...]]:
    dataset, sample = config.dataset, config.task.sample
    yield "name", dataset.name
    if dataset.classes:
        yield "outputs", config.task.counted(dataset.classes)
    for split, count in (("training", dataset.train_samples), ("validation", dataset.val_samples)):
        if count is not None:
            yield split, count_of(count, sample)
    if run.identities:
        yield "fingerprint", run.identity[:_DIGITS]


def _versions(run: RunSummary) -> Iterable[tuple[object, ...]]:
    """Yield the versions and devices of the environment."""
    facts = run.environment
    if "packages" not in facts:
        yield "environment", "unknown"
        return
    yield "train", " ".join(str(facts[key]) for key in ("version", "commit") if facts.get(key))
    yield "Python", facts.get("python")
    yield from ((name, facts["packages"][name]) for name in _PACKAGES if name in facts["packages"])
    yield "devices", ", ".join(map(str, facts.get("gpus", ()))) or facts.get("cpu")


def _command(run: RunSummary) -> list[str]:
    """Return the command that repeats the run, with placeholders in place of paths."""
    words, paths = [], path_keys()
    for word in run.command:
        key, equals, _ = word.partition("=")
        if word.startswith(("/", "~", "./", "../")):
            word = "PATH"
        elif equals and key.lstrip("-").replace("-", "_") in paths:
            word = f"{key}=PATH"
        words.append(word)
    return [shlex.join(words) if words else "unknown"]


def _section(title: str, text: str) -> str:
    return f"## {title}\n\n{text}"


def _code(lines: Sequence[str]) -> str:
    return "\n".join(f"    {line}" for line in lines)


def _table(heading: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(value: object) -> str:
    return one_line(str(value)).replace("|", r"\|")
