"""A copy of a run folder in a bucket, through fsspec: pushed after each checkpoint, fetched onto a new disk.

The config is pushed last: a folder without it is not fetched. A checkpoint ends with its checksum, which a load checks.
Records are pushed in pieces, `metrics.jsonl`, `metrics.jsonl.1` and so on, of which only the last one changes.
"""

import re
import shutil
import tempfile
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock, Thread, current_thread
from typing import TypeVar

from launcher.config.schema import RunConfig
from launcher.errors import Problem, UserError, first_few, one_line
from launcher.files.disk import is_there
from launcher.installation import how_to_open
from launcher.paths import local_path
from launcher.records.mirrored import KEY, mirror_url
from launcher.records.run_folder import RunFolder, checkpoint_files

_DIGEST_BYTES = 32  # at the end of a checkpoint
_PIECE_BYTES = 1 << 23
_PIECE = re.compile(r"(.*\.jsonl)\.(\d{1,9})")
# A copy may take these seconds, and the time of its bytes at this rate; a mirror must respond within the former.
_SECONDS = 60.0
_BYTES_PER_SECOND = 1e6
_SECONDS_AFTER_A_STALL = 8.0

T = TypeVar("T")


@dataclass(frozen=True)
class Part:
    """What a file of the copy holds: bytes of a file on this machine; `changed` differs after each of its changes."""

    path: Path
    start: int
    size: int
    changed: int

    def read(self) -> bytes:
        with self.path.open("rb") as file:
            file.seek(self.start)
            return file.read(self.size)


class Mirror:
    """The copy of one run at `url`, the folder of the run in the bucket.

    Raises UserError if the protocol is unknown, its package is not installed, or the bucket cannot be reached.
    """

    def __init__(self, url: str):
        self.url = url
        import fsspec  # note: only runs with a mirror need it

        check_protocol(url)
        try:
            # note: listings must show what other machines push
            self._system, self._path = fsspec.core.url_to_fs(url, use_listings_cache=False)
            self.exists = within(_SECONDS, lambda: bool(self._system.exists(f"{self._path}/config.yaml")))
        except Exception as error:  # note: each file system raises other errors
            raise _problem(self.url, f"cannot be used ({_reason(error)}); check the URL and your credentials") from None
        self._pushed: dict[str, Part] = {}

    def lacks(self, folder: RunFolder) -> dict[str, Part]:
        """Return by name the parts that the mirror has not, or not as they are now; of the checkpoints the newest."""
        return {name: part for name, part in _parts(folder).items() if self._pushed.get(name) != part}

    def push(self, folder: RunFolder) -> None:
        """Copy what it lacks of the newest checkpoint, the best one and what else a resume needs; drop older ones.

        Raises OSError if a copy differs from its file, or what the file system raises.
        """
        checkpoints = [path for _, path in checkpoint_files(folder.checkpoints)]
        if not self._pushed:
            self._remove_pieces(known=_parts(folder))
        for name, part in self.lacks(folder).items():
            # note: a later checkpoint may have replaced it meanwhile
            with suppress(FileNotFoundError):
                self._push_part(name, part)
        # note: a run resumed from an older copy must not remove what it has not computed again
        for remote in self._system.find(f"{self._path}/checkpoints"):
            if checkpoints and (name := Path(remote).name).startswith("step-") and name < checkpoints[0].name:
                self._system.rm_file(remote)

    def _remove_pieces(self, known: Collection[str]) -> None:
        """Remove pieces of records that this machine has not: it resumes from an older copy."""
        for remote in self._system.find(self._path):
            if _PIECE.fullmatch(remote) and remote.removeprefix(f"{self._path}/") not in known:
                self._system.rm_file(remote)

    def _push_part(self, name: str, part: Part) -> None:
        remote = f"{self._path}/{name}"
        self._system.makedirs(remote.rpartition("/")[0], exist_ok=True)
        if part.path.suffix in (".pt", ".safetensors"):
            with part.path.open("rb") as file:
                file.seek(-_DIGEST_BYTES, 2)
                end = file.read()
            self._system.put_file(str(part.path), remote)
            if self._system.size(remote) != part.size or self._system.tail(remote, _DIGEST_BYTES) != end:
                raise OSError(f"the copy of {name} differs from the file")
        else:
            self._system.pipe_file(remote, part.read())
        self._pushed[name] = part

    def fetch(self, folder: Path) -> RunFolder:
        """Copy the run into a folder that does not exist yet; it appears whole or not at all.

        Raises UserError if the bucket has no such run, or a file cannot be copied, or not within its time.
        """
        if not self.exists:
            raise _problem(self.url, "no run there: it has no config.yaml; type the URL of a run")
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as temporary:
                copy = Path(temporary) / folder.name
                for remote, entry in within(_SECONDS, partial(self._system.find, self._path, detail=True)).items():
                    local = local_path(copy, remote.removeprefix(self._path).removeprefix("/"))
                    local.parent.mkdir(parents=True, exist_ok=True)
                    within(_seconds(entry["size"]), partial(self._system.get_file, remote, str(local)))
                    if local.stat().st_size != entry["size"]:
                        raise OSError(f"{remote} was copied in part")
                _join_pieces(copy)
                (copy / "logs").mkdir(exist_ok=True)
                copy.rename(folder)
        except ValueError as error:
            raise _problem(self.url, f"is not the mirror of a run: {error}; remove that file from it") from None
        except Exception as error:
            raise _problem(self.url, f"cannot be copied to {folder} ({_reason(error)}); try again") from None
        return RunFolder(folder)


