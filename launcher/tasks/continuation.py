"""Continue a text by a language model, token by token; draws are functions of the seed and the place."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from launcher.compute import randomness
from launcher.data.listing import is_file
from launcher.errors import DONE, UserError, one_line
from launcher.later import torch
from launcher.tasks.presenters import TOKENS, PredictingModel, Presenter

if TYPE_CHECKING:
    from argparse import Namespace

    from launcher.config.schema import RunConfig


class TextPresenter(Presenter):
    """Prints a text and its continuation."""

    def __init__(self, arguments: Namespace, config: RunConfig):
        super().__init__(arguments, config)
        self.text = " ".join(arguments.images)
        if len(arguments.images) == 1 and is_file(Path(self.text)):
            message = f'is continued as a text, not read; type "$(cat {self.text})" to continue what it holds'
            print(f"note: {one_line(f'{self.text} {message}')}", file=sys.stderr)

    def present(self, model: PredictingModel) -> int:
        flags = self.arguments
        draws = {"temperature": flags.temperature or 0.0, "top_k": flags.top_k, "seed": flags.seed or 0}
        added = continuation(model, self.text, tokens=flags.tokens or TOKENS, **draws)
        shown = json.dumps({"text": self.text, "continuation": added})
        print(shown if flags.json else f"{self.text}{added}")
        return DONE


def continuation(
    model: PredictingModel, text: str, *, tokens: int, temperature: float, top_k: int | None, seed: int
) -> str:
    """Return at most so many tokens after a text, as text; it ends with the document.

    temperature: 0 takes the likeliest token; else the logits are divided by it, and one of the `top_k` likeliest is
    drawn.

    Raises UserError if the run's tokenizer is unknown.
    """
    task = model.task
    tokenizer = task.known_tokenizer()
    try:
        (start,) = tokenizer.encode([text.encode()])
    except UnicodeEncodeError:
        raise UserError(f"{one_line(text)}: the text is not in UTF-8; type it in UTF-8") from None
    known = [*start.tolist()] or [tokenizer.end]
    added: list[int] = []
    for place in range(tokens):
        window = torch.tensor([(known + added)[-task.full_size(task.config)[0] :]], device=model.device)
        logits = model.outputs(window)[0, -1].double().cpu().numpy()
        draw = randomness.uniforms(seed, "continuation", 0, np.array([place]), 1)[0, 0]
        token = _chosen(logits, temperature, top_k, draw)
        if token == tokenizer.end:
            break
        added.append(token)
    # note: of a first token alone, SentencePiece's decoders drop the space
    before, whole, alone = (str(task.decoded(one)) for one in (known, known + added, added))
    return whole.removeprefix(before) if whole.startswith(before) else alone


def _chosen(logits: np.ndarray, temperature: float, top_k: int | None, draw: float) -> int:
    """Return the token [] whose part of the cumulative probabilities has a draw in [0, 1)."""
    order = np.argsort(-logits, kind="stable")[:top_k]
    if temperature == 0:
        return int(order[0])
    weights = np.exp((logits[order] - logits[order[0]]) / temperature)
    ends = weights.cumsum() / weights.sum()
    return int(order[min(int(np.searchsorted(ends, draw, side="right")), len(order) - 1)])
