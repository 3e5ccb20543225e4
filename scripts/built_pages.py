"""The pages that mkdocs builds into the site, as a hook: all keys, and the comparison with the published code."""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from launcher.cli.help import tables
from launcher.config.key_tables import Table
from launcher.installation import repository

FIDELITY = Path(__file__).resolve().parents[1] / "docs" / "fidelity.yaml"
VERDICTS = {"same": "as published", "published": "`fidelity=published`", "differs": "differs"}
_KEYS = """\
# Every key

    train help image.scale
    train show recipe=hot --origin

The first command prints rows of this page, of a key, a group, an option or a word; the second prints every value of a
run and its origin. Set a value as `KEY=VALUE` on the command line ([Configuration](configuration.md)). Durations are
`8ep` (epochs), `100ba` (batches) or `0.5dur` (a fraction of the run).
"""
_SUBMIT = "\nThese are values of `train submit`, not of the run.\n"
_COMPARED = """\
# Fidelity

    train recipe=hot fidelity=published dataset.path=/data/imagenet

This page lists, per algorithm and recipe, whether this project computes what the published code computes: the same
("as published"), the same with `fidelity=published`, which sets the key in parentheses, or something else, with the
reason ("differs"). [Recipes](recipes.md#fidelity) has what holds for all rows.
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the built pages to those of docs/."""
    for name, text in pages().items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Return a page with the addresses of the files outside docs/ that it links."""
    return markdown.replace("](../", f"]({repository()}/blob/main/")


def pages() -> dict[str, str]:
    """Return the text of each built page by its name."""
    return {"keys.md": _all_keys(), "fidelity.md": _compared()}


def _all_keys() -> str:
    parts = [_KEYS]
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


def _compared() -> str:
    table: dict[str, dict[str, list[dict[str, Any]]]] = yaml.safe_load(FIDELITY.read_text())
    parts = [_COMPARED]
    for section, names in table.items():
        rows = [_row(name, row) for name, rows in names.items() for row in rows]
        parts.append(f"## {section.capitalize()}\n\n| | | what |\n|---|---|---|\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def _row(name: str, row: dict[str, Any]) -> str:
    (verdict,) = row.keys() & VERDICTS.keys()
    what = row[verdict]
    if verdict == "published":
        what += f" ({', '.join(f'`{key}`' for key in row['keys'])})"
    if verdict == "differs":
        what += f": {row['why']}"
    return f"| `{name}` | {VERDICTS[verdict]} | {what} |"
