"""The files of the user's that a run needs, for jobs whose machines do not share this folder."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from launcher import paths
from launcher.config import code
from launcher.config.overrides import SEARCH_PATH, parse
from launcher.errors import Problem, Problems, UserError

# The folder of the job with these files, from which it starts `train`.
FOLDER = "/job"
_MOST_BYTES = 900_000  # a ConfigMap holds 1 MiB


def own_files(words: Sequence[str], modules: Sequence[str]) -> dict[str, Path]:
    """Return the user's recipes, options and code by their paths in this folder, where `train` looks for them.

    modules: the paths of `code` in the config.

    Raises UserError if a file is not in this folder, or they have more than 900 kB.
    """
    problems = Problems()
    assignments = parse(words, problems)
    problems.settle()
    files = {**_below(Path("conf")), **_below(Path("recipes"))}
    for one in assignments:
        if one.key in (SEARCH_PATH, code.KEY):
            for name in map(str, one.value if isinstance(one.value, list) else [one.value]):
                files |= _named(one.key, name.removeprefix("file://"), problems)
    here = Path.cwd()
    for path in map(Path, modules):
        if path.is_relative_to(here):
            files |= _named(code.KEY, str(path.relative_to(here)), problems)
        elif "site-packages" not in path.parts:
            problems.append(_outside(code.KEY, path))
    problems.settle()
    if (size := sum(path.stat().st_size for path in files.values())) > _MOST_BYTES:
        largest = max(files, key=lambda name: files[name].stat().st_size)
        message = f"the files of conf/, recipes/ and code= have {size / 1000:,.0f} kB, but a job carries 900 kB"
        raise UserError(f"{message}; move those that the run does not need elsewhere, such as {largest}")
    return dict(sorted(files.items()))


def has_own_files(modules: Sequence[str]) -> bool:
    """Return whether the run may need files of this folder."""
    return bool(modules or _below(Path("conf")) or _below(Path("recipes")))


def code_words(modules: Sequence[str]) -> list[str]:
    """Return the word, if any, that names the code, without which a new machine resumes no run that has some."""
    here, names = Path.cwd(), list[str]()
    for path in map(Path, modules):
        place = path.relative_to(here) if path.is_relative_to(here) else path
        names.append(path.stem if "site-packages" in path.parts else str(place))
    return [f"{code.KEY}=[{','.join(names)}]"] if names else []


def _below(folder: Path) -> dict[str, Path]:
    if not folder.is_dir() or any(folder.samefile(own) for own in (paths.CONF, paths.PACKAGED_RECIPES) if own.is_dir()):
        return {}
    return {path.as_posix(): path for path in _files(folder, ".yaml")}


def _named(key: str, name: str, problems: Problems) -> dict[str, Path]:
    """Return the files of a folder of options, or of a file or package of code; none of an installed package."""
    path = Path(name)
    if key == code.KEY and not path.exists():
        return {}
    if path.is_absolute() or ".." in path.parts:
        problems.append(_outside(key, path))
        return {}
    suffix = ".py" if key == code.KEY else ".yaml"
    return {file.as_posix(): file for file in ([path] if path.is_file() else _files(path, suffix))}


def _outside(key: str, path: Path) -> Problem:
    message = f"is not a path in this folder, so the job would not have it; copy it here, and set {key}={path.name}"
    return Problem(message, key, path)


def _files(folder: Path, suffix: str) -> Iterator[Path]:
    # note: the composition follows links to folders too
    files = (Path(place, name) for place, _, names in os.walk(folder, followlinks=True) for name in names)
    return (path for path in sorted(files) if path.suffix == suffix and path.is_file())
