"""What folders, archives and tables hold that is not read: counted by reason, with an example; imports no torch."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from launcher.counts import count_of

NO_IMAGE = "files without an image extension"
LOOSE = "images beside the class folders, not in one"
LINKS = "links out of the split's folder or to a folder below a class"
BROKEN = "names of a broken or looping link, a pipe or a device"
REPLACED = "images that a later one of the same name replaces, as when unpacking"
UNREADABLE = "images that cannot be decoded"
_REMEDIES = {LINKS: "; set dataset.links=follow to read them"}


class Dropped(NamedTuple):
    """A number of entries that are dropped for one reason, and the name of the first."""

    rows: int
    example: str


# By reason.
Drops = dict[str, Dropped]


def drop(drops: Drops, reason: str, example: str, count: int = 1) -> None:
    """Count entries that are dropped for a reason."""
    before = drops.get(reason, Dropped(0, example))
    drops[reason] = Dropped(before.rows + count, before.example)


def drops_of(reasons: Mapping[str, Sequence[str]]) -> Drops:
    """Return the drops of names by reason."""
    return {reason: Dropped(len(names), names[0]) for reason, names in reasons.items() if names}


def notes_on(*several: Mapping[str, Dropped]) -> list[str]:
    """Return a note for each reason of some drops, with a remedy if there is one."""
    total: Drops = {}
    for drops in several:
        for reason, (count, example) in drops.items():
            drop(total, reason, example, count)
    return [
        f"skipping {_counted(one.rows, reason)}, such as {one.example}{_REMEDIES.get(reason, '')}"
        for reason, one in total.items()
    ]


def _counted(rows: int, reason: str) -> str:
    """Return a number of entries with their reason, which starts with a plural in `s`."""
    noun, _, rest = reason.partition(" ")
    return f"{count_of(rows, noun.removesuffix('s'))} {rest}"
