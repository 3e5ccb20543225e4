"""`train`: dispatch a command line to the module of its verb; imports no torch."""

import argparse
import codecs
import errno
import importlib
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import NoReturn, TextIO, cast

from launcher import paths, plugins
from launcher.errors import (
    CLOSED_PIPE,
    EXIT_USER_ERROR,
    FAILED,
    MORE_PROCESSES,
    MachineError,
    Printable,
    UserError,
    is_out_of_memory,
    is_out_of_processes,
    one_line,
)
from launcher.files import disk
from launcher.plugins import registered
from launcher.stopping import StopRequested, on_stop, raise_stop
from launcher.version import __version__

VERBS = {
    "run": "train a model (this verb is optional)",
    "ls": "list recipes with their published results, and the options of each config group",
    "show": "print the resolved config of a command line",
    "schema": "print the JSON Schema of a run's config: keys, types, bounds, options, descriptions",
    "plan": "show what a run will do: steps, learning rate, image size, order of algorithms",
    "estimate": "estimate a run's time, cost and bottleneck (data, transfer or step) from seconds of its steps",
    "diff": "compare the configs of two recipes or run folders",
    "resume": "resume a run from its newest checkpoint",
    "eval": "evaluate a run's newest checkpoint, also on other images, and class by class",
    "predict": "print the most likely classes of images, from a run or an export",
    "prepare": "write a data set's FFCV files, or check them",
    "export": "write a run's weights with their model card, or an ONNX program",
    "submit": "submit a run as a job to Slurm, SkyPilot or Kubernetes",
    "completion": "print the script for tab completion in bash, zsh or fish",
    "doctor": "check this machine: GPUs, driver, data, memory, disk, loaders",
    "look": "write a page of a data set and of the images that a run trains on",
    "help": "print what a verb does, or what keys take: types, defaults, descriptions",
}
_MODULES = {verb: f"launcher.cli.{verb}" for verb in VERBS} | {"eval": "launcher.cli.evaluate"}
for _added in registered(plugins.VERBS).values():
    for _verb, (_module, _meaning) in _added.items():
        VERBS.setdefault(_verb, _meaning)
        _MODULES.setdefault(_verb, _module)

# The verbs whose words are of one run; without words the last ones are of none. FFCV files are alike for all recipes.
_OF_A_RUN = ("run", "plan", "show", "estimate", "submit")
_OF_WORDS = ("look", "doctor")

_EXAMPLES = """examples:
  train epochs=1                                a ResNet-18 on built-in images, in a minute on a CPU
  train recipe=mild dataset=imagenet dataset.path=/data/imagenet
  train recipe=hot epochs=300 algorithms.mixup=off algorithms.sam.interval=5
  train plan recipe=hot epochs=240
  train show recipe=medium --origin
  train help plan                               what a verb does, and its options
  train help image.scale                        what a key takes, its default, and what it means
  train help agents                             what scripts and agents need to know
  train resume                                  resume the newest unfinished run"""


_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)
# What replaces the characters that the encoding of the terminal lacks; others are escaped.
_ASCII = {"\u2192": "->", "\u25cf": "*", "\u00b1": "+-", "\u00b7": "-", "\u2026": "..."}


def main(words: Sequence[str] | None = None) -> int:
    """Run one command line and return the exit code."""
    is_command = words is None
    words = list(sys.argv[1:] if words is None else words)
    if is_command:
        _open_streams()
        _isolate()
    _configure_libraries()
    codecs.register_error("train", _replaced)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and codecs.lookup(stream.encoding).name != "utf-8":
            stream.reconfigure(errors="train")
    if "_ARGCOMPLETE" in os.environ:
        from launcher.cli.completion import complete

        complete(VERBS, lambda verb: parser_of(verb, module_of(verb)))
    with _printable_streams():
        return _exit_code(words, is_command)


@contextmanager
def _printable_streams() -> Iterator[None]:
    """Escape control characters of foreign text on the terminal; programs that read standard output get all of it."""
    out = cast(TextIO, Printable(sys.stdout)) if sys.stdout.isatty() else sys.stdout
    with redirect_stdout(out), redirect_stderr(cast(TextIO, Printable(sys.stderr))):
        yield


def _exit_code(words: list[str], is_command: bool) -> int:
    """Run the words, print an error in one line, and return the exit code."""
    try:
        if is_command:
            on_stop(raise_stop)
        code = _run(words)
        # note: here an error of the disk is one line
        sys.stdout.flush()
        return code
    except UserError as error:
        for problem in error.problems:
            print(f"error: {problem}", file=sys.stderr)
        return EXIT_USER_ERROR
    except BrokenPipeError:
        # note: the reader of a pipe such as `train ls | head` has exited; Python flushes again at exit
        if is_command:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return CLOSED_PIPE
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _DENIED and error.filename:
            print(f"error: {disk.line(error)}", file=sys.stderr)
            return EXIT_USER_ERROR
        if (message := _of_the_machine(error)) is None:
            raise
        print(f"error: {one_line(message)}", file=sys.stderr)
        if is_command and isinstance(error, OSError):
            # note: otherwise Python flushes again at exit and prints its own error
            os._exit(FAILED)
        return FAILED
    except StopRequested as stop:
        print(stop, file=sys.stderr, flush=True)
        if is_command:
            # note: Python would wait at exit for threads that read from a network
            os._exit(stop.exit_code)
        return stop.exit_code
    finally:
        if is_command:
            # note: the interpreter takes seconds to exit
            on_stop(signal.SIG_IGN)


