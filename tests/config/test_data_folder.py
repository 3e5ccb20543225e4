"""The data folder that the environment names, which the container image sets."""

from __future__ import annotations

import pytest

from launcher.config.compose import compose


def test_the_environment_names_the_folder_where_no_word_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAIN_DATA", "/data")
    composed = compose(["recipe=hot"])
    assert composed.config.dataset.path == "/data"
    assert composed.origins["dataset.path"] == "environment TRAIN_DATA"
    assert compose(["recipe=hot", "dataset.path=/mine"]).config.dataset.path == "/mine"
    assert compose(["dataset=shapes"]).config.dataset.path is None
    monkeypatch.delenv("TRAIN_DATA")
    assert compose(["recipe=hot"]).config.dataset.path is None
