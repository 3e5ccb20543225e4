"""Names of classes: the text that a data set has, and their order."""

import re
import unicodedata
from collections.abc import Iterable
from contextlib import suppress
from decimal import Decimal

_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")

# What a column of a label may have.
STATES = {"1": True, "1.0": True, "true": True, "0": False, "0.0": False, "false": False}
_DECIMAL = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
_LARGEST = 3.4e38  # of float32


def number(text: str) -> float:
    """Return a decimal number; raises ValueError for what Python's float reads besides, as nan, 1_000 or other digits.

    So it does for numbers that float32 does not hold.
    """
    if not _DECIMAL.fullmatch(text.strip()) or abs(value := float(text)) > _LARGEST:
        raise ValueError(text)
    return value


def is_number(text: str) -> bool:
    """Return whether a text is a `number`."""
    with suppress(ValueError):
        number(text)
        return True
    return False


def is_state(text: str) -> bool:
    """Return whether a text states that a class is present or absent."""
    return text.lower() in STATES


# What the label of a task is: the check of a number, or of a class in its own column, and the remedy.
VALUES = {"numbers": (is_number, "which is no number; write one"), "classes": (is_state, "not 1 or 0; write one")}


def class_name(label: object) -> str:
    """Return the name of a class: the text of its label without spaces around it, `composed`."""
    return composed(str(label).strip())


def composed(text: str) -> str:
    """Return a text in Unicode's composed form (NFC), so that equal names of folders are one class."""
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def in_order(names: Iterable[str]) -> list[str]:
    """Return distinct names sorted: by value if all are numbers, else as text."""
    distinct = sorted({*names})
    return sorted(distinct, key=Decimal) if all(map(_NUMBER.fullmatch, distinct)) else distinct
