"""How to add packages, and the addresses of the project and its pages."""

import re
import tomllib
from functools import cache
from importlib import metadata
from importlib.util import find_spec

from launcher import paths
from launcher.errors import Problem, UserError

_DISTRIBUTION = "train-launcher"


@cache
def repository() -> str:
    """Return the address of the project's repository, of its own metadata."""
    if paths.CHECKOUT:
        # note: the metadata of a checkout are as old as its last installation
        file = tomllib.loads((paths.CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))
        return str(file["tool"]["hatch"]["metadata"]["hooks"]["custom"]["repository"])
    project_urls: list[str] = metadata.metadata(_DISTRIBUTION).get_all("Project-URL") or []
    return dict(text.split(", ", 1) for text in project_urls)["Repository"]


def how_to_add(*packages: str) -> str:
    """Return the command that installs packages."""
    return f"pip install {' '.join(packages)}"


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
    return f"{repository()}/blob/main/docs/{name}.md{heading and '#'}{heading}"


def absolute_links(text: str) -> str:
    """Return a page of the repository's top folder with the addresses of the files that it links."""
    return re.sub(r"\]\((?!https?:|#)", f"]({repository()}/blob/main/", text)
