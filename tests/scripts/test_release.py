"""scripts/release.py builds a tagged commit alike each time, and refuses any other."""

import email
import hashlib
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from launcher import __version__
from launcher.installation import repository
from tests.wheels import ROOT

REAL = "https://code.test/train-launcher"


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=test", "-c", "user.email=test@test")
    command = ["git", *identity, *words]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a commit of this tree with the tag of its version and another address."""
    folder = tmp_path / "checkout"
    for name in git(ROOT, "ls-files", "--cached", "--others", "--exclude-standard").splitlines():
        if (ROOT / name).is_file() and not name.startswith("tests/"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    for name in ("pyproject.toml", "CITATION.cff", "README.md"):
        (folder / name).write_text((folder / name).read_text().replace(repository(), REAL))
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "a release")
    git(folder, "tag", f"v{__version__}")
    return folder


def release(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "scripts/release.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_release_has_wheel_sdist_and_checksums(checkout: Path) -> None:
    done = release(checkout)
    assert done.returncode == 0, done.stderr
    start, dist = f"train_launcher-{__version__}", checkout / "dist"
    names = {f"{start}-py3-none-any.whl", f"{start}.tar.gz", "SHA256SUMS"}
    assert {path.name for path in dist.iterdir()} == names
    sums = dict(reversed(line.split("  ")) for line in (dist / "SHA256SUMS").read_text().splitlines())
    files = [path for path in dist.iterdir() if path.name != "SHA256SUMS"]
    assert sums == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    with tarfile.open(dist / f"{start}.tar.gz") as archive:
        assert {f"{start}/{name}" for name in ("scripts/metadata.py", "conf/train.yaml", "LICENSE")} <= {
            *archive.getnames()
        }
    check_metadata(dist / f"{start}-py3-none-any.whl")
    shutil.rmtree(dist)
    assert release(checkout).stdout == done.stdout


def check_metadata(wheel: Path) -> None:
    """Check that the page of the package has only absolute links, and its addresses."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        facts = email.message_from_bytes(archive.read(name))
    assert facts["Author"] == "The train-launcher project"
    assert f"Repository, {REAL}" in facts.get_all("Project-URL", [])
    assert f"Changelog, {REAL}/blob/main/CHANGELOG.md" in facts.get_all("Project-URL", [])
    assert len(facts.get_all("Classifier", [])) > 8
    assert facts["Description-Content-Type"] == "text/markdown"
    text = str(facts.get_payload())
    assert f"![Learning curve of the demo]({REAL}/raw/main/docs/learning_curve.png)" in text
    links = re.findall(r"\]\(([^)]*)\)", text)
    assert len(links) > 10
    assert [link for link in links if not link.startswith(("https://", "#"))] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda folder: git(folder, "tag", "-d", f"v{__version__}"), f"HEAD has no tag v{__version__}; "),
        (lambda folder: (folder / "new.py").write_text(""), "the checkout has changes; "),
        (lambda folder: edit(folder, "CHANGELOG.md", f"## {__version__} - ", "## "), "CHANGELOG.md has no heading "),
        (
            lambda folder: edit(folder, "CITATION.cff", "\ndate-released: 2", "\ndate-released: 3"),
            "CITATION.cff has another",
        ),
        (lambda folder: edit(folder, "pyproject.toml", REAL, "https://example.org/x"), "pyproject.toml has an example"),
    ],
    ids=["tag", "changes", "changelog", "citation", "address"],
)
def test_another_checkout_is_refused(checkout: Path, change: Callable[[Path], object], expected: str) -> None:
    change(checkout)
    done = release(checkout)
    assert done.returncode == 2
    assert f"error: {expected}" in done.stderr
    assert not (checkout / "dist").exists()


def edit(folder: Path, name: str, old: str, new: str) -> None:
    text = (folder / name).read_text()
    assert old in text
    (folder / name).write_text(text.replace(old, new))


def test_version_and_address_are_the_same_everywhere() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["repository-code"] == repository()
    wrong = runpy.run_path(str(ROOT / "scripts" / "release.py"))["problems"](__version__)
    assert not [text for text in wrong if text.startswith(("CHANGELOG", "CITATION"))]
