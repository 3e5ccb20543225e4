"""Runs in environments of clusters and containers: their users, folders, limits, streams and locales."""

import ctypes
import os
import resource
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.images import write_images
from tests.runs import SMALL, Cold, Train

pytestmark = pytest.mark.system

# CLONE_NEWUSER of the kernel
_USER = 0x10000000
# A run of seconds with the networks of the product.
TINY = [
    *("recipe=small", "model=vit", "model.width=16", "model.depth=1", "model.heads=2", "model.mlp_width=16"),
    *("algorithms=[]", "epochs=1", "batch_size=4", "eval_batch_size=4", "image.train_size=32", "image.eval_size=32"),
    *("image.eval_resize=32", "launch=cpu", "logger.tensorboard=false"),
]
SHORTEST = [*SMALL, "epochs=1", "schedule.warmup=0ep", "run_name=run"]


def without(train: Train, *names: str, **values: str) -> Train:
    """Return the command without some variables of the environment, and with others."""
    kept = {name: value for name, value in train.environment.items() if name not in names}
    return replace(train, environment={**kept, **values})


def become_unknown() -> None:
    """Become user 54321 of a container, of whom passwd has no entry."""
    inside, outside = os.getuid(), os.getgid()
    assert ctypes.CDLL(None).unshare(_USER) == 0
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"54321 {inside} 1")
    Path("/proc/self/gid_map").write_text(f"54321 {outside} 1")


def test_a_user_without_an_entry_in_passwd_and_without_home_trains_and_predicts(train: Train, tmp_path: Path) -> None:
    if subprocess.run(["unshare", "-U", "true"], check=False, capture_output=True).returncode:
        pytest.skip("user namespaces cannot be created here")
    names = ("HOME", "USER", "LOGNAME", "XDG_CACHE_HOME")
    unknown = replace(without(train, *names, TMPDIR=str(tmp_path)), around=(*train.around, become_unknown))
    images = write_images(tmp_path / "images", {"train": 4, "val": 2})
    run = unknown(*SHORTEST, "dataset=image_folder", f"dataset.path={images}", "batch_size=8", "eval_batch_size=4")
    home = tmp_path / "train-home-54321"
    assert f"note: this user has no home folder, so HOME={home}; set another to keep caches" in run.stderr
    assert home.stat().st_mode & 0o777 == 0o700
    unknown("predict", "runs/run", str(images / "val"))
    assert not (train.folder / "~").exists()


@pytest.mark.parametrize("writable", [True, False])
def test_a_long_path_of_temporary_files_leaves_room_for_the_sockets_of_workers(
    train: Train, tmp_path: Path, writable: bool
) -> None:
    """Such as the folder of a Slurm job."""
    folder = tmp_path / ("a-folder-of-the-job-on-this-node-" * 4)
    folder.mkdir()
    before = () if writable else (forbid_tmp,)
    long = replace(without(train, TMPDIR=str(folder)), around=(*train.around, *before))
    done = long(*SHORTEST, "dataloader.workers=1", code=0 if writable else 2)
    assert not [*folder.iterdir()]
    if not writable:
        assert f"error: TMPDIR={folder} has more than 70 characters, too many for sockets" in done.stderr


def forbid_tmp() -> None:
    """Make /tmp a folder that does not exist, for what is not below it."""
    import tempfile

    made = tempfile.TemporaryDirectory

    def failing(*names: str, dir: str | None = None, **others: str) -> object:
        if dir == "/tmp":
            raise FileNotFoundError(2, "No such file or directory", dir)
        return made(*names, dir=dir, **others)

    tempfile.TemporaryDirectory = failing  # type: ignore[assignment, misc]


def test_modules_of_the_working_directory_are_not_imported(tmp_path: Path) -> None:
    for name in ("launcher/__init__.py", "launcher_lab/__init__.py", "random.py", "queue.py", "types.py", "torch.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("raise SystemExit('a module of the user is imported')\n")
    images = write_images(tmp_path / "images", {"train": 4, "val": 2})
    words = [*TINY, f"dataset.path={images}", "dataset.skip_bad=true", "dataloader.workers=1"]
    command = [str(Path(sys.executable).with_name("train")), *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "a module of the user" not in done.stdout + done.stderr


@pytest.mark.parametrize("words", ["ls", "plan epochs=1", "resume {}/runs/run"])
def test_a_working_directory_that_was_deleted_is_one_line(words: str, tmp_path: Path) -> None:
    script = f"mkdir here; cd here; rmdir ../here; {sys.executable} -m launcher {words.format(tmp_path)}"
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "error: the working directory was deleted; type cd into another one, and try again\n"


@pytest.mark.parametrize(("files", "most"), [(40, 256), (30, 30)])
def test_a_small_limit_of_open_files_is_raised_or_named(train: Train, files: int, most: int) -> None:
    limit = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (files, most))
    limited = replace(train, around=(*train.around, limit))
    output, errors = limited.start(*SHORTEST, "dataloader.workers=4", "launch.max_restarts=0").communicate(timeout=400)
    assert "training time" in output if most > files else "raise the limit of open files (ulimit -n)" in errors


@pytest.mark.parametrize("most", [6, 32])
def test_a_small_limit_of_processes_is_named_without_a_traceback(tmp_path: Path, most: int) -> None:
    # note: root and its capabilities have no such limit; files remain readable
    another = ["setpriv", "--reuid=54399", "--inh-caps=-all,+dac_override", "--ambient-caps=-all,+dac_override"]
    if (
        shutil.which("setpriv") is None
        or subprocess.run([*another, "true"], check=False, capture_output=True).returncode
    ):
        pytest.skip("limits of processes need root, setpriv and capabilities")
    images = write_images(tmp_path / "images", {"train": 8, "val": 4})
    words = [*TINY, f"dataset.path={images}", "dataloader.workers=2", "launch.nproc=2", "launch.max_restarts=0"]
    command = [*another, sys.executable, "-m", "launcher", *words, "launch.hang_timeout=60"]
    limit = partial(resource.setrlimit, resource.RLIMIT_NPROC, (most, most))
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, preexec_fn=limit)
    if done.returncode:
        assert (done.returncode, done.stderr[:7]) == (1, "error: "), done.stderr
        # note: with more processes torch's threads or a loader worker may end first
        assert "ulimit -u" in done.stderr or most > 6
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize("script", ["train ls <&- >log", "train ls >&- 2>log", "train ls >&- 2>&- <&-"])
def test_closed_streams_are_as_the_null_device(script: str, tmp_path: Path) -> None:
    """As of a job whose terminal is gone."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environment, check=False, capture_output=True)
    log = tmp_path / "log"
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert "Traceback" not in (log.read_text() if log.exists() else "")


def test_names_in_japanese_are_read_in_the_locale_c(cold: Cold, tmp_path: Path) -> None:
    words = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    here = replace(without(cold, "LANG", "PYTHONUTF8", **words), folder=tmp_path / "\u732b")
    here.folder.mkdir()
    write_images(here.folder / "\u7d75", {"train": 4, "val": 2}, classes=["\u732b", "\u72ac \u00e9"])
    here(*TINY, "run_name=run", "dataset.path=\u7d75", "dataloader.workers=1")
    done = here("eval", "runs/run", "--by-class")
    assert "\\u732b" in done.stdout
    done = here("predict", "runs/run", "\u7d75/val", "--csv")
    # note: a line of heads, and one for each class of each image
    assert done.stdout.count("\n") == 9
