"""Where a run is mirrored, and whether the user has typed that here: a folder from elsewhere may have any mirror."""

from collections.abc import Sequence

from launcher.config.schema import RunConfig
from launcher.errors import Problem, UserError, one_line
from launcher.records.run_folder import RunFolder
from launcher.records.writer import is_moved, write_place

KEY = "checkpoint.mirror"


def mirror_url(config: RunConfig, name: str) -> str | None:
    """Return the URL of the mirror of the run of this name; None without `checkpoint.mirror`."""
    url = config.checkpoint.mirror
    return None if url is None else f"{url.rstrip('/')}/{name}"


def check_mirrored(folder: RunFolder, config: RunConfig, words: Sequence[str], fetched_from: str | None) -> None:
    """Check that a run is where it was when its mirror was typed, or is typed now, in `words` or as `fetched_from`.

    Raises UserError if the folder was moved or copied, maybe by somebody else, whose mirror it would change.
    """
    url = mirror_url(config, folder.path.name)
    if url is None or not is_moved(folder):
        return
    if url != fetched_from and not any(word.startswith(f"{KEY}=") for word in words):
        message = f"{folder.path} was moved or copied here, and would change that mirror"
        remedy = f"type {KEY}={config.checkpoint.mirror} again to mirror it, or {KEY}=null"
        raise UserError(Problem(f"{message}; {remedy}", KEY, config.checkpoint.mirror))
    write_place(folder)


def mirrored(folder: RunFolder, config: RunConfig) -> list[str]:
    """Return the line with the mirror of a run, if it has one."""
    url = mirror_url(config, folder.path.name)
    return [] if url is None else [one_line(f"{folder.path} is mirrored to {url}")]
