"""The lock files: complete, exact, and each package in one of them."""

from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
LOCKS = ("requirements.lock", "requirements-tests.lock", "requirements-originals.lock")


def packages(lock: str) -> list[str]:
    lines = [line for line in (ROOT / lock).read_text().splitlines() if not line.startswith("#")]
    requirements = [Requirement(line) for line in lines]
    assert all(str(one.specifier).startswith("==") for one in requirements)
    return [canonicalize_name(one.name) for one in requirements]


@pytest.mark.parametrize("lock", LOCKS)
def test_each_line_is_one_package_at_one_version(lock: str) -> None:
    assert len(packages(lock)) == len(set(packages(lock))) > 0


def test_no_package_is_in_two_lists() -> None:
    names = [name for lock in LOCKS for name in packages(lock)]
    assert len(names) == len(set(names))