def check_protocol(url: str) -> None:
    """Raise a UserError if the protocol of a mirror is unknown, or its package is not installed."""
    import fsspec

    try:
        for one in url.split("::"):
            fsspec.get_filesystem_class(one.partition("://")[0])
    except ImportError as error:
        raise _problem(url, f"needs a package ({error}); run {how_to_open(url)}") from None
    except ValueError as error:
        raise _problem(url, f"cannot be used ({_reason(error)}); check the URL and your credentials") from None


def _problem(url: str, message: str) -> UserError:
    return UserError(Problem(message, KEY, url))


def mirror_of(config: RunConfig, name: str) -> Mirror | None:
    """Open the mirror of the run of this name; None without `checkpoint.mirror`."""
    url = mirror_url(config, name)
    return None if url is None else Mirror(url)


class Pusher:
    """Pushes a run folder to its mirror in a thread; a failed or late push is a warning, and the next retries."""

    def __init__(self, mirror: Mirror, folder: RunFolder, beat: Callable[[], None]):
        self._mirror, self._folder, self._beat = mirror, folder, beat
        self._lock, self._is_due = Lock(), False
        self._thread: Thread | None = None
        self._has_stalled, self._patience = False, 1.0
        self._began, self._seconds = 0.0, _SECONDS
        self._is_last, self._failure = False, ""

    def push(self) -> None:
        """Push what is new in the background: after the push in progress, or instead if it has taken too long."""
        with self._lock:
            self._is_due = True
            if self._thread is not None and not self._is_given_up():
                return
            self._thread = Thread(target=self._push_all, name="push", daemon=True)
        self._thread.start()

    def _is_given_up(self) -> bool:
        """Return whether the time of the push in progress is over, with a warning the first time."""
        passed = time.monotonic() - self._began
        if passed <= self._seconds:
            return False
        if not self._has_stalled:
            self._warn(f"has not taken a copy for {passed:.0f} s, and lacks the newest checkpoint")
        # note: its thread remains, so there must not be many
        self._has_stalled, self._patience = True, 2 * self._patience
        return True

    def close(self) -> None:
        """Push what is new, such as the last records, and wait for it; print what is lacking then."""
        self._is_last = True
        self.push()
        end = time.monotonic() + (_SECONDS_AFTER_A_STALL if self._has_stalled else self._seconds)
        while (thread := self._thread) is not None and time.monotonic() < end:
            thread.join(min(1.0, end - time.monotonic()))
            self._beat()
        reason = "did not respond" if self._thread is not None else self._failure
        lacking = "the newest files"
        with suppress(OSError):
            lacking = first_few(list(self._mirror.lacks(self._folder)))
        if reason and lacking:
            files = f"{lacking} of {one_line(str(self._folder.path))}"
            print(f"warning: checkpoint.mirror={self._mirror.url} lacks {files} ({reason})", flush=True)

    def _push_all(self) -> None:
        while self._takes_next():
            try:
                # note: a file may disappear meanwhile
                with suppress(FileNotFoundError):
                    size = sum(part.size for part in self._mirror.lacks(self._folder).values())
                    self._seconds = self._patience * _seconds(size)
                self._mirror.push(self._folder)
                self._has_stalled, self._patience, self._failure = False, 1.0, ""
            except Exception as error:
                self._failure = f"{_reason(error)}, after {time.monotonic() - self._began:.0f} s"
                if not self._is_last:
                    self._warn(f"lacks the newest checkpoint ({self._failure})")

    def _takes_next(self) -> bool:
        """Return whether this thread, unless another has replaced it, has something to push."""
        with self._lock:
            if self._thread is not current_thread():
                return False
            if not self._is_due:
                self._thread = None
                return False
            self._is_due, self._began = False, time.monotonic()
            return True

    def _warn(self, problem: str) -> None:
        warning = f"warning: checkpoint.mirror={self._mirror.url} {problem}"
        print(f"{warning}; training continues and retries at the next checkpoint", flush=True)


