"""This installation (checkout, wheel or image): how to add packages to it, and addresses of its pages."""

import os
import re
import shlex
import sys
import tomllib
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from typing import NamedTuple

from launcher import paths
from launcher.errors import Problem, UserError

DISTRIBUTION = "train-launcher"
# Set in the project's image.
IMAGE = "TRAIN_IMAGE"
# These have no wheels; a checkout builds them.
_BUILT = ("ffcv", "pillow-simd")


class Project(NamedTuple):
    """The address of the project's repository, and the requirements of each extra and package."""

    repository: str
    requirements: dict[str, list[str]]


@cache
def project() -> Project:
    """Read the project's own metadata."""
    if paths.CHECKOUT:
        # note: the metadata of a checkout are as old as its last installation
        file = tomllib.loads((paths.CHECKOUT / "pyproject.toml").read_text())
        values, repository = file["project"], file["tool"]["hatch"]["metadata"]["hooks"]["custom"]["repository"]
        return Project(repository, _by_name(values["dependencies"], values["optional-dependencies"]))
    facts = metadata.metadata(DISTRIBUTION)
    urls = dict(text.split(", ", 1) for text in facts.get_all("Project-URL") or [])
    always: list[str] = []
    extras: dict[str, list[str]] = {}
    for text in metadata.requires(DISTRIBUTION) or []:
        requirement, _, marker = text.partition(";")
        extra = re.search(r"extra == ['\"](.+?)['\"]", marker)
        (extras.setdefault(extra[1], []) if extra else always).append(requirement.strip())
    return Project(urls["Repository"], _by_name(always, extras))


def _by_name(always: list[str], extras: dict[str, list[str]]) -> dict[str, list[str]]:
    every = [*always, *(text for texts in extras.values() for text in texts)]
    return {re.split(r"[<>=!~\[ ]", text)[0]: [text] for text in every} | extras


def how_to_add(*names: str) -> str:
    """Return the command that adds packages to this installation; an extra's name stands for its packages."""
    if paths.CHECKOUT and {*names} <= {*_BUILT}:
        return f"make -C {shlex.quote(str(paths.CHECKOUT))} setup-originals"
    requirements = [text for name in names for text in project().requirements.get(name, [name])]
    if IMAGE in os.environ:
        return f"docker build --build-arg PACKAGES={shlex.quote(' '.join(requirements))} -t train ."
    program = shlex.quote(sys.executable)
    # note: to look for the module would make a later import of setuptools fail, as in torch.compile
    has_pip = any(metadata.distributions(name="pip"))
    pip = f"{program} -m pip install" if has_pip else f"uv pip install --python {program}"
    return f"{pip} {shlex.join(requirements)}"


def check_installed(logger: str, module: str, package: str) -> None:
    """Check that a logger's library is installed; raises UserError if not."""
    if not _is_installed(module):
        raise UserError(Problem(f"needs the package {package}; run {how_to_add(package)}", "logger", logger))


def _is_installed(module: str) -> bool:
    spec = find_spec(module)
    # note: a folder of that name, such as W&B's output, has a spec without an origin
    return spec is not None and spec.origin is not None


def package_of(url: str) -> str:
    """Return the package of a URL's protocol, such as s3fs; fsspec itself for some."""
    from fsspec.registry import known_implementations

    package: str = known_implementations[url.partition("://")[0]]["class"].partition(".")[0]
    return package


def how_to_open(url: str) -> str:
    """Return the command that adds the package of a URL's protocol."""
    package = package_of(url)
    # note: the error before it has the name of a package that a file system of fsspec's own needs
    return how_to_add("PACKAGE" if package == "fsspec" else package)


def page(name: str, heading: str = "") -> str:
    """Return the address of a page of the documentation."""
    return f"{project().repository}/blob/main/docs/{name}.md{heading and '#'}{heading}"


def absolute_links(text: str) -> str:
    """Return a page of the repository's top folder with the addresses of the files that it links."""
    return re.sub(r"\]\((?!https?:|#)", f"]({project().repository}/blob/main/", text)
