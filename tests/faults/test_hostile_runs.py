"""Untrusted run folders: nothing is written elsewhere, and an invalid config is refused with its path."""

from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.config import resolved
from launcher.config.compose import compose
from launcher.errors import UserError
from launcher.records.run_folder import RunFolder, checkpoint_name, create, existing
from launcher.training import checkpoint
from tests.commands import execute, refused


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = create(tmp_path / "runs", "odd", unique=False)
    resolved.write(compose([]).config, folder.config)
    return folder


@pytest.mark.parametrize("verb", ["resume", "eval", "export"])
@pytest.mark.parametrize("name", ["lock", "metrics.jsonl", "logs/rank-0.log", "config.yaml.tmp", "checkpoints/.a.tmp"])
def test_a_run_folder_does_not_write_through_links(run: RunFolder, tmp_path: Path, verb: str, name: str) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (run.path / name).symlink_to(precious)
    assert f"{name} is a symbolic link" in refused(verb, str(run.path))
    assert precious.read_text() == "mine"


@pytest.mark.parametrize("verb", ["eval", "export"])
def test_a_checkpoint_without_weights_is_refused(run: RunFolder, verb: str) -> None:
    checkpoint.save({"step": 3}, run.checkpoints / checkpoint_name(3))
    assert "the checkpoint has no weights" in refused(verb, str(run.path))


def test_a_run_folder_may_be_a_link_and_contain_linked_folders(run: RunFolder, tmp_path: Path) -> None:
    run.checkpoints.rmdir()
    (tmp_path / "elsewhere").mkdir()
    run.checkpoints.symlink_to(tmp_path / "elsewhere")
    (tmp_path / "short").symlink_to(run.path)
    assert existing(str(tmp_path / "short")).config.is_file()


@pytest.mark.parametrize("path", ["a" * 5000, "", "/dev/null", "nowhere", "a\0b", "[/x]", "new\nline"])
def test_a_path_that_is_not_a_run_folder_is_refused(path: str) -> None:
    for verb in ("resume", "eval", "export"):
        assert "is not a run folder" in refused(verb, path)


def test_the_bytes_of_a_lock_file_are_escaped(run: RunFolder) -> None:
    with run.locked():
        (run.path / "lock").write_bytes(b"\xff\x1b[2J\n\n")
        with pytest.raises(UserError, match=r"in use by \ufffd\\x1b\[2J; wait"), run.locked():
            pass


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (lambda text: text.replace("seed: 42", "seed: !!python/object/apply:os.mkdir [trace]"), "tags such as"),
        (lambda text: text[: len(text) // 2], "."),
        (lambda text: text.encode("utf-16").decode("latin-1"), "characters are not allowed|UTF-8"),
    ],
)
def test_an_invalid_edited_config_is_refused_with_its_path(
    run: RunFolder, edit: Callable[[str], str], expected: str
) -> None:
    run.config.write_text(edit(run.config.read_text()), encoding="utf-8")
    code, _, errors = execute("resume", str(run.path))
    assert code == 2
    assert all(line.startswith("error: ") and str(run.config) in line for line in errors.splitlines())
    assert any(word in errors for word in expected.split("|"))
    assert not (run.path / "trace").exists()
