"""samples.json: the images with predictions at the end of a run, whose failure never fails the run."""

import json

import pytest

from launcher.training import samples
from tests.runs import SMALL, Here


@pytest.mark.system
def test_a_run_without_images_has_none_and_one_that_cannot_write_them_is_finished(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = here.folder / "runs"
    noise = [word for word in SMALL if not word.startswith("dataloader")]
    assert "warning" not in here(*noise, "run_name=noise", "dataloader=synthetic").stdout
    assert not (folder / "noise" / "samples.json").exists()
    here(*SMALL, "run_name=whole")
    assert len(json.loads((folder / "whole" / "samples.json").read_text())) == 12

    def fail(*_: object) -> None:
        raise IndexError("no such image")

    monkeypatch.setattr(samples, "_samples", fail)
    done = here(*SMALL, "run_name=failed")
    assert "warning: cannot write images with predictions: IndexError: no such image" in done.stdout
    assert not (folder / "failed" / "samples.json").exists()
