"""Random command lines of every verb: each works, or its error contains the wrong word.

COMMAND_LINES=10000 tests more lines, from number COMMAND_LINES_FIRST on, each within two seconds of processor time.
"""

import io
import os
import random
import re
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from launcher.cli import main as cli
from launcher.config.compose import Composed, compose
from launcher.config.keys import all_keys
from launcher.config.layers import leaves
from launcher.config.resolved import as_mapping, continued, read, write
from launcher.launch.prepare import prepare

LINES = int(os.environ.get("COMMAND_LINES", "40"))
FIRST = int(os.environ.get("COMMAND_LINES_FIRST", "0"))
SHAPES = ["recipe=mild", "dataset=shapes", "model=resnet18", "launch=cpu", "batch_size=64"]
VERBS: dict[str, list[str]] = {
    **dict.fromkeys(("", "run", "show", "plan", "estimate", "prepare", "doctor"), SHAPES),
    "ablate": [*SHAPES, "algorithms=[]", "--grid"],
    "curve": [*SHAPES, "epochs=3,6"],
    "submit": ["--slurm", *SHAPES, "launch.nproc=1"],
    "resume": ["run"],
}
OTHERS = [
    *(["ls"], ["ls", "algorithms"], ["diff", "mild", "hot"], ["completion", "bash"], ["help", "plan"], ["--version"]),
    *(["eval", "run"], ["export", "run"], ["compare", "runs"], ["compare", "--published"]),
    *(["report", "run", "-o", "page.html"], ["report", "x" * 300, "-o", f"{'x' * 300}/a.csv"], ["compare", "x" * 300]),
    *(["ablate", "--grid", f"runs={'x' * 300}"], ["diff", "x" * 300, "hot"], ["resume", "x" * 300]),
]
VALUES = [
    *("", "[0.2]", "[[1],[2]]", "{a: 1}", "{a: {b: [1]}}", "nan", "inf", "-1", "0", "1e400", "9" * 30, "x" * 300),
    *("true", "off", "of", "8ep", "0.5dur", "日本", "a b", "it's", "(x", "]", "a=b", "1,2", "${seed}", "${nope}"),
    *("glob(*)", "range(0,1000000000)", "choice(1,2)", "--x", "$HOME/é", "[a", "{", "'", '"', "hot", "resnet18"),
    *("null", "~/x", "*", "auto"),
]
BARE = [
    *("", "plann", "hto", "hot", "frobnicate", "epochs", "=", "-q", "-m", "--dry-run", "--config", "--lr", "--epoch"),
    *(
        "--foo=1",
        "-",
        "~ema",
        "~algorithms.ema",
        "+x=1",
        "x" * 300,
        "[/x]",
        "é",
        "recipe=",
        "=3",
        "a.b.c=1",
        "plan",
        "@",
    ),
]


class Stopped(Exception):
    """Raised where a verb would start its work."""


def stop(*_: Any, **__: Any) -> Any:
    raise Stopped


def prepare_and_stop(composed: Composed, *_: object, **__: object) -> None:
    prepare(composed)
    raise Stopped


@pytest.fixture
def nothing_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder with a run, and end each verb before its work."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    write(compose(["recipe=mild", "dataset=shapes"]).config, tmp_path / "run" / "config.yaml")
    for name in (
        "launcher.measure.launch.measure_steps",
        "launcher.cli.prepare._prepare",
        "launcher_lab.cli.training.Training.run",
    ):
        monkeypatch.setattr(name, stop)
    for name in ("measure.launch.prepare_here", "launch.start.start"):
        monkeypatch.setattr(f"launcher.{name}", prepare_and_stop)
    monkeypatch.setattr(
        "launcher.launch.start.resume", lambda folder, words, *_, **__: continued(read(folder.config), words) and stop()
    )
    monkeypatch.setattr("launcher.cli.doctor.examine", lambda config, report: [])


def misspelled(random_: random.Random, word: str) -> str:
    at = random_.randrange(len(word))
    return random_.choice([word[:at] + word[at + 1 :], word[:at] + "x" + word[at:], word.upper()])


def word_of(random_: random.Random, right: dict[str, Any]) -> list[str]:
    """Return a word: a key with a right or wrong value, a wrong key, or another word; sometimes as a flag."""
    kind = random_.random()
    key = random_.choice(sorted(right) if kind < 0.3 else all_keys())
    value = str(right[key]) if kind < 0.3 else random_.choice(VALUES)
    if kind > 0.9:
        return [random_.choice(BARE)]
    if kind > 0.75:
        key = misspelled(random_, key)
    form = random_.random()
    return [f"--{key}={value}"] if form < 0.1 else [f"--{key}", value] if form < 0.2 else [f"{key}={value}"]


def line_of(number: int, right: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Return a valid command line, and words to append."""
    random_ = random.Random(number)
    if random_.random() < 0.2:
        return random_.choice(OTHERS), [random_.choice(BARE)]
    verb = random_.choice(sorted(VERBS))
    many = 1 if random_.random() < 0.6 else random_.randrange(4)
    return [*([verb] if verb else []), *VERBS[verb]], [w for _ in range(many) for w in word_of(random_, right)]


def mentions(error: str, added: list[str]) -> bool:
    """Return whether an error contains a flag, a key or a value of the words, or its first 37 characters."""
    parts = {part[:37] for word in added for part in (word, *word.split("=", 1), re.split("[.=]", word)[0]) if part}
    return any(part.lstrip("-+~").replace("-", "_") in error.replace("-", "_") for part in parts) or "''" in error


@pytest.mark.usefixtures("nothing_starts")
def test_every_command_line_works_or_prints_its_error() -> None:
    right = {
        key: str(value).lower() if isinstance(value, bool) else "null" if value is None else value
        for key, value in leaves(as_mapping(compose(SHAPES).config))
    }
    for verb, base in VERBS.items():
        run([*([verb] if verb else []), *base])  # note: imports do not count as time of a line
    wrong = [fault for number in range(FIRST, FIRST + LINES) if (fault := fault_of(number, right))]
    assert not wrong, f"{len(wrong)} of {LINES}: {wrong[:20]}"


def fault_of(number: int, right: dict[str, Any]) -> tuple[Any, ...] | None:
    """Return what is wrong with the result of a line, None if nothing."""
    base, added = line_of(number, right)
    before = time.process_time()
    code, errors = run([*base, *added])
    seconds = time.process_time() - before
    fine = code in (0, 2) and (code == 2) == bool(errors) and all(text.startswith("error: ") for text in errors)
    if added and errors and base not in OTHERS:
        fine = fine and any(mentions(text, added) for text in errors)
    return None if fine and (seconds < 2 or LINES == 40) else (number, base, added, code, errors, seconds)


def run(words: list[str]) -> tuple[int | str, list[str]]:
    """Return the exit code, or an exception that no user should see, and the error lines."""
    errors = io.StringIO()
    with redirect_stdout(io.StringIO()), redirect_stderr(errors):
        try:
            code: int | str = cli.main(words)
        except Stopped:
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        except Exception as error:
            code = repr(error)
    return code, [text for text in errors.getvalue().splitlines() if not text.startswith(("note: ", "auto: "))]
