"""Features of images, which the pretrained layers compute once, so that the last layer learns in seconds an epoch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from operator import attrgetter
from typing import Literal

from pydantic.dataclasses import dataclass

from launcher.config.declaration import RunPlan
from launcher.config.fields import STRICT
from launcher.data.loaders.torchvision import TorchvisionLoader
from launcher.errors import Problem

_ONCE = "dataloader=features computes each image's features once"
# Points of the loop at which an algorithm changes what an image is in an epoch.
_CHANGING = ("change_order", "change_image", "change_batch")
# The values with which an image is the same in all epochs and evaluations, and no step is compiled.
_FIXED = {
    **{"image.flip": 0.0, "image.scale": [1.0, 1.0], "image.eval_flip_average": False, "image.eval_views": "centre"},
    **dict.fromkeys(("compile", "cuda_graphs"), "off"),
}


@dataclass(frozen=True, config=STRICT)
class FeatureLoader(TorchvisionLoader):
    """The values by which images are read, once and as in an evaluation; `training.features` computes and stores."""

    source = "launcher.data.sources.images:EvaluatedImages"

    name: Literal["features"]  # type: ignore[assignment]

    def problems(self, plan: RunPlan) -> Iterator[Problem]:
        """Yield what needs several looks at an image, or layers before the last that learn."""
        yield from super().problems(plan)
        if not any(values.probes(plan) for values in plan.config.algorithms.values()):
            message = f"{_ONCE}, so only the last layer can learn, in the whole run"
            message += "; type recipe=probe, or dataloader=torchvision"
            yield Problem(message, "dataloader", self.name)
        for name, values in plan.config.algorithms.items():
            if any(values.place(point) is not None for point in _CHANGING):
                message = f"{_ONCE}, but this changes images or targets at each step; set algorithms.{name}=off"
                yield Problem(message, f"algorithms.{name}", "on")
        for key, value in _FIXED.items():
            if (own := attrgetter(key)(plan.config)) != value:
                text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
                yield Problem(f"{_ONCE}, as evaluated; set {key}={text}", key, own)
