"""A run's offers on machines, and the epochs that published minutes had."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from launcher.config.algorithms import Algorithms
from launcher.config.compose import Composed, compose
from launcher.config.gpus import Gpu, unsupported
from launcher.config.groups import machines
from launcher.config.layers import COMMAND_LINE
from launcher.config.schema import Hardware, RunConfig
from launcher.counts import count_of
from launcher.data.ffcv.values import FFCVValues
from launcher.data.loaders.base import DecodingLoader
from launcher.errors import Problem, UserError
from launcher.installation import page
from launcher.launch.devices import Devices
from launcher.launch.prepare_run import prepare_run
from launcher.measure.estimate import Span
from launcher.plan.plan import Plan, plan_for
from launcher.prediction.faster import is_open
from launcher.prediction.machines import gpu_of, machine_named
from launcher.prediction.offers import (
    Offer,
    best_interval,
    between_checkpoints,
    memory_problem,
    network_problem,
    offers,
    with_front,
)
from launcher.prediction.prediction import Prediction, Predictor
from launcher.prediction.profiles import correction, read_profiles
from launcher.prediction.rates import efficiencies
from launcher.records.progress import duration

# The loading of the published curves: FFCV, eight workers per GPU.
_AS_PUBLISHED = ("dataset=imagenet", "dataloader=ffcv", "dataloader.workers=8", "compile=off", "cuda_graphs=off")

_FILES = ["dataloader=ffcv"]
# Of files, with the least change of pixels that loads much faster; docs/data.md.
_FASTER = [
    *(*_FILES, "dataloader.files.jpeg_share=1.0", "dataloader.dct_scaling=true"),
]
_OF_VALUES = 2  # points in algorithms.NAME.KEY=VALUE
# Times as fast that a remedy must be to be named.
_WORTH = 1.05


class Offered(NamedTuple):
    """The offers of machines, notes on the run and profiles, and for one machine what removes its bottleneck."""

    offers: list[Offer]
    notes: list[str]
    remedies: list[str]


def offers_on(composed: Composed, chosen: Sequence[Hardware]) -> Offered:
    """Predict a run on machines."""
    profiles, notes = read_profiles(Path(composed.config.runs))
    predictors: dict[int, Predictor] = {}
    candidates: list[Offer] = []
    remedies: list[str] = []
    for machine in chosen:
        gpu, count = gpu_of(machine), machine.gpus or 1
        if (nproc := (launch := composed.config.launch).nproc) not in ("auto", count):
            key = "launch.nproc" if composed.origins.get("launch.nproc") == COMMAND_LINE else "launch"
            message = f"predictions use all {count_of(count, 'GPU')} of {machine.name}; omit {key}"
            raise UserError(Problem(message, key, launch.name if key == "launch" else nproc))
        if count not in predictors:
            prepared = prepare_run(composed, devices=Devices("cuda", count), must_exist=False)
            predictors[count] = Predictor(prepared.plan)
            notes = [*notes, *(note for note in prepared.notes if note not in notes)]
        predictor = predictors[count]
        plan = predictor.plan
        corrected = correction(plan, str(machine.gpu), profiles, efficiencies())
        prediction = predictor.on(machine, gpu, correction=corrected.factor, made_from=corrected.made_from)
        problem = unsupported(machine.gpu) or network_problem(plan.config, machine) or memory_problem(plan, prediction)
        candidates += offers(plan, prediction, problem)
        if len(chosen) == 1:
            remedies += _faster_loader(predictor, prediction, gpu, corrected.factor)
            notes = [*notes, *_chosen_steps(plan, prediction), *_checkpoints(plan, prediction)]
    return Offered(with_front(candidates), notes, remedies)


def _faster_loader(predictor: Predictor, prediction: Prediction, gpu: Gpu, correction: float) -> list[str]:
    """Return a note on what files or their values would change, if the loader is the bottleneck at some image sizes."""
    seconds = [(phase.steps * phase.seconds, phase.bound == "loader") for phase in prediction.phases]
    waits = sum(one for one, is_loader in seconds if is_loader) / sum(one for one, _ in seconds)
    loader = predictor.plan.config.dataloader
    if not waits or not isinstance(loader, DecodingLoader):
        return []
    before = prediction.estimate.wall.seconds
    faster = [*_FASTER, *_advised(predictor.plan.config)]
    for words in [faster] if isinstance(loader, FFCVValues) else [_FILES, faster]:
        plan = replace(predictor.plan, config=_with(predictor.plan.config, words))
        other = Predictor(plan, predictor.counted).on(prediction.machine, gpu, correction=correction)
        after = other.estimate.wall.seconds
        if before / after >= _WORTH:
            break
    else:
        return []
    with_words = "" if words is _FILES else "with these words "
    return [
        f"{waits:.0%} of training waits for the loader; {' '.join(words)} would take {duration(after)} instead of "
        f"{duration(before)}, {before / after:.1f} times as fast; {with_words}train prepare dataset.path=FOLDER "
        f"writes its files ({page('data')})",
    ]


def _advised(config: RunConfig) -> list[str]:
    """Return the values that algorithms advise where loading is the bottleneck, as words."""
    advice = (values.advice(values, "data") or "" for values in config.algorithms.values())
    return [word for text in advice if (word := text.partition(":")[0]).count(".") == _OF_VALUES]


def _with(config: RunConfig, words: Sequence[str]) -> RunConfig:
    """Return the config with the loader of words, and with their values of its algorithms."""
    algorithms = Algorithms(config.algorithms)
    advised = [word for word in words if word.startswith("algorithms.")]
    for word in advised:
        (_, name, key), value = word.partition("=")[0].split("."), word.partition("=")[2]
        algorithms[name] = replace(algorithms[name], **{key: value})  # type: ignore[type-var]
    loader = compose([word for word in words if word not in advised]).config.dataloader
    return replace(config, dataloader=loader, algorithms=algorithms)


def _chosen_steps(plan: Plan, prediction: Prediction) -> list[str]:
    """Return a note on how steps are computed there, if a prediction chooses it."""
    chosen = f"steps are {prediction.steps} there, as auto of compile and cuda_graphs chooses ({page('performance')})"
    return [chosen] if is_open(plan.config) else []


def _checkpoints(plan: Plan, prediction: Prediction) -> list[str]:
    """Return a note if a spot machine would lose less time with more checkpoints."""
    best, now = max(60.0, best_interval(plan, prediction)), between_checkpoints(plan, prediction)
    if prediction.machine.spot_per_hour is None or now < 1.5 * best:
        return []
    return [
        f"spot: checkpoints are {duration(now)} apart; by Young and Daly's formula, "
        f"checkpoint.every_minutes={round(best / 60)} loses less time"
    ]


def epochs_in(minutes: float, recipe: str, hardware: str) -> int:
    """Return how many epochs a recipe trains in published minutes, by the throughput predicted on that hardware."""
    # note: published names are such as 8x A100 80GB and p4d.24xlarge
    word = hardware if "x " in hardware else hardware.replace(".", "_").lower()
    there = machines()[machine_named(word).machine]
    plan = plan_for(compose([f"recipe={recipe}", *_AS_PUBLISHED]).config, there.gpus or 1)
    seconds = Predictor(plan).on(there, gpu_of(there)).steps_seconds / plan.epochs
    return max(1, round(60 * minutes / seconds))


def span_values(span: Span, unit: float = 1) -> dict[str, Any]:
    """Return a mean and its range in JSON, in units of so many seconds."""
    return {"value": span.seconds / unit, "low": span.low / unit, "high": span.high / unit}
