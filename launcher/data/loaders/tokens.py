"""Sequences of tokens, from files of tokens or text that is written as such first."""

from typing import Literal

from pydantic.dataclasses import dataclass

from launcher.config.fields import STRICT, AnyPath
from launcher.data.loaders.base import Loader


@dataclass(frozen=True, config=STRICT)
class TokenLoader(Loader):
    """Sequences of tokens; `folder` has the files of tokens that are written of text, null: one in the user's cache."""

    gives = "tokens"
    source = "launcher.data.text.source:TokenFiles"

    name: Literal["tokens"]
    folder: AnyPath | None
