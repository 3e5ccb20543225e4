"""What conf/ holds: the options of its groups, and the defaults that Hydra composes of them.

What was composed is kept in the cache folder, train.yaml and each option by itself, under the SHA-256 of all that it
depends on: its name, the contents of conf/, and the versions of Hydra and OmegaConf. Importing and running Hydra takes
longer than all the rest.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from yaml import YAMLError

from launcher import __version__, atomic, paths
from launcher.errors import UserError, one_line

_TRAIN = "train"


def options(group: str) -> list[str]:
    """Names of a group's options, or of all algorithms."""
    folder = paths.CONF / group
    return [*_names(folder, folder.stat().st_mtime_ns)]


@cache
def _names(folder: Path, _modified: int) -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in folder.glob("*.yaml")))


def about(group: str, name: str) -> str:
    """What an option or algorithm is: the remark at the start of its file, which may be empty."""
    lines = (paths.CONF / group / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    return " ".join(line[2:].strip() for line in itertools.takewhile(lambda line: line.startswith("# "), lines))


def defaults(chosen: Mapping[str, str], algorithms: Collection[str]) -> Mapping[str, Any]:
    """The values of conf/ with the chosen option of each group, and those of the algorithms.

    Raises:
        UserError: a file of conf/ is none that Hydra can compose.
    """
    methods = {name: f"algorithms/{name}" for name in sorted(algorithms)}
    others = {group: f"{group}/{option}" for group, option in chosen.items()}
    values = _values((*sorted(others.values()), *methods.values()))
    return {
        **values[_TRAIN],
        **{group: values[name] for group, name in others.items()},
        "algorithms": {method: values[name] for method, name in methods.items()},
    }


@cache
def _values(chosen: tuple[str, ...]) -> Mapping[str, Any]:
    """The values of train.yaml and of these options, `group/option`; what is not kept is composed at once, and kept."""
    kept = {name: _kept_as(name) for name in (_TRAIN, *chosen)}
    found = {name: values for name, path in kept.items() if path is not None and (values := _read(path)) is not None}
    if missing := kept.keys() - found.keys():
        composed = _composed(missing)
        for name in missing:
            found[name] = composed[name]
            if (path := kept[name]) is not None:
                _keep(found[name], path)
    return found


def _composed(names: Collection[str]) -> dict[str, dict[str, Any]]:
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    # note: numbers, and quotes, since to Hydra a name may be a path or a value
    places = {name: f"option{number}" for number, name in enumerate(sorted(names)) if name != _TRAIN}
    words = [f"+{group}@{place}='{option}'" for name, place in places.items() for group, option in [name.split("/")]]
    try:
        with initialize_config_dir(config_dir=str(paths.CONF), version_base="1.3"):
            composed = OmegaConf.to_container(compose(_TRAIN if _TRAIN in names else None, words))
    except (HydraException, OmegaConfBaseException, YAMLError, UnicodeDecodeError, OSError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{paths.CONF} cannot be composed: {one_line(reason)}") from None
    assert isinstance(composed, dict)
    return {**{name: composed.pop(place) for name, place in places.items()}, _TRAIN: composed}


def _kept_as(name: str) -> Path | None:
    """The file of what Hydra composes of train.yaml or of an option; None where there is no place for it."""
    try:
        depends = hashlib.sha256(json.dumps([__version__, _files_digest(), name]).encode())
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
