"""origins.json: what set each value of a run's config, such as its recipe or the command line."""

import json
from collections.abc import Iterable, Mapping

from launcher.files import atomic
from launcher.records.run_folder import RunFolder

RESUME = "train resume"


def write_origins(folder: RunFolder, origins: Mapping[str, str]) -> None:
    """Write the origin of each dotted key."""
    atomic.write_text(folder.origins, json.dumps({**origins}, indent=1) + "\n")


def note_resume(folder: RunFolder, keys: Iterable[str]) -> None:
    """Note that a resume has set these keys."""
    write_origins(folder, read_origins(folder) | dict.fromkeys(keys, RESUME))


def read_origins(folder: RunFolder) -> dict[str, str]:
    """Return the origin of each dotted key, as far as it is known; folders of older versions have none."""
    try:
        origins = json.loads(folder.origins.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return {key: origin for key, origin in origins.items() if isinstance(origin, str)} if type(origins) is dict else {}
