"""`train help WORD`: print the usage of a verb, or rows of the table of keys: types, defaults and descriptions."""

import argparse
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

from launcher import paths
from launcher.cli import main as cli
from launcher.config import recipes
from launcher.config.key_tables import Row, Table, of_job, of_run
from launcher.config.keys import line_instead, nearest_key, synonyms
from launcher.config.similar import nearest
from launcher.console import console, print_json, table, verbatim
from launcher.errors import Problem, UserError
from launcher.installation import absolute_links
from launcher.submit.kubernetes import Kubernetes
from launcher.submit.sky import Sky
from launcher.submit.slurm import Slurm

EXAMPLES = ["train help image.scale", "train help optimizer=sgd", "train help crop", "train help submit"]
AGENTS = "agents"


def configure(parser: argparse.ArgumentParser) -> None:
    meaning = "a verb, a key, a group or option of keys, or a word to search for; agents: what scripts need to know"
    parser.add_argument("word", metavar="WORD", nargs="?", help=meaning)
    parser.add_argument("--json", action="store_true", help="as one JSON object")


@dataclass(frozen=True)
class _Shown:
    """A row of the output; `of` are the options that have the key, none for a key of all runs."""

    key: str
    of: list[str]
    takes: str
    default: str
    description: str


_Found = tuple[list[_Shown], dict[str, str]]  # keys, and descriptions of options


def main(arguments: argparse.Namespace) -> int:
    word = arguments.word or "help"
    if word == AGENTS:
        print(absolute_links(paths.AGENTS.read_text(encoding="utf-8")), end="")
        return 0
    usage = cli.parser_of(word, cli.module_of(word)).format_help() if word in cli.VERBS else None
    every = [*tables()]
    rows, options = _section(word, every)
    if not (usage or rows or options):
        rows, options = _similar(word, every)
    if arguments.json:
        print_json({"usage": usage, "options": options, "keys": list(map(asdict, rows))})
        return 0
    print(usage or "", end="\n" if usage and rows else "")
    _print(rows, options)
    return 0


def tables() -> Iterator[Table]:
    """Yield the tables of all keys: of a run, and of a job of each cluster."""
    yield from of_run()
    yield from map(of_job, (Slurm, Sky, Kubernetes))


def _section(word: str, every: list[Table]) -> _Found:
    """Return the keys at or below a dotted name, or of an option such as `optimizer=sgd`."""
    key = word.lstrip("-").partition("=")[0]
    key = synonyms("keys").get(key.replace("-", "_"), key)
    names = (key, f"algorithms.{key}")
    chosen = [one for one in every if word in one.options]

    def is_below(name: str) -> bool:
        return not chosen and (name in names or name.startswith(tuple(f"{one}." for one in names)))

    rows = [(row, one) for one in every for row in one.rows if one in chosen or is_below(row.key)]
    return _shown(rows), _options(every, lambda name, _: name == word or is_below(name.partition("=")[0]))


def _similar(word: str, every: list[Table]) -> _Found:
    """Return the keys, and the options, that have a word in their names or descriptions.

    Raises UserError with the nearest verb or key if there are none.
    """
    if recipes.find(word) is not None:
        raise UserError(Problem(f"is a recipe; type train plan recipe={word}", "help", word))
    start = re.compile(rf"(?:\b|_){re.escape(word)}", re.IGNORECASE)
    if any(row.key.endswith(f".{word}") for one in every for row in one.rows):
        start = re.compile(rf"\.{re.escape(word)} ")
    rows = [(row, one) for one in every for row in one.rows if start.search(f"{row.key} {row.description}")]
    options = _options(every, lambda name, about: start.search(f"{name} {about}") is not None)
    if (rows or options) and len(word) > 1:
        return _shown(rows), options
    if line := line_instead(word, word):
        raise UserError(Problem(f"is no key; {line}", "help", word))
    verbs = {verb: verb for verb in cli.VERBS} | synonyms("verbs")
    like = nearest(word, [*verbs, *synonyms("keys"), *(one.section for one in every)]) or nearest_key(word)
    hint = f"did you mean train help {verbs.get(like, like)}?" if like else "`train --help` lists the verbs"
    raise UserError(Problem(f"no such verb or key; {hint}", "help", word))


def _options(every: list[Table], matches: Callable[[str, str], bool]) -> dict[str, str]:
    """Return the matching options with a description."""
    known = {name: about for one in every for name, about in one.options.items() if about}
    return {name: about for name, about in known.items() if matches(name, about)}


def _shown(found: list[tuple[Row, Table]]) -> list[_Shown]:
    """Return the rows with their options; equal rows once."""
    merged: dict[Row, list[str]] = {}
    for row, one in found:
        in_group = one.section and not one.section.startswith("algorithms.")
        merged.setdefault(row, []).extend(name.partition("=")[2] or name for name in one.options if in_group)
    return [
        _Shown(row.key, names, row.takes, row.default.replace("`", ""), row.description)
        for row, names in merged.items()
    ]


def _print(rows: list[_Shown], options: dict[str, str]) -> None:
    out = console()
    if options:
        out.print(table("option", "description", rows=(map(verbatim, pair) for pair in options.items())))
        print(end="\n" if rows else "")
    columns = ["key", "of", "takes", "default", "description"]
    cells = [[row.key, " ".join(row.of), row.takes, row.default, row.description] for row in rows]
    if not any(row.of for row in rows):
        for line in (columns, *cells):
            del line[1]
    if rows:
        out.print(table(*columns, rows=(map(verbatim, line) for line in cells)))
