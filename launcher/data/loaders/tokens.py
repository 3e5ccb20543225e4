"""Sequences of tokens, from files of tokens or text that is written as such first."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from pydantic.dataclasses import dataclass

from launcher.config.fields import STRICT, AnyPath
from launcher.config.schema import Dataset, RunConfig
from launcher.data.loaders.base import Loader
from launcher.errors import Problem, UserError

if TYPE_CHECKING:
    from launcher.data.images import Reader
    from launcher.data.index import Images
    from launcher.data.inspection import Inspection
    from launcher.data.loaders.base import Opening
    from launcher.data.text.prepare import Tokens
    from launcher.data.workers import Report
    from launcher.plan.plan import Plan


@dataclass(frozen=True, config=STRICT)
class TokenLoader(Loader):
    """Sequences of tokens; `folder` has the files of tokens that are written of text, null: one in the user's cache."""

    gives = "tokens"

    name: Literal["tokens"]
    folder: AnyPath | None

    def reads_from(self, config: RunConfig) -> str | None:
        return config.dataset.path

    def tokens(self, dataset: Dataset, report: Report | None = None, *, whole: bool = False) -> Tokens:
        """Return the files of tokens of a data set, written first if need be; raises as `tokens_of`."""
        from launcher.data.text.prepare import tokens_of  # note: every command reads the values in this file
        from launcher.data.workers import quiet

        return tokens_of(dataset, None if whole else self.folder, report or quiet, whole=whole)

    def inspect(
        self, config: RunConfig, must_exist: bool, skipped: Collection[str] | None, report: Report
    ) -> Inspection:
        from launcher.data.inspection import Inspection, has_counts
        from launcher.data.text.splits import counted

        if has_counts(config.dataset) and not must_exist:
            return Inspection(config, [])
        return counted(config, self.tokens(config.dataset, report), report)

    def identity(self, config: RunConfig, skipped: Collection[str] | None, images: Sequence[Images]) -> str:
        from launcher.data.text.prepare import tokens_of_splits
        from launcher.data.text.splits import identity_of

        return identity_of(tokens_of_splits(images[:2]) if images else self.tokens(config.dataset))

    def images(self, config: RunConfig, skipped: Collection[str]) -> Sequence[Images]:
        from launcher.data.text.splits import splits

        return splits(config, self.tokens(config.dataset))

    def other(self, path: str, plan: Plan, facts: Mapping[str, Any]) -> Reader | None:
        from launcher.data.text.splits import check_tokens, sequences

        dataset = plan.config.dataset
        other = replace(dataset, path=path, kind="folder", val_split=None)
        listed = sequences(replace(plan.config, dataset=other), self.tokens(other, whole=True), "val", None)
        check_tokens(listed, dataset.classes or 0)
        reader = self._reader(listed, plan)
        if reader.facts["tokenizer"] != facts.get("tokenizer"):
            message = "has tokens by another tokenizer than the run's; set text, or tokens by that of the run"
            raise UserError(Problem(message, "dataset.path", path))
        return reader

    def open(self, opening: Opening) -> tuple[Reader, Reader]:
        train, val = (self._reader(one, opening.plan) for one in opening.images)
        return train, val

    def _reader(self, images: Images, plan: Plan) -> Reader:
        from launcher.data.text.prepare import tokenizer_in
        from launcher.data.text.reader import TokenReader

        dataset = plan.config.dataset
        return TokenReader(images, plan.full_view, tokenizer_in(images.root, dataset.tokenizer), dataset.classes)