def within(seconds: float, call: Callable[[], T]) -> T:
    """Return the result of a call, which may block for ever.

    Raises TimeoutError if it takes longer, and what the call raises.
    """
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(call())
        except BaseException as error:
            result.set_exception(error)

    Thread(target=run, daemon=True).start()
    try:
        return result.result(seconds)
    except TimeoutError:
        raise TimeoutError(f"no response within {seconds:.0f} s") from None


def _seconds(size: int) -> float:
    """Return the seconds that a copy of so many bytes may take."""
    return _SECONDS + size / _BYTES_PER_SECOND


def _parts(folder: RunFolder) -> dict[str, Part]:
    """Return the parts of a copy by name, the config last."""
    newest = [path for _, path in checkpoint_files(folder.checkpoints)][-1:]
    best = [folder.best] if is_there(folder.best) else []
    files = [*newest, *best, *folder.of_resume()]
    parts = {}
    for path in files:
        name, status = path.relative_to(folder.path).as_posix(), path.stat()
        most = _PIECE_BYTES if path == folder.metrics else max(1, status.st_size)
        for number, start in enumerate(range(0, status.st_size or 1, most)):
            size = min(most, status.st_size - start)
            # note: records are appended only, so all but the last piece stay as they are
            changed = 0 if start + size < status.st_size else status.st_mtime_ns
            parts[f"{name}.{number}" if number else name] = Part(path, start, size, changed)
    return parts


def _join_pieces(folder: Path) -> None:
    """Append the pieces of each file of records, and remove them. Raises OSError if one is missing."""
    pieces = [(match[1], int(match[2]), path) for path in folder.iterdir() if (match := _PIECE.fullmatch(path.name))]
    for name, number, _ in sorted(pieces):
        before = folder / (f"{name}.{number - 1}" if number > 1 else name)
        if not before.exists():
            raise OSError(f"{before.name} is missing")
    for name, _, path in sorted(pieces):
        with (folder / name).open("ab") as whole, path.open("rb") as piece:
            shutil.copyfileobj(piece, whole)
    for _, _, path in pieces:
        path.unlink()


def _reason(error: BaseException) -> str:
    return one_line(str(error) if type(error) is OSError else f"{type(error).__name__}: {error}")[:300]
