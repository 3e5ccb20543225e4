"""Counts with their nouns, such as `1 class` and `1,000 classes`."""

_ES = ("s", "x", "tch")


def count_of(count: float, noun: str) -> str:
    """Return a count and its noun, in the plural unless the count is 1; only the last word of the noun changes."""
    number = f"{count:g}" if isinstance(count, float) else f"{count:,}"
    return f"{number} {noun if count == 1 else plural(noun)}"


def plural(noun: str) -> str:
    """Return the regular plural of a noun."""
    if noun.endswith(("y", "ix")):
        return f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun[:-2]}ices"
    return f"{noun}{'es' if noun.endswith(_ES) else 's'}"
