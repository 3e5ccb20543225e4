"""The active algorithms of a run: the values of each by name."""

from collections.abc import Mapping
from typing import Self

from launcher.config.declaration import PREPARE, AlgorithmConfig, TeachingConfig
from launcher.config.options import Group


class Algorithms(dict[str, AlgorithmConfig]):
    """The values of the active algorithms by name, sorted."""

    @classmethod
    def of(cls, values: Mapping[str, AlgorithmConfig | None]) -> Self:
        """Return them without inactive ones, which are None."""
        return cls({name: own for name, own in sorted(values.items()) if own is not None})

    @property
    def teaching(self) -> TeachingConfig | None:
        """Return the values of the algorithm that has a teacher, if it is on."""
        return next((values for values in self.values() if isinstance(values, TeachingConfig)), None)

    def acting(self, point: str) -> list[str]:
        """Return the algorithms that act at a point, sorted by place; PREPARE is the task's own change of a batch."""
        places = {name: values.place(point) for name, values in self.items()}
        acting = {name: place for name, place in places.items() if place is not None}
        if point == "change_batch":
            acting[PREPARE] = 0
        return sorted(acting, key=acting.__getitem__)


ALGORITHMS = Group("algorithms", AlgorithmConfig, "algorithms", Algorithms)
