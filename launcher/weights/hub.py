"""The Hugging Face Hub: repositories of models by `hub:NAME/MODEL`, and its errors; imports no torch.

Only weights and JSON files are downloaded, into the Hub's cache. Nothing of them is executed.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from launcher.config.choices import HUB
from launcher.errors import Problem, UserError, is_of_the_machine, one_line

_PART = r"[A-Za-z0-9][\w.-]{0,95}"
_NAME = re.compile(rf"{HUB}({_PART}/{_PART})(?:@([\w./-]+))?")
_FORM = f"is not a repository of the Hub; type {HUB}NAME/MODEL"
_LOGIN = "run `hf auth login`, or set HF_TOKEN"


class Repository(NamedTuple):
    """The name of a repository, and a branch, tag or commit; None for its main branch."""

    name: str
    revision: str | None


def repository(text: str, key: str | None = None) -> Repository:
    """Return the repository of a text `hub:NAME/MODEL` or `hub:NAME/MODEL@REVISION`.

    Raises UserError if the text has another form; `key` is that of the text.
    """
    if match := _NAME.fullmatch(text):
        return Repository(match[1], match[2])
    raise UserError(Problem(_FORM, key, text) if key else f"{text} {_FORM}")


def downloaded(text: str, files: Sequence[str], key: str | None = None) -> Path:
    """Download those of the files that a repository has, unless the cache has them, and return their folder.

    Raises UserError if the repository does not exist, cannot be read, or lacks the first file.
    """
    name, revision = repository(text, key)
    with one_line_errors(text, key):
        from huggingface_hub import snapshot_download

        folder = Path(snapshot_download(name, revision=revision, allow_patterns=[*files]))
    if not (folder / files[0]).is_file():
        message = f"has no {files[0]}; choose a repository with one"
        raise UserError(Problem(message, key, text) if key else f"{text} {message}")
    return folder


@contextmanager
def one_line_errors(text: str, key: str | None = None) -> Iterator[None]:
    """Turn the errors of the Hub's library into UserErrors on a repository; show progress on terminals only."""
    from huggingface_hub import constants
    from huggingface_hub.utils import disable_progress_bars
    from huggingface_hub.utils.logging import set_verbosity_error

    # note: otherwise each attempt prints a warning
    set_verbosity_error()
    if not sys.stderr.isatty():
        disable_progress_bars()
    try:
        yield
    # note: errors of the library, its HTTP client, or the system
    except Exception as error:
        if is_of_the_machine(error) and not isinstance(error, OSError):
            raise
        message = _reason(error, constants.ENDPOINT)
        raise UserError(Problem(message, key, text) if key else f"{text} {message}") from None


def _reason(error: Exception, endpoint: str) -> str:
    """Return what is wrong and what to do; without the texts of responses, which may have the token."""
    from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError

    if isinstance(error, LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        return _reason(error.__cause__, endpoint)
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status == 401 and not isinstance(error, RepositoryNotFoundError):
        return f"cannot be reached: the Hub refuses your token (401); {_LOGIN}"
    if isinstance(error, RevisionNotFoundError):
        return "has no such branch, tag or commit; remove what follows the @"
    if status == 403:
        return f"is closed to your token, which needs write access to push (403); {_LOGIN} with another"
    if status in (401, 404):
        return f"does not exist, or your token cannot read it ({status}); correct the name, or {_LOGIN}"
    if status is not None:
        return f"failed: {endpoint} returned {status}; try again later"
    if isinstance(error, OSError) and error.strerror:
        return f"failed: {one_line(error.strerror)}; free disk space or check permissions and network"
    return f"cannot be reached: no connection to {endpoint} ({type(error).__name__}); check the network, or HF_ENDPOINT"
