"""The resolved config as a file, itself a valid config; differences between two, and changes allowed on resume."""

import hashlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from launcher.config.choices import LoggerConfig
from launcher.config.code import read_only, use_recorded
from launcher.config.compose import compose
from launcher.config.fields import ABSOLUTE, PLACE, RESUME, Role
from launcher.config.formats import completed, is_old_behaviour, is_removed, needs_code, removed_values, with_removed
from launcher.config.groups import values as group_values
from launcher.config.keys import path_keys, with_role
from launcher.config.layers import COMMAND_LINE, Layer, get, leaves, put, resolve, without
from launcher.config.overrides import OFF, ON, parse, sort_words
from launcher.config.schema import LOGGER, SWITCHED, RunConfig, Views
from launcher.config.secrets import secret_values
from launcher.config.switches import Switches
from launcher.config.validate import MISSING, NO_SUCH_KEY, validate
from launcher.config.yaml_file import as_yaml, read_mapping
from launcher.errors import Problem, Problems, UserError, one_line
from launcher.files import atomic
from launcher.files.disk import is_there

_OLDER = "resume the run with the version of train that wrote it"


def with_absolute_paths(config: RunConfig, *, resumed: bool = False) -> RunConfig:
    """Return the config with absolute paths, so that a run resumes from any folder; URLs stay.

    So do those of a `resumed` run that may not change.
    """
    values = as_mapping(config)
    for key in [key for key in with_role(ABSOLUTE) if is_free(key) or not resumed]:
        if (path := get(values, key)) is not None and "://" not in path:
            put(values, key, str(Path(path).absolute()))
    return validate(values)


def with_views(config: RunConfig, views: Views | None) -> RunConfig:
    """Return the config with other `image.eval_views`, if any. Raises UserError if the task has none."""
    return replace(config, image=replace(config.image, eval_views=views)) if views else config


def as_mapping(config: RunConfig) -> dict[str, Any]:
    """Return plain nested values."""
    values = asdict(config)
    values["algorithms"] = dict(values["algorithms"])
    return values


def portable(config: RunConfig) -> dict[str, Any]:
    """Return plain nested values without those that name a place or an account, for files that leave the machine.

    Paths and the rendezvous become null, `runs` its default, the logger metrics.jsonl; a library's weights stay.
    """
    plain = {name: kind for name, kind in LOGGER.declarations().items() if kind.sink is LoggerConfig.sink}
    name = next(iter(plain))
    logger = plain[name](name=name, interval=config.logger.interval, tensorboard=False)
    files = [Path(own).name for own in config.code]
    values = as_mapping(replace(config, runs="runs", logger=logger, code=files))
    for key in {*path_keys(), "launch.rdzv"} - {"runs"}:
        if get(values, key) not in (None, config.model.library):
            put(values, key, None)
    return values


def digest(config: RunConfig) -> str:
    """Return the SHA-256 of the values that decide the result, without the run's location."""
    values = {key: value for key, value in as_mapping(config).items() if key not in with_role(PLACE)}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def dump(config: RunConfig) -> str:
    """Dump the config as YAML in schema order."""
    return as_yaml(as_mapping(config), flow=None)


def write(config: RunConfig, path: Path) -> None:
    """Write the config atomically."""
    atomic.write_text(path, dump(config))


def read(path: Path, *, to_resume: bool = False, imports: bool = True) -> RunConfig:
    """Read a resolved config, as `typed_run` does.

    Raises UserError if the file is missing or invalid, and DiskError if it cannot be read.
    """
    if not is_there(path):
        raise UserError(f"{path} is missing: {path.parent} is not a run folder; pass one such as runs/mild-imagenet-1")
    values = read_mapping(path)
    try:
        return typed_run(values, str(path), lambda key: str(path), to_resume=to_resume, imports=imports)
    except UserError as error:
        remedy = "; restore the key, or use the version of train that wrote the file"
        raise UserError(
            *(replace(one, message=one.message + remedy * (one.message == MISSING)) for one in error.problems)
        ) from None


def typed_run(
    values: Mapping[str, Any],
    place: str,
    origin: Callable[[str], str | None] = lambda key: None,
    *,
    to_resume: bool = False,
    imports: bool = True,
) -> RunConfig:
    """Return the config of a run or an export, which stands at a place, with the user's code that it needs.

    Keys that an earlier version did not have get the value with its behaviour. Keys of another version are ignored with
    a note, or refused with `to_resume` if they could change the training; so are removed values. Without `imports` that
    code is not imported, and its options are `Unread`.

    Raises UserError if a value is invalid, or the code is not there, or not the same, or was never named.
    """
    if to_resume and (used := removed_values(values)):
        raise UserError(*(Problem(f"is gone; {_OLDER}", key, value, origin(key)) for key, value in used.items()))
    values = completed(values)
    if not imports and needs_code(values):
        with read_only():
            return _typed(values, place, origin, to_resume)
    values["code"] = use_recorded(values["code"], values["code_sha256"], place)
    return _typed(values, place, origin, to_resume)


