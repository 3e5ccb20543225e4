"""A copy of a run folder in a bucket, through fsspec: pushed after each checkpoint, fetched onto a new disk.

The config is pushed last: a folder without it is not fetched. A checkpoint ends with its checksum, which a load checks.
"""

import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path

from launcher.config.schema import RunConfig
from launcher.errors import Problem, UserError, one_line
from launcher.records.run_folder import RunFolder, checkpoint_files

_DIGEST_BYTES = 32  # at the end of a checkpoint
_RECORDS = ("environment.json", "dataset.json", "skipped.json", "metrics.jsonl", "config.yaml")


class Mirror:
    """The copy of one run at `url`, the folder of the run in the bucket.

    Raises UserError if the protocol is unknown, its package is not installed, or the bucket cannot be reached.
    """

    def __init__(self, url: str):
        self.url = url
        import fsspec  # note: only runs with a mirror need it

        try:
            # note: listings must show what other machines push
            self._system, self._path = fsspec.core.url_to_fs(url, use_listings_cache=False)
            self.exists = bool(self._system.exists(f"{self._path}/config.yaml"))
        except ImportError as error:
            raise self._problem(f"needs a package ({error}); pip install it into this environment") from None
        except Exception as error:  # note: each file system raises other errors
            raise self._problem(f"cannot be used ({_reason(error)}); check the URL and your credentials") from None
        self._pushed: dict[str, tuple[int, int]] = {}

    def push(self, folder: RunFolder) -> None:
        """Copy what has changed of the newest checkpoint, the best one and the records; drop older checkpoints.

        Raises OSError if a copy differs from its file, or what the file system raises.
        """
        checkpoints = [path for _, path in checkpoint_files(folder.checkpoints)]
        newest = checkpoints[-1:]
        for path in [*newest, *[folder.best] * folder.best.is_file(), *(folder.path / name for name in _RECORDS)]:
            # note: a later checkpoint may have replaced it meanwhile
            with suppress(FileNotFoundError):
                self._push_file(path, path.relative_to(folder.path).as_posix())
        # note: a run resumed from an older copy must not remove what it has not computed again
        for remote in self._system.find(f"{self._path}/checkpoints"):
            if checkpoints and (name := Path(remote).name).startswith("step-") and name < checkpoints[0].name:
                self._system.rm_file(remote)

    def _push_file(self, path: Path, name: str) -> None:
        status, remote = path.stat(), f"{self._path}/{name}"
        if self._pushed.get(name) == (status.st_size, status.st_mtime_ns):
            return
        self._system.makedirs(remote.rpartition("/")[0], exist_ok=True)
        if path.suffix == ".pt":
            with path.open("rb") as file:
                file.seek(-_DIGEST_BYTES, 2)
                digest = file.read()
            self._system.put_file(str(path), remote)
            if self._system.size(remote) != status.st_size or self._system.tail(remote, _DIGEST_BYTES) != digest:
                raise OSError(f"the copy of {name} differs from the file")
        else:
            self._system.pipe_file(remote, path.read_bytes())
        self._pushed[name] = (status.st_size, status.st_mtime_ns)

    def fetch(self, folder: Path) -> RunFolder:
        """Copy the run into a folder that does not exist yet; it appears whole or not at all.

        Raises UserError if the bucket has no such run, or a file cannot be copied.
        """
        if not self.exists:
            raise self._problem("no run there: it has no config.yaml; type the URL of a run")
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as temporary:
                copy = Path(temporary) / folder.name
                for remote, entry in self._system.find(self._path, detail=True).items():
                    local = copy / remote.removeprefix(self._path).lstrip("/")
                    local.parent.mkdir(parents=True, exist_ok=True)
                    self._system.get_file(remote, str(local))
                    if local.stat().st_size != entry["size"]:
                        raise OSError(f"{remote} was copied in part")
                (copy / "logs").mkdir(exist_ok=True)
                copy.rename(folder)
        except Exception as error:
            raise self._problem(f"cannot be copied to {folder} ({_reason(error)}); try again") from None
        return RunFolder(folder)

    def _problem(self, message: str) -> UserError:
        return UserError(Problem(message, "checkpoint.mirror", self.url))


def mirror_of(config: RunConfig, name: str) -> Mirror | None:
    """Open the mirror of the run of this name; None without `checkpoint.mirror`."""
    url = config.checkpoint.mirror
    return None if url is None else Mirror(f"{url.rstrip('/')}/{name}")


class Pusher:
    """Pushes a run folder to its mirror in a thread; a failed push is a warning, and the next one retries."""

    def __init__(self, mirror: Mirror, folder: RunFolder, beat: Callable[[], None]):
        self._mirror, self._folder, self._beat = mirror, folder, beat
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="push")
        self._last: Future[None] | None = None

    def push(self) -> None:
        """Push what is new in the background."""
        self._last = self._thread.submit(self._push)

    def close(self) -> None:
        """Push what is new, such as the last records, and wait for it."""
        self.push()
        while self._last is not None and wait([self._last], timeout=1).not_done:
            self._beat()
        self._thread.shutdown()

    def _push(self) -> None:
        began = time.monotonic()
        try:
            self._mirror.push(self._folder)
        except Exception as error:
            reason = f"{_reason(error)}, after {time.monotonic() - began:.0f} s"
            warning = f"warning: checkpoint.mirror={self._mirror.url} lacks the newest checkpoint ({reason})"
            print(f"{warning}; training continues and retries at the next checkpoint", flush=True)


def _reason(error: BaseException) -> str:
    return one_line(str(error) if type(error) is OSError else f"{type(error).__name__}: {error}")[:300]
