"""docs/cloud.md names every key of a job."""

import pytest

from launcher import paths
from launcher.config.yaml_file import read_mapping

from .pages import ROOT


@pytest.mark.parametrize("cluster", ["slurm", "sky", "kubernetes"])
def test_every_key_of_a_job_is_on_the_page(cluster: str) -> None:
    text = (ROOT / "docs" / "cloud.md").read_text()
    keys = read_mapping(paths.CONF / "submit" / f"{cluster}.yaml")
    assert len(keys) > 5
    assert [key for key in keys if f"submit.{key}" not in text] == []