def _of_the_machine(error: Exception) -> str | None:
    """Return the message for a failure of the machine; None for an error of the program."""
    if isinstance(error, MachineError):
        return str(error)
    reason = f"{type(error).__name__}: {error}"
    if is_out_of_processes(reason) and getattr(error, "filename", None) is None:
        return f"no further process or thread can start ({reason}); {MORE_PROCESSES}"
    if isinstance(error, OSError) and disk.is_known(error):
        return disk.line(error)
    if is_out_of_memory(reason):
        return f"not enough memory ({reason}); free some, or raise the limit (ulimit -v)"
    return None


def _replaced(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that an encoding lacks, as an error handler of `codecs`."""
    assert isinstance(error, UnicodeEncodeError)
    text = error.object[error.start : error.end]
    return "".join(_ASCII.get(one) or one.encode("ascii", "backslashreplace").decode() for one in text), error.end


def _run(words: list[str]) -> int:
    """Run the verb at the start of the words, or print the overview or version."""
    if words[1:] == ["help"] and words[0] in VERBS:
        words = ["help", words[0]]
    if words[:1] in ([], ["-h"], ["--help"]) or words == ["help"]:
        print(_overview())
        return 0
    if words[:1] in (["-V"], ["--version"], ["version"]):
        print(f"train {__version__}")
        return 0
    try:
        Path.cwd()
    except FileNotFoundError:
        raise UserError("the working directory was deleted; type cd into another one, and try again") from None
    verb = words.pop(0) if words[0] in VERBS else "run"
    from launcher.cli.words import (  # note: here a stop signal during the import ends without a traceback
        has_recipe,
        read,
        with_code,
    )

    module = module_of(verb)
    arguments = read(verb, with_code(parser_of(verb, module), words), parsers())
    arguments.composed = arguments.seen = None
    typed = getattr(arguments, "overrides", ())
    # note: a budget chooses the recipe
    is_chosen = getattr(arguments, "budget", None) is not None
    of_files = verb == "prepare" and "recipe=auto" in typed
    chooses = verb in _OF_A_RUN or (verb in _OF_WORDS and typed) or of_files
    if chooses and not is_chosen and not has_recipe(typed):
        from launcher.cli.auto import with_recipe

        options = [f"--{arguments.kind}"] if verb == "submit" else []
        arguments.overrides, arguments.composed, arguments.seen = with_recipe(verb, typed, *options)
    return int(module.main(arguments))


def _configure_libraries() -> None:
    # note: idle threads must not spin on cores that others need; torch reads this on import, here and in ranks
    # note: in lower case, because libgomp compares letters by the locale, and Turkish has two kinds of i
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # note: torch would print stack frames for a lost connection; the launcher removes it for the ranks, which have logs
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    # note: pydantic would search every installed package for plug-ins
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")


def _open_streams() -> None:
    """Open closed standard streams on the null device; otherwise the next files would get their numbers."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8"))


def _isolate() -> None:
    """Keep this command and its processes from modules of the working directory, and give them a home folder."""
    # note: in a source tree that is not installed, `python -m launcher` finds the package there
    if sys.path[:1] != [str(paths.PACKAGE.parent)]:
        os.environ.setdefault("PYTHONSAFEPATH", "1")
    if (note := paths.ensure_home()) is not None:
        print(f"note: {note}", file=sys.stderr)


class _Parser(argparse.ArgumentParser):
    """Raise a `UserError` for a wrong argument."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; `{self.prog} --help` shows examples")


def module_of(verb: str) -> ModuleType:
    """Import the module of a verb."""
    return importlib.import_module(_MODULES[verb])


def parser_of(verb: str, module: ModuleType) -> argparse.ArgumentParser:
    """Build the parser of a verb."""
    parser = _Parser(
        prog=f"train {verb}",
        description=VERBS[verb][0].upper() + VERBS[verb][1:] + ".",
        epilog="examples:\n" + "\n".join(f"  {example}" for example in module.EXAMPLES),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.configure(parser)
    return parser


def parsers() -> dict[str, Callable[[], argparse.ArgumentParser]]:
    """Return what builds the parser of each verb; it imports the verb's module."""
    return {verb: partial(lambda name: parser_of(name, module_of(name)), verb) for verb in VERBS}


def _overview() -> str:
    """Return the usage, the verbs and examples."""
    verbs = "\n".join(f"  {verb:10} {meaning}" for verb, meaning in VERBS.items())
    usage = "usage: train [verb] [recipe=NAME] [key=value ...]"
    what = "Train image classifiers, segmentations and GPT-2 with efficient recipes."
    return f"{usage}\n\n{what}\n\nverbs:\n{verbs}\n\n{_EXAMPLES}"
