"""What would make a predicted run faster: FFCV files and their values, and more checkpoints on spot machines."""

from collections.abc import Sequence
from dataclasses import replace

from launcher.config.algorithms import Algorithms
from launcher.config.compose import compose
from launcher.config.schema import RunConfig
from launcher.data.loaders.base import DecodingLoader
from launcher.data.loaders.ffcv import FFCVLoader
from launcher.installation import page
from launcher.plan.plan import Plan
from launcher.prediction.faster import is_open
from launcher.prediction.machines import gpu_of
from launcher.prediction.offers import best_interval, between_checkpoints
from launcher.prediction.prediction import Prediction, Predictor
from launcher.records.progress import duration

_FILES = ["dataloader=ffcv"]
# Of files, with the least change of pixels that loads much faster; docs/data.md.
_FASTER = [
    *(*_FILES, "dataloader.files.jpeg_share=1.0", "dataloader.dct_scaling=true"),
]
_OF_VALUES = 2  # points in algorithms.NAME.KEY=VALUE
# Times as fast that a remedy must be to be named.
_WORTH = 1.05


def faster_loader(predictor: Predictor, prediction: Prediction) -> list[str]:
    """Return a note on what files or their values would change, if the loader is the bottleneck at some image sizes."""
    seconds = [(phase.steps * phase.seconds, phase.bound == "loader") for phase in prediction.phases]
    waits = sum(one for one, is_loader in seconds if is_loader) / sum(one for one, _ in seconds)
    loader = predictor.plan.config.dataloader
    if not waits or not isinstance(loader, DecodingLoader):
        return []
    before = prediction.estimate.wall.seconds
    faster = [*_FASTER, *_advised(predictor.plan.config)]
    for words in [faster] if isinstance(loader, FFCVLoader) else [_FILES, faster]:
        plan = replace(predictor.plan, config=_with(predictor.plan.config, words))
        machine, correction = prediction.machine, prediction.correction
        other = Predictor(plan, predictor.counted).on(machine, gpu_of(machine), correction=correction)
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


def chosen_steps(plan: Plan, prediction: Prediction) -> list[str]:
    """Return a note on how steps are computed there, if a prediction chooses it."""
    chosen = f"steps are {prediction.steps} there, as auto of compile and cuda_graphs chooses ({page('performance')})"
    return [chosen] if is_open(plan.config) else []


def checkpoints(plan: Plan, prediction: Prediction) -> list[str]:
    """Return a note if a spot machine would lose less time with more checkpoints."""
    best, now = max(60.0, best_interval(plan, prediction)), between_checkpoints(plan, prediction)
    if prediction.machine.spot_per_hour is None or now < 1.5 * best:
        return []
    return [
        f"spot: checkpoints are {duration(now)} apart; by Young and Daly's formula, "
        f"checkpoint.every_minutes={round(best / 60)} loses less time"
    ]
