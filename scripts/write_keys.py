"""Write docs/keys.md, the list of all keys: types from the schema, defaults and descriptions from conf/.

Run it after either changes: .venv/bin/python scripts/write_keys.py
"""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from launcher.cli.help import tables
from launcher.config.key_tables import Table

PAGE = Path(__file__).resolve().parents[1] / "docs" / "keys.md"
_HEAD = """\
# Every key

    train help image.scale
    train show recipe=hot --origin

The first command prints rows of this page, of a key, a group, an option or a word; the second prints every value of a
run and its origin. Set a value as `KEY=VALUE` on the command line ([Configuration](configuration.md)). Durations are
`8ep` (epochs), `100ba` (batches) or `0.5dur` (a fraction of the run). `scripts/write_keys.py` writes this page from the
schema and `conf/`.
"""
_SUBMIT = "\nThese are values of `train submit`, not of the run.\n"


def page() -> str:
    """Return the whole page."""
    parts = [_HEAD]
    for section, several in groupby(tables(), lambda one: one.section.partition(".")[0]):
        parts.append(f"## {section or 'The run'}\n{_SUBMIT * (section == 'submit')}")
        for one in several:
            parts += [*_head(section, one), _rows(one)]
    return "\n".join(parts)


def _head(section: str, table: Table) -> Iterator[str]:
    """Yield what is above a table: an algorithm, a cluster, or the options of a group."""
    if section == "algorithms":
        yield f"### {table.section.partition('.')[2]}\n\n{next(iter(table.options.values()))}\n"
    elif section == "submit":
        yield f"### {next(iter(table.options))}\n"
    elif table.options:
        yield "".join(f"`{word}`{': ' * bool(about)}{about}  \n" for word, about in table.options.items())


def _rows(table: Table) -> str:
    """Return the rows: accepted values, defaults and descriptions."""
    if not table.rows:
        return "No values: on or off.\n" if table.section.startswith("algorithms.") else "No values of its own.\n"
    rows = [f"| `{one.key}` | {one.takes} | {one.default} | {one.description} |" for one in table.rows]
    return "\n".join(["| key | takes | default | |", "|---|---|---|---|", *rows]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
    print(PAGE)
