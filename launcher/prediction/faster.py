"""Choose whether steps are compiled and captured where `compile` and `cuda_graphs` are `auto`: as predicted fastest."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from launcher.config.fields import is_on
from launcher.config.gpus import Gpu
from launcher.config.schema import RunConfig

AUTO = "auto"
# Compiled and captured steps have been measured on one GPU of capability 9.0; Ampere's is the oldest with bf16.
_OLDEST = 8.0


def is_open(config: RunConfig) -> bool:
    """Return whether the config leaves the choice to a prediction."""
    return AUTO in (config.compile, config.cuda_graphs)


def with_eager_steps(config: RunConfig) -> RunConfig:
    """Return the config with `off` for `auto`."""
    values = {key: "off" for key in ("compile", "cuda_graphs") if getattr(config, key) == AUTO}
    return replace(config, **values)  # type: ignore[arg-type]


def why_eager(config: RunConfig, gpu: Gpu) -> str | None:
    """Return why `auto` is eager on a GPU whatever is predicted, if so."""
    if config.deterministic:
        return "deterministic=true"
    if config.code:
        return "code of your own, which may not compile"
    if config.model.checkpointing == "on":
        return "model.checkpointing=on"
    return f"compute capability below {_OLDEST:g}" if gpu.capability < _OLDEST else None


def fastest(config: RunConfig, gpu: Gpu, seconds: Callable[[RunConfig], float]) -> RunConfig:
    """Return the config whose run takes the fewest `seconds`, of those that `auto` allows; eager if none is faster."""
    if why_eager(config, gpu):
        return with_eager_steps(config)
    return min(_allowed(config), key=seconds)


def _allowed(config: RunConfig) -> Iterator[RunConfig]:
    def values(value: str) -> tuple[str, ...]:
        return ("off", "on") if value == AUTO else (value,)

    for compiled in values(config.compile):
        for captured in values(config.cuda_graphs):
            yield replace(config, compile=compiled, cuda_graphs=captured)  # type: ignore[arg-type]


def described(config: RunConfig) -> str:
    """Return how the steps of a config are computed."""
    words = [word for word, value in (("compiled", config.compile), ("captured", config.cuda_graphs)) if is_on(value)]
    return " and ".join(words) or "eager"
