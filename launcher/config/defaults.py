"""What conf/ holds: the options of its groups, and the defaults that Hydra composes of them.

What was composed is kept in the cache folder under the SHA-256 of all that it depends on: the words given to Hydra, the
contents of conf/, and the versions of Hydra and OmegaConf. Importing and running Hydra takes longer than all the rest.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from yaml import YAMLError

from launcher import __version__, atomic, paths
from launcher.errors import UserError, one_line


def options(group: str) -> list[str]:
    """Names of a group's options, or of all algorithms."""
    return sorted(path.stem for path in (paths.CONF / group).glob("*.yaml"))


def about(group: str, name: str) -> str:
    """What an option or algorithm is: the remark at the start of its file, which may be empty."""
    lines = (paths.CONF / group / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    return " ".join(line[2:].strip() for line in itertools.takewhile(lambda line: line.startswith("# "), lines))


def defaults(chosen: Mapping[str, str], algorithms: Collection[str]) -> Mapping[str, Any]:
    """The values of conf/ with the chosen option of each group, and those of the algorithms.

    Raises:
        UserError: a file of conf/ is none that Hydra can compose.
    """
    values = _defaults(tuple(f"{group}={option}" for group, option in sorted(chosen.items())))
    if not algorithms:
        return values
    # note: all at once, so that no choice of some has to be composed
    every = _defaults(tuple(f"+algorithms@algorithms.{name}={name}" for name in options("algorithms")))["algorithms"]
    return {**values, "algorithms": {name: every[name] for name in sorted(algorithms)}}


@cache
def _defaults(words: tuple[str, ...]) -> Mapping[str, Any]:
    kept = _kept_as(words)
    if kept is not None and (values := _read(kept)) is not None:
        return values
    values = _composed(words)
    if kept is not None:
        _keep(values, kept)
    return values


def _composed(words: Sequence[str]) -> dict[str, Any]:
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        with initialize_config_dir(config_dir=str(paths.CONF), version_base="1.3"):
            composed = OmegaConf.to_container(compose("train", list(words)))
    except (HydraException, OmegaConfBaseException, YAMLError, UnicodeDecodeError, OSError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{paths.CONF} cannot be composed: {one_line(reason)}") from None
    assert isinstance(composed, dict)
    return {str(name): value for name, value in composed.items()}


def _kept_as(words: Sequence[str]) -> Path | None:
    """The file of what Hydra composes of these words; None where there is no place for it."""
    try:
        depends = hashlib.sha256(json.dumps([__version__, _files_digest(), *words]).encode())
        return paths.cache() / "composed" / f"{depends.hexdigest()}.json"
    except (OSError, RuntimeError):
        return None


@cache
def _files_digest() -> str:
    depends = hashlib.sha256()
    files = [path for package in ("hydra/__init__.py", "omegaconf/version.py") for path in _source(package)]
    for path in (*files, *sorted(paths.CONF.rglob("*.yaml"))):
        content = path.read_bytes()
        depends.update(f"\0{path.name}\0{path.parent.name}\0{len(content)}\0".encode() + content)
    return depends.hexdigest()


def _source(file: str) -> list[Path]:
    """A file of an installed package, which is not imported."""
    package, _, name = file.partition("/")
    spec = find_spec(package)
    return [Path(spec.origin).with_name(name)] if spec is not None and spec.origin else []


def _read(path: Path) -> dict[str, Any] | None:
    """The values that a file keeps; None if it is not there, or not as it was written."""
    with suppress(OSError, ValueError):
        digest, _, text = path.read_text(encoding="utf-8").partition("\n")
        if hashlib.sha256(text.encode()).hexdigest() == digest:
            values = json.loads(text)
            return values if isinstance(values, dict) else None
    return None


def _keep(values: Mapping[str, Any], path: Path) -> None:
    """Write the values for the next command; it does without them where nothing can be written."""
    text = json.dumps(values)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.write_text(path, f"{hashlib.sha256(text.encode()).hexdigest()}\n{text}", shared=True)
