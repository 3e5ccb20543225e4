"""Names of classes: the text that a data set has, and their order."""

import re
import unicodedata
from collections.abc import Iterable
from decimal import Decimal

_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")


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
