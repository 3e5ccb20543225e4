"""The active algorithms of a run: the values of each by name."""

from collections.abc import Mapping
from typing import Any, Self

from pydantic import GetJsonSchemaHandler, TypeAdapter
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from launcher.config.declaration import PREPARE, AlgorithmConfig, TeachingConfig
from launcher.config.options import by_name, classes, modules, own_kinds, target_base
from launcher.config.targets import of_files

GROUP = "algorithms"


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
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        typed = {name: handler(TypeAdapter(kind).core_schema) for name, kind in declarations().items()}
        return {"type": "object", "properties": typed, "additionalProperties": False}

    @classmethod
    def _validated(cls, values: Any) -> Self:
        if isinstance(values, cls):
            return values
        kinds = declarations(*values) if isinstance(values, Mapping) and values else {}
        if not isinstance(values, Mapping) or values.keys() - kinds.keys():
            # note: the error of another name suggests the nearest one
            kinds = declarations()
        return cls(by_name(GROUP, transforms(), kinds, values))


def transforms() -> type[Any]:
    """Return the base of the classes of transforms of images with a `_target_`."""
    base = target_base(GROUP)
    assert base
    return base


def declarations(*only: str) -> dict[str, type[AlgorithmConfig]]:
    """Return the class of the values of every algorithm by name, sorted; only: of the packaged ones only these."""
    kinds = [kind for module in modules(GROUP, GROUP, *only) for kind in classes(module, AlgorithmConfig)]
    kinds += [*own_kinds(AlgorithmConfig), *of_files(GROUP, transforms(), f"{GROUP}.{{}}").values()]
    return dict(sorted((kind.name, kind) for kind in kinds if kind.places))
