"""Messages tell a user what works in every installation."""

import os
import re
from pathlib import Path

import pytest

from launcher import paths
from launcher.config.groups import about, options
from launcher.installation import how_to_add, how_to_open, page, repository
from tests.forked import Command
from tests.messages import messages
from tests.wheels import ROOT, build, install

# What only a checkout has.
ELSEWHERE = re.compile(
    r"\bmake (?:-C|demo|test|quick|gpu|setup|check)|\bscripts/|\bdocs/\w+\.md|\bREADME\b|\bpip install\b|\.venv\b"
)
# The functions that look at the installation, and the script of a job that has a checkout.
_BY_UV = """python3 -m pip install --quiet --target "$HOME/uv" uv
"$HOME/uv/bin/uv" python install --quiet 3.12
PYTHON=$("$HOME/uv/bin/uv" python find --managed-python 3.12) make setup
"""
ALLOWED = {f"launcher/submit/sky.py: {text}" for text in ("scripts/setup.sh", _BY_UV, "exec .venv/bin/train")}
ALLOWED |= {"launcher/submit/sky.py: .venv/bin/python -m pip install ...\n"}
# note: a published model has one
ALLOWED |= {"launcher/publish/files.py: README.md"}
# The pages whose addresses messages have.
PAGES = {match for text in (ROOT / "launcher", ROOT / "launcher_lab") for path in text.rglob("*.py")
         for match in re.findall(r"\bpage\(['\"](\w+)['\"](?:, ['\"]([\w-]+)['\"])?\)", path.read_text())}  # fmt: skip


def test_no_message_has_a_command_or_a_file_that_only_a_checkout_has() -> None:
    every = [*messages()]
    assert every
    elsewhere = {f"{file}: {text}" for file, text in every if ELSEWHERE.search(text)}
    assert {text for text in elsewhere if not text.startswith("launcher/installation.py")} == ALLOWED


def test_no_description_of_an_option_has_a_file_that_only_a_checkout_has() -> None:
    described = {
        name: about(path.name, name) for path in paths.CONF.iterdir() if path.is_dir() for name in options(path.name)
    }
    assert len(described) > 60
    assert {name: text for name, text in described.items() if ELSEWHERE.search(text)} == {}


def test_a_missing_package_is_added_by_pip() -> None:
    assert how_to_add("onnx", "onnxruntime") == "pip install onnx onnxruntime"


@pytest.mark.parametrize(("url", "package"), [("gs://a/b", "gcsfs"), ("s3://a/b", "s3fs"), ("sftp://a", "PACKAGE")])
def test_the_package_of_a_protocol_is_added(url: str, package: str) -> None:
    assert how_to_open(url) == f"pip install {package}"


@pytest.mark.parametrize(("name", "heading"), sorted(PAGES))
def test_a_page_of_a_message_exists(name: str, heading: str) -> None:
    text = (ROOT / "docs" / f"{name}.md").read_text()
    assert not heading or f"\n## {heading.capitalize()}\n" in text
    assert page(name, heading) == f"{repository()}/blob/main/docs/{name}.md{heading and '#'}{heading}"


@pytest.mark.system
def test_a_wheel_has_the_address_of_the_checkout(tmp_path: Path) -> None:
    site = install(build(tmp_path), tmp_path / "site")
    code = "from launcher.installation import *\nprint(paths.CHECKOUT, page('data'))"
    done = Command(["-c", code], tmp_path, {**os.environ, "PYTHONPATH": str(site)})
    output, errors = done.communicate()
    assert output == f"None {page('data')}\n", errors
