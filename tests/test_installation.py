"""Messages tell a user of a checkout, a wheel or an image what works there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from launcher import paths
from launcher.config.groups import about, options
from launcher.installation import how_to_add, how_to_open, page, project
from tests.forked import Command
from tests.messages import messages
from tests.wheels import ROOT, build, install

# What only a checkout has, or only one kind of installation.
ELSEWHERE = re.compile(
    r"\bmake (?:-C|demo|test|quick|gpu|setup|check)|\bscripts/|\bdocs/\w+\.md|\bREADME\b|\bpip install\b|\.venv\b"
)
# The functions that look at the installation, and the script of a job that has a checkout.
ALLOWED = {
    f"launcher/submit/sky.py: {text}" for text in ("scripts/setup.sh", "make setup\n...", "exec .venv/bin/train")
}
ALLOWED |= {"launcher/submit/sky.py: .venv/bin/python -m pip install ...\n"}
# note: a published model has one
ALLOWED |= {"launcher_lab/publish/files.py: README.md"}
# The pages whose addresses messages have.
PAGES = {match for text in (ROOT / "launcher", ROOT / "launcher_lab") for path in text.rglob("*.py")
         for match in re.findall(r"\bpage\(['\"](\w+)['\"]\)", path.read_text())}  # fmt: skip


@pytest.fixture
def wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    # note: it is read once, from the checkout
    assert project().requirements
    monkeypatch.setattr(paths, "CHECKOUT", None)


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


def test_setuptools_which_torch_compile_needs_is_imported_afterwards() -> None:
    code = "from launcher.installation import how_to_add; print(how_to_add('onnx')); import setuptools"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr


def test_an_extra_is_added_with_the_versions_of_the_project(wheel: None) -> None:
    assert how_to_add("onnx") == (f"{sys.executable} -m pip install 'onnx>=1.17' 'onnxruntime>=1.20' 'onnxscript>=0.4'")
    assert how_to_add("pyarrow").endswith("-m pip install 'pyarrow>=15'")
    assert how_to_add("gcsfs").endswith("-m pip install gcsfs")


@pytest.mark.parametrize(
    ("url", "package"), [("gs://a/b", "gcsfs"), ("s3://a/b", "'s3fs>=2024.6'"), ("sftp://a", "PACKAGE")]
)
def test_the_package_of_a_protocol_is_added(url: str, package: str) -> None:
    assert how_to_open(url).endswith(f" {package}")


def test_a_tool_of_uv_has_no_pip(wheel: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.installation.metadata.distributions", lambda **_: [])
    assert how_to_add("wandb") == f"uv pip install --python {sys.executable} 'wandb>=0.31'"


def test_an_image_is_built_again(wheel: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAIN_IMAGE", "1")
    assert how_to_add("s3") == "docker build --build-arg PACKAGES='s3fs>=2024.6' -t train ."
    assert "\nENV TRAIN_IMAGE=1\n" in (ROOT / "Dockerfile").read_text()
    assert "\nARG PACKAGES=\n" in (ROOT / "Dockerfile").read_text()


def test_a_checkout_builds_what_has_no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    assert how_to_add("ffcv") == f"make -C {ROOT} setup-originals"
    monkeypatch.setattr(paths, "CHECKOUT", None)
    assert how_to_add("ffcv").endswith("-m pip install 'ffcv>=1.0.2'")


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_page_of_a_message_exists(name: str) -> None:
    assert (ROOT / "docs" / f"{name}.md").is_file()
    assert page(name) == f"{project().repository}/blob/main/docs/{name}.md"


@pytest.mark.system
def test_a_wheel_has_the_address_and_the_versions_of_the_checkout(tmp_path: Path) -> None:
    site = install(build(tmp_path), tmp_path / "site")
    code = (
        "from launcher.installation import *\nprint(paths.CHECKOUT, page('data'), how_to_add('onnx', 'torch', 'data'))"
    )
    done = Command(["-c", code], tmp_path, {**os.environ, "PYTHONPATH": str(site)})
    output, errors = done.communicate()
    assert output == f"None {page('data')} {how_to_add('onnx', 'torch', 'data')}\n", errors
