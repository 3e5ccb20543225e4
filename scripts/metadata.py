"""The metadata of the package that follow from the repository's address: its URLs, and README with absolute links."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)(\[[^\]]*\])\((?!https?:|#)([^)]+)\)")


def absolute(text: str, repository: str) -> str:
    """Return a page of the repository's top folder with absolute links; images are linked to their files."""

    def link(match: re.Match[str]) -> str:
        return f"{match[1]}{match[2]}({repository}/{'raw' if match[1] else 'blob'}/main/{match[3]})"

    return _LINK.sub(link, text)


class CustomMetadataHook(MetadataHookInterface):
    """Sets `urls` and `readme`."""

    def update(self, metadata: dict[str, Any]) -> None:
        repository = self.config["repository"]
        metadata["urls"] = {
            "Repository": repository,
            "Documentation": f"{repository}/blob/main/docs/index.md",
            "Changelog": f"{repository}/blob/main/CHANGELOG.md",
            "Issues": f"{repository}/issues",
        }
        text = absolute((Path(self.root) / "README.md").read_text(), repository)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
