"""Language modelling: each token of a text from those before it; perplexity and bits per byte."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic.dataclasses import dataclass

from launcher.compute.accelerator import widest
from launcher.config.declaration import RunPlan, Size
from launcher.config.fields import STRICT, Count
from launcher.config.goals import Metric
from launcher.config.schema import RunConfig
from launcher.counts import count_of
from launcher.data.text.tokenizer import Tokenizer, tokenizer_of
from launcher.errors import Problem, UserError
from launcher.later import F, torch
from launcher.tasks import Details, Row, Task
from launcher.tasks.continuation import TextPresenter

if TYPE_CHECKING:
    from torch import Tensor

    from launcher.config.choices import LossConfig, Scores


@dataclass(config=STRICT)
class Language(Task):
    """Inputs and targets are tokens int64 [B, T], outputs [B, T, vocabulary].

    tokenizer: its text, as of `data.text.tokenizer`, if known.

    The next token of each of `length` tokens.

    Perplexity is the exponential of the mean loss of a token; bits per byte need the tokenizer and do not depend on it.
    """

    metrics = (
        Metric("perplexity", "perplexity", better="lower", is_share=False, about="exponential of a token's mean loss"),
        Metric("bits_per_byte", "bits per byte", better="lower", is_share=False, about="mean loss of a byte, in bits"),
    )
    needs, axes, unit, view_title = ("tokens",), 1, "tokens", "tokens"
    view_keys = ("task.length", "task.length")
    predicted = ("token", "probability")
    facts = ("tokenizer",)
    flags = ("tokens", "temperature", "top_k", "seed")
    sample = "sequence"
    speeds = ("tokens/s", "tokens/s")
    presenter = TextPresenter

    name: Literal["language"]
    length: Count

    def full_size(self, config: RunConfig) -> Size:
        return (self.length,)

    evaluation_size = full_size

    def decoder(self, *_: object) -> None:
        """Its data loader reads sequences, and decodes none."""

    evaluation_decoder = records = decoder  # type: ignore[assignment]

    def scores(self, loss: LossConfig) -> Scores:
        return "softmax"

    def speed(self, samples: float) -> float:
        """Count all tokens of the loaded sequences, also those that an algorithm cuts off."""
        return samples * self.length

    def counted(self, outputs: int | None) -> str:
        return count_of(outputs or 0, "token")

    def text(self, metrics: Mapping[str, float | None], digits: int = 2) -> str:
        """Leave out bits per byte if the tokenizer is unknown."""
        known = [one for one in self.metrics if not math.isnan(metrics.get(one.name) or math.nan)]
        return "  ".join(f"{one.title} {one.text(metrics[one.name], digits)}" for one in known)

    def problems(self, plan: RunPlan) -> Iterator[Problem]:
        for key, usual in (("sampling", "uniform"), ("skip_bad", False), ("test_path", None)):
            if (value := getattr(plan.config.dataset, key)) != usual:
                message = "has no meaning for text; remove the key"
                yield Problem(message, f"dataset.{key}", value)

    def set_up(self, tokenizer: str | None = None) -> None:
        self.tokenizer = None if tokenizer is None else tokenizer_of(tokenizer)
        sizes = [0] * self.outputs(self.config.dataset)
        if self.tokenizer:
            sizes[: self.tokenizer.vocabulary] = self.tokenizer.sizes.tolist()
        self._sizes = torch.tensor(sizes, device="cpu")

    def targets(self, labels: Tensor) -> Tensor:
        return labels

    def loss(self, outputs: Tensor, targets: Tensor, **of_classes: Tensor) -> Tensor:
        return super().loss(outputs.flatten(0, 1), targets.flatten(), **of_classes)

    def states(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return the sums of nats, tokens and bytes; nats are summed in the widest type, for any batches alike."""
        self._sizes = self._sizes.to(targets.device)
        nats = F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="none")
        tokens = torch.ones_like(targets).sum()
        return {"nats": nats.to(widest(nats.device)).sum(), "tokens": tokens, "bytes": self._sizes[targets].sum()}

    def evaluated(self, states: Mapping[str, Tensor], samples: int) -> dict[str, float]:
        nats, tokens, size = (states[name].item() for name in ("nats", "tokens", "bytes"))
        perplexity = math.exp(nats / tokens) if nats / tokens < 700 else math.inf
        return {"perplexity": perplexity, "bits_per_byte": nats / math.log(2) / size if size else math.nan}

    def blank(self, count: int, size: Size, device: torch.device) -> tuple[Tensor, Tensor]:
        tokens = torch.zeros(count, *size, dtype=torch.int64, device=device)
        return tokens, tokens

    def output_shape(self, count: int, size: Size) -> tuple[int, ...]:
        return count, *size, self.outputs(self.config.dataset)

    def card_input(self) -> dict[str, Any]:
        """Return the longest sequence of the training, and the token of a document's end, if known."""
        return {"length": self.full_size(self.config)[0], "end": self.tokenizer.end if self.tokenizer else None}

    def details(self, names: Sequence[str], *, with_images: bool) -> Details:
        return ByPlace()

    def predictions(self, outputs: Tensor, names: Sequence[str], top: int) -> list[list[tuple[str, float]]]:
        """Return the likeliest next tokens after each sequence."""
        best = outputs[:, -1].softmax(1).topk(min(top, outputs.shape[2]))
        rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return [[(self.decoded([token]), score) for token, score in zip(*row, strict=True)] for row in rows]

    def decoded(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens; raises UserError if the tokenizer is unknown."""
        return self.known_tokenizer().decode(tokens).decode("utf-8", errors="replace")

    def known_tokenizer(self) -> Tokenizer:
        """Return the tokenizer; raises UserError if it is unknown."""
        if self.tokenizer is None:
            message = "is needed for text, and the run did not have it; train a run with dataset.tokenizer=FILE"
            raise UserError(Problem(message, "dataset.tokenizer", None))
        return self.tokenizer


class ByPlace(Details):
    """The loss of tokens by their place in a sequence: 1, 2 to 3, 4 to 7 ..."""

    key = "by_place"
    heading = ("places", "tokens", "loss", "perplexity")

    def __init__(self) -> None:
        self._nats, self._tokens = [0.0] * 64, [0] * 64

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        nats = F.cross_entropy(outputs.transpose(1, 2), targets, reduction="none")
        for place, value in enumerate(nats.to(widest(nats.device)).sum(0).tolist(), 1):
            self._nats[place.bit_length()] += value
            self._tokens[place.bit_length()] += len(targets)

    def rows(self) -> list[Row]:
        rows: list[Row] = []
        for bits, (nats, tokens) in enumerate(zip(self._nats, self._tokens, strict=True)):
            if tokens:
                loss = nats / tokens
                name = f"{2 ** (bits - 1)} to {2**bits - 1}"
                rows.append({"name": name, "tokens": tokens, "loss": loss, "perplexity": math.exp(loss)})
        return rows

    def texts(self, row: Row) -> list[str]:
        return [str(row["name"]), f"{row['tokens']:,}", f"{row['loss']:.4f}", f"{row['perplexity']:.4g}"]
