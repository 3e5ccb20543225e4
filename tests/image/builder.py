"""Build the Dockerfile's image without an engine: each stage is a Debian root file system, each RUN a chroot.

Supports the instructions of this project's Dockerfile; needs root, debootstrap and a Debian mirror.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

_RELEASE = {"debian:12-slim": "bookworm", "debian:13-slim": "trixie"}
_MOUNTED = ("/proc", "/dev", "/sys")
# this machine's access to package registries
_OF_THE_HOST = ("/etc/resolv.conf", "/etc/hosts")
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_CERTIFICATES_INSIDE = "/etc/host-certificates.crt"
_FORWARDED = re.compile(r"(?i)pip_.*|https?_proxy|no_proxy")


@dataclass
class Stage:
    """One root file system with its current ENV, WORKDIR and USER."""

    root: Path
    environment: dict[str, str] = field(default_factory=lambda: {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
    folder: str = "/"
    user: str = "root"
    entry: list[str] = field(default_factory=list)
    volumes: list[str] = field(default_factory=list)

    def run(
        self, command: list[str], *, network: bool = False, read_only: bool = False, **more: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command inside, as the stage's user in its folder; `network` forwards this machine's settings.

        read_only: only the volumes and an empty /tmp can be written, as with `docker run --read-only --tmpfs /tmp`.
        """
        forwarded = {k: v for k, v in os.environ.items() if _FORWARDED.fullmatch(k)} if network else {}
        if (self.root / _CERTIFICATES_INSIDE.lstrip("/")).exists():
            forwarded["PIP_CERT"] = _CERTIFICATES_INSIDE
        environment = {**forwarded, **self.environment, **more}
        inside = f"cd {shlex.quote(self.folder)} && exec {shlex.join(command)}"
        start = [
            "chroot",
            f"--userspec={self.user}" + ":" * (":" not in self.user),
            str(self.root),
            "/bin/sh",
            "-c",
            inside,
        ]
        with _mounts(self.root, self.volumes if read_only else None):
            return subprocess.run(start, env=environment, capture_output=True, text=True, check=False)


def build(dockerfile: Path, context: Path, work: Path, log: Path) -> Stage:
    """Build all stages and return the last one; append the output of every RUN to the log.

    Raises AssertionError if an instruction fails or is not supported.
    """
    stages: list[Stage] = []
    names: dict[str, Stage] = {}
    for instruction, rest in instructions(dockerfile.read_text()):
        stage = stages[-1] if stages else None
        if instruction == "FROM":
            image, _, name = rest.partition(" AS ")
            stages.append(_fresh(_RELEASE[image], work / f"stage{len(stages)}"))
            names[name] = stages[-1]
            continue
        assert stage is not None
        if instruction == "RUN":
            done = stage.run(["/bin/sh", "-c", rest], network=True)
            with log.open("a") as file:
                file.write(f"$ {rest}\n{done.stdout}{done.stderr}\n")
            assert done.returncode == 0, f"{rest}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
        elif instruction == "COPY":
            _copy(stage, rest, names, context)
        else:
            _set(stage, instruction, rest)
    return stages[-1]


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """Yield the instruction and argument of each line; join continued lines."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        instruction, _, rest = line.partition(" ")
        yield instruction, " ".join(rest.split())


def _set(stage: Stage, instruction: str, rest: str) -> None:
    match instruction:
        case "ENV" | "ARG":
            name, _, value = rest.partition("=")
            stage.environment[name] = re.sub(r"\$(\w+)", lambda match: stage.environment.get(match[1], ""), value)
        case "WORKDIR":
            stage.folder = rest
            (stage.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
        case "USER":
            stage.user = rest
        case "VOLUME":
            stage.volumes += json.loads(rest)
        case "ENTRYPOINT":
            stage.entry = json.loads(rest)
        case _:
            raise AssertionError(f"unknown instruction {instruction}")


def _copy(stage: Stage, rest: str, names: dict[str, Stage], context: Path) -> None:
    *options, source, target = rest.split()
    (origin,) = [option.removeprefix("--from=") for option in options] or [""]
    place = stage.root / (target.lstrip("/") if target.startswith("/") else f"{stage.folder}/{target}".lstrip("/"))
    if origin:
        shutil.copytree(names[origin].root / source.lstrip("/"), place, symlinks=True, dirs_exist_ok=True)
        return
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=context, capture_output=True, text=True, check=True).stdout
    for name in tracked.split("\0"):
        if name and (context / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(context / name, place / name)


def _fresh(release: str, root: Path) -> Stage:
    """Return a minimal Debian, installed once per release and copied."""
    base = root.with_name(release)
    if not base.exists():
        command = ["debootstrap", "--variant=minbase", release, str(base)]
        subprocess.run(command, check=True, capture_output=True)
    subprocess.run(["cp", "-a", str(base), str(root)], check=True)
    if _CERTIFICATES.is_file():
        shutil.copy(_CERTIFICATES, root / _CERTIFICATES_INSIDE.lstrip("/"))
    for path in [*map(Path, _OF_THE_HOST), *Path("/etc/apt/apt.conf.d").glob("99*")]:
        if path.is_file():
            (root / path.relative_to("/")).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, root / path.relative_to("/"))
    return Stage(root)


@contextmanager
def _mounts(root: Path, writable: list[str] | None) -> Iterator[None]:
    """Mount this machine's devices in a root file system, which is read-only except for the volumes in `writable`."""
    mounted = []
    try:
        if writable is not None:
            for target in (root, *(root / volume.lstrip("/") for volume in writable)):
                subprocess.run(["mount", "--bind", str(target), str(target)], check=True)
                mounted.append(target)
            subprocess.run(["mount", "-o", "remount,bind,ro", str(root)], check=True)
            subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(root / "tmp")], check=True)
            mounted.append(root / "tmp")
        for name in _MOUNTED:
            target = root / name.lstrip("/")
            subprocess.run(["mount", "--rbind", name, str(target)], check=True)
            subprocess.run(["mount", "--make-rslave", str(target)], check=True)
            mounted.append(target)
        yield
    finally:
        for target in reversed(mounted):
            subprocess.run(["umount", "--recursive", "--lazy", str(target)], check=True)
