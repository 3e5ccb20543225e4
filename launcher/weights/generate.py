"""Continue a text by a language model, token by token; draws are functions of the seed and the place."""

import numpy as np
import torch

from launcher.compute import randomness
from launcher.errors import UserError, one_line
from launcher.tasks.language import Language
from launcher.weights.trained_model import TrainedModel


def continuation(
    model: TrainedModel, text: str, *, tokens: int, temperature: float, top_k: int | None, seed: int
) -> str:
    """Return at most so many tokens after a text, as text; it ends with the document.

    temperature: 0 takes the likeliest token; else the logits are divided by it, and one of the `top_k` likeliest is
    drawn.

    Raises UserError if the run's tokenizer is unknown.
    """
    task = model.task
    assert isinstance(task, Language)
    tokenizer = task.known_tokenizer()
    try:
        (start,) = tokenizer.encode([text.encode()])
    except UnicodeEncodeError:
        raise UserError(f"{one_line(text)}: the text is not in UTF-8; type it in UTF-8") from None
    known = [*start.tolist()] or [tokenizer.end]
    added: list[int] = []
    for place in range(tokens):
        window = torch.tensor([(known + added)[-task.values.full_size(task.config)[0] :]], device=model.device)
        logits = model.outputs(window)[0, -1].double().cpu().numpy()
        draw = randomness.uniforms(seed, "continuation", 0, np.array([place]), 1)[0, 0]
        token = _chosen(logits, temperature, top_k, draw)
        if token == tokenizer.end:
            break
        added.append(token)
    # note: of a first token alone, SentencePiece's decoders drop the space
    before, whole = task.decoded(known), task.decoded(known + added)
    return whole.removeprefix(before) if whole.startswith(before) else task.decoded(added)


def _chosen(logits: np.ndarray, temperature: float, top_k: int | None, draw: float) -> int:
    """Return the token [] whose part of the cumulative probabilities has a draw in [0, 1)."""
    order = np.argsort(-logits, kind="stable")[:top_k]
    if temperature == 0:
        return int(order[0])
    weights = np.exp((logits[order] - logits[order[0]]) / temperature)
    ends = weights.cumsum() / weights.sum()
    return int(order[min(int(np.searchsorted(ends, draw, side="right")), len(order) - 1)])
