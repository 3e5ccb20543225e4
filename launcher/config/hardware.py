"""The values of a machine."""

from pydantic.dataclasses import dataclass

from launcher.config.fields import STRICT, Count, NotNegative, Positive


@dataclass(frozen=True, config=STRICT)
class Hardware:
    """A machine to plan for: its size (`memory` in GiB, `disk` in GB) and prices per hour, with their sources.

    `network` is to other machines of its kind, in Gbit/s per direction.
    """

    name: str
    gpu: str | None
    gpus: Count | None
    cores: Count | None
    memory: Positive | None
    disk: NotNegative | None
    source: str | None
    price_per_hour: NotNegative | None
    spot_per_hour: NotNegative | None
    currency: str
    price_date: str | None
    price_source: str | None
    network: Positive | None = None  # note: files of an earlier version have none
