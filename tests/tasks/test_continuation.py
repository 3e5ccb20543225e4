"""A text is continued by the likeliest tokens, or by draws that follow the probabilities of the model."""

from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from launcher.config.compose import compose
from launcher.errors import UserError
from launcher.tasks import build_task
from launcher.tasks.continuation import TextPresenter, continuation
from launcher.training.precision import choose_precision
from launcher.weights.trained_model import TrainedModel

WEIGHTS = torch.tensor([0.1, 0.2, 0.3, 0.4]).log()


class Fixed(torch.nn.Module):
    """Gives a to d after any text these probabilities, or after e the end."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = torch.full((*tokens.shape, 257), -torch.inf)
        logits[..., ord("a") : ord("e")] = WEIGHTS
        logits[tokens == ord("e")] = -torch.inf
        logits[..., 256][tokens == ord("e")] = 0.0
        return logits


def model(tokenizer: str | None = "bytes") -> Any:
    words = ["task=language", "model=gpt", "dataset=text", "dataloader=tokens", "dataset.classes=257", "task.length=4"]
    config = compose(words).config
    device = torch.device("cpu")
    task = build_task(config, facts={"tokenizer": tokenizer})
    return TrainedModel(Fixed().eval(), {}, choose_precision(config, device), device, task)


def text_of(start: str, tokens: int = 4000, temperature: float = 0.0, top_k: int | None = None, seed: int = 0) -> str:
    return continuation(model(), start, tokens=tokens, temperature=temperature, top_k=top_k, seed=seed)


def test_without_a_temperature_the_likeliest_tokens_follow() -> None:
    assert text_of("some text", tokens=5) == "ddddd"


def test_the_end_of_the_document_ends_the_text() -> None:
    assert text_of("e") == ""


def test_draws_follow_the_probabilities_the_temperature_and_the_seed() -> None:
    drawn = text_of("x", temperature=1.0)
    shares = [drawn.count(letter) / 4000 for letter in "abcd"]
    assert shares == pytest.approx([0.1, 0.2, 0.3, 0.4], abs=0.03)
    assert drawn == text_of("x", temperature=1.0)
    assert drawn != text_of("x", temperature=1.0, seed=1)
    cold, expected = text_of("x", temperature=0.5), np.array([1, 4, 9, 16]) / 30
    assert [cold.count(letter) / 4000 for letter in "abcd"] == pytest.approx(expected, abs=0.03)
    best = text_of("x", temperature=1.0, top_k=2)
    assert [best.count(letter) / 4000 for letter in "abcd"] == pytest.approx([0, 0, 3 / 7, 4 / 7], abs=0.03)


def test_a_run_without_a_known_tokenizer_is_refused() -> None:
    with pytest.raises(UserError, match=r"dataset\.tokenizer=null: is needed for text"):
        continuation(model(None), "x", tokens=1, temperature=0.0, top_k=None, seed=0)


def test_a_text_that_is_not_utf_8_is_refused() -> None:
    with pytest.raises(UserError, match=r"\\udcff: the text is not in UTF-8"):
        text_of("a\udcff")


def test_the_space_before_the_first_word_of_a_continuation_is_kept() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {"▁some": 1, "▁text": ord("d"), "<eos>": 256}
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<eos>"))
    library.pre_tokenizer, library.decoder = tokenizers.pre_tokenizers.Metaspace(), tokenizers.decoders.Metaspace()
    library.add_special_tokens(["<eos>"])
    known = model(library.to_str())
    assert continuation(known, "some", tokens=2, temperature=0, top_k=None, seed=0) == " text text"
    assert known.task.tokenizer.sizes[[1, ord("d"), 256]].tolist() == [5, 5, 0]
    library.decoder = tokenizers.decoders.WordPiece()
    assert not model(library.to_str()).task.tokenizer.sizes.any()


def test_the_name_of_a_file_is_noted_to_be_the_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "prompt.txt").write_text("some text")
    values = dict.fromkeys(("temperature", "top_k", "seed"))
    for text, count in ((str(tmp_path / "prompt.txt"), 1), ("some text", 0)):
        words = Namespace(images=[text], tokens=2, json=False, **values)
        TextPresenter(words, model().task.config).present(model())
        out, errors = capsys.readouterr()
        assert (out, errors.count("is continued as a text, not read")) == (f"{text}dd\n", count)
