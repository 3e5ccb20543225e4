"""Build a release into dist/: wheel, sdist and SHA256SUMS.

    .venv/bin/python scripts/release.py

Refuses a checkout whose version, tag, CHANGELOG.md and CITATION.cff differ, that has changes, or whose address is an
example.
"""

import hashlib
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def version() -> str:
    return re.findall(r'^__version__ = "(.+)"$', (ROOT / "launcher/version.py").read_text(), re.MULTILINE)[0]


def problems(version: str) -> Iterator[str]:
    """Yield what must change before this version is released."""
    if git("status", "--porcelain"):
        yield "the checkout has changes; commit them"
    if f"v{version}" not in git("tag", "--points-at", "HEAD").split():
        yield f"HEAD has no tag v{version}; run git tag v{version}"
    heading = re.search(
        rf"^## {re.escape(version)} - (\d{{4}}-\d\d-\d\d)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    citation = (ROOT / "CITATION.cff").read_text()
    if not heading:
        yield f"CHANGELOG.md has no heading `## {version} - YEAR-MONTH-DAY`"
    elif f"\nversion: {version}\ndate-released: {heading[1]}\n" not in citation:
        yield f"CITATION.cff has another version or date than {version} and {heading[1]}"
    if re.search(r"//(?:[\w-]+\.)*example\.", address()):
        yield "pyproject.toml has an example as `repository`; set the repository's address"


def address() -> str:
    """Return the address of the repository."""
    file = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return str(file["tool"]["hatch"]["metadata"]["hooks"]["custom"]["repository"])


def main() -> int:
    number = version()
    if wrong := [*problems(number)]:
        print(*(f"error: {text}" for text in wrong), sep="\n", file=sys.stderr)
        return 2
    if DIST.exists() and any(DIST.iterdir()):
        print(f"error: {DIST} has files; remove them", file=sys.stderr)
        return 2
    # note: the same commit gives the same files
    environment = {**os.environ, "SOURCE_DATE_EPOCH": git("log", "-1", "--format=%ct")}
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", str(DIST)], cwd=ROOT, check=True, env=environment)
    sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(DIST.iterdir()))
    (DIST / "SHA256SUMS").write_text(sums)
    print(sums, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