def _typed(values: Mapping[str, Any], place: str, origin: Callable[[str], str | None], to_resume: bool) -> RunConfig:
    try:
        return validate(values, origin)
    except UserError as error:
        unknown = [str(problem.key) for problem in error.problems if problem.message.startswith(NO_SUCH_KEY)]
        # note: an algorithm may change the network
        lacking = [key for key in unknown if key.rpartition(".")[0] in SWITCHED and not is_removed(key)]
        if len(unknown) < len(error.problems) or lacking:
            # note: what the others need may bring the removed ones too
            others = [one for one in error.problems if str(one.key) not in unknown or not is_removed(str(one.key))]
            raise UserError(*(others or error.problems)) from None
        if to_resume and (used := [one for one in error.problems if not is_free(str(one.key))]):
            message = f"is no key of this version; {_OLDER}"
            raise UserError(*(replace(one, message=message) for one in used)) from None
        note(f"{place}: ignoring {', '.join(unknown)}: this version has no such key")
        return validate(without(values, unknown), origin)


@cache
def note(text: str) -> None:
    print(one_line(f"note: {text}"), file=sys.stderr)


def changed(before: RunConfig, after: RunConfig) -> list[str]:
    """Return the dotted keys whose values differ, in schema order."""
    first, second = dict(leaves(as_mapping(before))), dict(leaves(as_mapping(after)))
    return [key for key in dict.fromkeys([*first, *second]) if first.get(key) != second.get(key)]


def fingerprint(config: RunConfig) -> str:
    """Return the SHA-256 of the values that may not change on resume: equal for all attempts of one run."""
    return _fingerprint(as_mapping(config))


def written_fingerprint(path: Path) -> str:
    """Return the fingerprint of a config file as the version computed it that wrote it, with keys of that version."""
    return _fingerprint(read_mapping(path))


def _fingerprint(config: Mapping[str, Any]) -> str:
    values = {
        key: value
        for key, value in leaves(with_removed(config))
        # note: equal to that of a version without the key
        if not (is_free(key) or is_old_behaviour(key, value))
    }
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def is_free(key: str, role: Role = RESUME) -> bool:
    """Return whether a key may change when a run resumes, or has another role."""
    return any(key == one or (one.endswith(".") and f"{key}.".startswith(one)) for one in with_role(role))


def _fixed(role: Role, key: str, value: Any) -> Problem:
    how = "when a run resumes; start a new run, or change only" if role == RESUME else "in an evaluation; set only"
    return Problem(f"cannot change {how} {', '.join(with_role(role))}", key, value, COMMAND_LINE)


def continued(config: RunConfig, words: Sequence[str], role: Role = RESUME) -> RunConfig:
    """Return the config with changes; a group's option such as `launch=cpu` replaces the whole group.

    Raises UserError with every word that is invalid, or changes a key without this role.
    """
    problems, refuse = Problems(), partial(_fixed, role)
    before, values = as_mapping(config), as_mapping(config)
    assignments = parse(words, problems)
    chosen, setting = sort_words(assignments, problems)
    for group in SWITCHED:
        switches = Switches(group, [Layer(COMMAND_LINE, before)])
        switches.apply(assignments, problems)
        for name in sorted(switches.active.keys() ^ before[group].keys()):
            if name in values[group] and is_free(group, role):
                values[group] = without(values[group], {name})
            else:
                switch = ON if name in switches.active else OFF
                problems.append(refuse(f"{group}.{name}", switch))
        setting += [one for one in switches.values() if one.key.split(".")[1] in before[group]]
    for group, option in chosen.items():
        if is_free(group, role):
            values[group] = as_mapping(compose([f"{group}={option}"]).config)[group]
        elif group_values(group, option).get("name") != get(values, f"{group}.name"):
            problems.append(refuse(group, option))
    for one in setting:
        put(values, one.key, one.value)
    after = None
    with problems.collected():
        values = resolve(values, lambda key: COMMAND_LINE, problems)
        typed = {one.key: one.value for one in setting}
        problems += secret_values(typed, lambda key: COMMAND_LINE)
        after = validate(values, lambda key: COMMAND_LINE)
    reported = {problem.key for problem in problems}
    first, now = dict(leaves(before)), dict(leaves(as_mapping(after) if after else values))
    changes = [key for key in first if key in now and first[key] != now[key] and not is_free(key, role)]
    problems += [refuse(key, now[key]) for key in changes if key not in reported]
    problems.settle()
    assert after is not None
    return after
