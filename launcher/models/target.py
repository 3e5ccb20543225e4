"""A network by `_target_`: conf/model/mine.yaml with `_target_: nets.TinyNet` and its keywords."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, ClassVar

from pydantic.dataclasses import dataclass

from launcher.config.choices import ModelConfig, Setting
from launcher.config.fields import STRICT
from launcher.config.targets import KEY, target_of
from launcher.errors import Problem, UserError, is_of_the_machine, one_line
from launcher.later import nn


@dataclass(frozen=True, config=STRICT)
class Target(ModelConfig):
    """Calls the target with the number of outputs as `num_classes`, and its keywords."""

    library = "model.py"
    draws = True
    # The keywords that are no values.
    filled: ClassVar[tuple[str, ...]] = ("self", "num_classes")

    @classmethod
    def defaults(cls, name: str) -> dict[str, Any]:
        """Return values that an option need not have."""
        return {"architecture": name, "weights": None, "weights_sha256": None, "checkpointing": "off"}

    @property
    def target(self) -> str:
        """The dotted name of the class or function."""
        return str(getattr(self, KEY))

    def keywords(self) -> dict[str, Setting]:
        common = {KEY, *(field.name for field in fields(ModelConfig))}
        return {key: value for key, value in vars(self).items() if key not in common}

    def network(self, classes: int, seed: int) -> nn.Module:
        called = target_of(self.target, f"model.{KEY}")
        try:
            network = called(num_classes=classes, **self.keywords())
        # note: the user's code may raise anything
        except Exception as error:
            if is_of_the_machine(error):
                raise
            reason = one_line(str(error)) or type(error).__name__
            message = f"cannot be called with num_classes={classes} and {self.keywords()}: {reason}; correct one"
            raise UserError(Problem(message, f"model.{KEY}", self.target)) from error
        if not isinstance(network, nn.Module):
            message = f"returns {type(network).__name__}; it must return an nn.Module"
            raise UserError(Problem(message, f"model.{KEY}", self.target))
        return network

    def source(self) -> tuple[str, str]:
        module = target_of(self.target, f"model.{KEY}").__module__
        name = self.target.rpartition(".")[2]
        return f"import {module}\n", f"lambda classes, **values: {module}.{name}(num_classes=classes, **values)"
