"""Words that are similar to a wrong one, to suggest them."""

from collections.abc import Iterable

_BEGINNING = 3  # letters
# The share of the longer word's letters that may differ: among words of one kind, and among those of all kinds.
ALIKE, ALMOST_EQUAL = 1 / 3, 1 / 5


def nearest(word: str, choices: Iterable[str], most: float = ALIKE) -> str | None:
    """Return the choice most similar to a word; else the first that starts with it and is up to twice as long.

    Letters are compared without case. None if no choice is close, since a far one would mislead.
    """
    choices, lower = list(choices), word.lower()
    within = {one: int(most * max(len(word), len(one))) for one in choices}
    # note: a difference of lengths is a bound that takes no time
    alike = [one for one in choices if abs(len(word) - len(one)) <= within[one]]
    differing = {one: distance(lower, one.lower()) for one in alike}
    close = [one for one in alike if differing[one] <= within[one]]
    longer = [one for one in choices if one.lower().startswith(lower) and _BEGINNING <= len(word) >= len(one) / 2]
    return min(close, key=lambda one: differing[one] / len(one)) if close else next(iter(longer), None)


def distance(first: str, second: str) -> int:
    """Return the number of letters to insert, remove, replace or swap with the next one (Damerau, 1964)."""
    rows = [list(range(len(second) + 1))]
    for i, left in enumerate(first, 1):
        row = [i]
        for j, right in enumerate(second, 1):
            changes = [rows[-1][j] + 1, row[-1] + 1, rows[-1][j - 1] + (left != right)]
            if i > 1 and j > 1 and (first[i - 2], left) == (right, second[j - 2]):
                changes.append(rows[-2][j - 2] + 1)
            row.append(min(changes))
        rows.append(row)
    return rows[-1][-1]


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return `did you mean X? one of: ...`, the end of a message."""
    choices = sorted(choices)
    like = nearest(word, choices)
    hint = f"did you mean {like}? " if like else ""
    return f"{hint}one of: {', '.join(choices)}"
