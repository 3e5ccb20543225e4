"""The active algorithms of a run: the values of each by name."""

from collections.abc import Mapping
from functools import cache
from typing import Any, Self

from pydantic import TypeAdapter, with_config
from pydantic_core import CoreSchema, core_schema
from typing_extensions import TypedDict

from launcher.config.declaration import PREPARE, AlgorithmConfig, TeachingConfig
from launcher.config.fields import STRICT
from launcher.config.options import classes, from_json, modules, own_kinds


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

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(cls._validated)

    @classmethod
    def _validated(cls, values: Any) -> Self:
        if isinstance(values, cls):
            return values
        return cls.of(from_json(_all(tuple(declarations().items())), values))


def declarations() -> dict[str, type[AlgorithmConfig]]:
    """Return the class of the values of every algorithm by name, sorted."""
    kinds = [kind for module in modules("algorithms", "algorithms") for kind in classes(module, AlgorithmConfig)]
    kinds += own_kinds(AlgorithmConfig)
    return dict(sorted((kind.name, kind) for kind in kinds if kind.places))


@cache
def _all(kinds: tuple[tuple[str, type[AlgorithmConfig]], ...]) -> TypeAdapter[Any]:
    fields: Any = TypedDict("Algorithms", {name: kind | None for name, kind in kinds}, total=False)  # type: ignore[misc]
    return TypeAdapter(with_config(STRICT)(fields))
