"""Random images on the device, to measure steps without loading."""

from typing import Literal

from pydantic.dataclasses import dataclass

from launcher.config.fields import STRICT, Count
from launcher.data.loaders.base import Loader


@dataclass(frozen=True, config=STRICT)
class SyntheticLoader(Loader):
    """Random images on the device, to measure steps without loading."""

    reads = False
    source = "launcher.data.loaders.random_images:RandomImages"

    name: Literal["synthetic"]
    batches: Count
