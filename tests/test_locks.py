"""The lock files: complete, exact, and each package in one of them."""

import tomllib
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from itertools import pairwise
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
LOCKS = ("requirements.lock", "requirements-tests.lock", "requirements-originals.lock")


def packages(lock: str) -> list[str]:
    lines = (ROOT / lock).read_text().splitlines()
    requirements = [Requirement(line.removesuffix(" \\")) for line in lines if not line.startswith(("#", "    --hash"))]
    assert all(str(one.specifier).startswith("==") for one in requirements)
    return [canonicalize_name(one.name) for one in requirements]


@pytest.mark.parametrize("lock", LOCKS)
def test_each_line_is_one_package_at_one_version(lock: str) -> None:
    assert len(packages(lock)) == len(set(packages(lock))) > 0


def test_each_installed_package_supports_the_oldest_python() -> None:
    supported = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    oldest, pythons = supported.removeprefix(">=") + ".0", {}
    for name in (name for lock in LOCKS for name in packages(lock)):
        # note: a lock has packages of other systems too
        with suppress(PackageNotFoundError):
            pythons[name] = distribution(name).metadata.get("Requires-Python") or supported
    assert len(pythons) > len(packages(LOCKS[0])) / 2
    assert [name for name, needed in pythons.items() if oldest not in SpecifierSet(needed)] == []


def test_each_package_of_an_installation_has_hashes() -> None:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    hashed = [line for line, after in pairwise(lines) if after.startswith("    --hash=sha256:") and line[0] != " "]
    assert len(hashed) == len(packages("requirements.lock"))
    setup = (ROOT / "scripts" / "setup.sh").read_text()
    installing = [line for line in setup.replace("\\\n", "").splitlines() if "--requirement" in line]
    assert len(installing) == 3
    assert all("--require-hashes" in line for line in installing)


def test_no_package_is_in_two_lists() -> None:
    names = [name for lock in LOCKS for name in packages(lock)]
    assert len(names) == len(set(names))
