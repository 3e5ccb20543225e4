"""Every command in README and docs works, each one in a message is read, and every link has a target."""

import io
import json
import re
import runpy
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import redirect_stdout
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import pytest
import yaml

from launcher.cli import main as cli
from launcher.cli.words import read
from launcher.config.keys import all_keys
from tests.examples import covering, train
from tests.messages import messages

from .pages import PAGES, ROOT, Block, all_blocks

COMMANDS = [
    (block, line.removeprefix("$ ") if block.language == "console" else line)
    for block in all_blocks()
    # note: test_adding.py covers this page, in a copy of the source
    if block.language in ("", "sh", "console") and block.page != "adding.md"
    for line in block.text.replace("\\\n", " ").splitlines()
    if block.language != "console" or line.startswith("$ ")
]

SUGGESTED = re.compile(r"(\S+ |`|)\btrain ([a-z][a-z-]*)([^;,:`)<\n]*)")


def make(words: list[str]) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(words) <= set(targets)


def python(words: list[str]) -> None:
    """Check that a script exists, or that the help of a module lists the flags."""
    if words[0] != "-m":
        assert (ROOT / words[0]).is_file()
    elif (ROOT / words[1].partition(".")[0]).is_dir():
        help_flag = patch("sys.argv", [words[1], "--help"])
        with help_flag, redirect_stdout(io.StringIO()) as out, pytest.raises(SystemExit, match="0"):
            runpy.run_module(words[1], run_name="__main__")
        assert all(word.split("=")[0] in out.getvalue() for word in words[2:] if word.startswith("--"))


def docker(words: list[str]) -> None:
    """Check that the words after the image of `docker run` are a command line of `train`."""
    if words[0] == "build":
        assert (ROOT / "Dockerfile").is_file()
    if words[0] == "run":
        train(words[words.index("train") + 1 :])


def pip(words: list[str]) -> None:
    """Check that this project has the extras that are installed with it."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    chosen = [re.search(r"^(?:\.|train-launcher)\[(.+)\]", word) for word in words]
    assert {extra for match in chosen if match for extra in match[1].split(",")} <= set(extras)


def pytest_(words: list[str]) -> None:
    assert all((ROOT / word.partition("::")[0]).exists() for word in words if word.startswith("tests"))


PROGRAMS = {"train": train, "make": make, "python": python, "docker": docker, "pip": pip, "pytest": pytest_}
# What a page shows of them is theirs.
OTHER_PROGRAMS = {
    *("cd", "git", "kubectl", "mkdir", "mkdocs", "pre-commit", "rsync", "sbatch", "sky", "source", "squeue"),
    *("python3", "sed", "sudo", "tar", "uv"),
}


def words_of(line: str) -> list[str]:
    """Return the words of a command without the variables before it."""
    words = shlex.split(line.removeprefix("$ "), comments=True)
    while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
        words = words[1:]
    return words


def is_output(line: str) -> bool:
    """Return whether a line is the output of a command."""
    return line.startswith(("error: ", "note: "))


def has_error(block: Block, line: str) -> bool:
    """Return whether the page shows an error after a command."""
    after = block.lines[block.lines.index(line) + 1 :] if line in block.lines else ()
    return bool(after) and after[0].startswith("error: ")


WORKING = [
    (block, line)
    for block, line in COMMANDS
    if not is_output(line) and not has_error(block, line)
    if words_of(line) and Path(words_of(line)[0]).name not in OTHER_PROGRAMS
]
# `make test` has these, the rest all.
COVERING = covering(words_of(line) for _, line in WORKING)


@pytest.mark.filterwarnings("ignore:.*found in sys.modules")
@pytest.mark.parametrize(
    ("block", "line"),
    [
        pytest.param(
            b,
            line,
            id=f"{b.page}: {line}",
            marks=() if tuple(words_of(line)) in COVERING else pytest.mark.sweep,
        )
        for b, line in WORKING
    ],
)
def test_each_command_works(block: Block, line: str) -> None:
    program, *words = words_of(line)
    PROGRAMS[Path(program).name](words)


def suggested() -> Iterator[tuple[str, list[str]]]:
    """Yield the verb and the words of each command in a message, up to where its sentence goes on."""
    for _, text in messages():
        for before, verb, rest in SUGGESTED.findall(text):
            if verb in cli.VERBS or before.lstrip("(") in ("`", "by ", "run ", "see "):
                words = rest.split()
                plain = [n for n, word in enumerate(words) if re.fullmatch("[a-z]+", word) and (verb, n) != ("ls", 0)]
                yield verb, words[: plain[0] if plain else None]


def test_each_command_that_a_message_suggests_is_read() -> None:
    commands = {(verb, *words) for verb, words in suggested() if words}
    assert len(commands) > 20
    for verb, *words in commands:
        # note: `...` stands for a value of the message
        read(verb, [word.replace("...", "x=1") for word in words], cli.parsers())
        help_of_verb = cli.parsers()[verb]().format_help()
        for key in (word.partition("=")[0] for word in words if "=" in word and "..." not in word.partition("=")[0]):
            assert key in all_keys() or f"{key}=" in help_of_verb, (verb, words)


@pytest.mark.parametrize(
    "block", [b for b in all_blocks() if b.language != "text" and any(map(is_output, b.lines))], ids=str
)
def test_the_shown_output_is_the_real_output(block: Block, capsys: pytest.CaptureFixture[str]) -> None:
    lines = block.lines
    for command, output in pairwise(lines):
        if is_output(output):
            assert cli.main(shlex.split(command.removeprefix("$ "))[1:]) == 2
            assert capsys.readouterr().err.splitlines() == [output]


@pytest.mark.parametrize("block", [b for b in all_blocks() if b.language not in ("", "sh", "text", "console")], ids=str)
def test_other_blocks_parse(block: Block) -> None:
    language, text = block.language, block.text
    parse = {
        "yaml": yaml.safe_load,
        "json": json.loads,
        "toml": tomllib.loads,
        "python": lambda source: compile(source, "block", "exec"),
        "bash": lambda source: subprocess.run(["bash", "-n"], input=source, text=True, check=True),
        "diff": lambda source: source.index("@@"),
    }
    parse[language](text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.name))
def test_each_link_has_a_file_and_a_heading(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]*)(?:#[^)]*)?\)", page.read_text()):
        if target and "://" not in target:
            assert (page.parent / target).exists(), target
    for target, heading in re.findall(r"\]\(([^)#\s]*)#([^)]*)\)", page.read_text()):
        if "://" not in target:
            text = (page.parent / target if target else page).read_text()
            headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
            assert heading in {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}, heading
