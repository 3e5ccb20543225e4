"""Words that are similar to a wrong one, to suggest them."""

import difflib
from collections.abc import Iterable

# Below this ratio of difflib, two words have little in common.
_SIMILAR = 0.66
_BEGINNING = 3  # letters


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """Return the choice most similar to a word, or else the first that starts with it; None if none is close."""
    word, choices = word.lower(), list(choices)
    longer = [choice for choice in choices if len(word) >= _BEGINNING and choice.startswith(word)]
    return next(iter([*difflib.get_close_matches(word, choices, n=1, cutoff=_SIMILAR), *longer]), None)


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return `did you mean X? one of: ...`, the end of a message."""
    choices = sorted(choices)
    like = nearest(word, choices)
    hint = f"did you mean {like}? " if like else ""
    return f"{hint}one of: {', '.join(choices)}"
