from collections.abc import Callable

import pytest

from launcher.cli import main as cli

Submit = Callable[..., str]


@pytest.fixture
def submit(capsys: pytest.CaptureFixture[str]) -> Submit:
    """Return a function that returns the output of `train submit`."""

    def call(kind: str, *words: str) -> str:
        assert cli.main(["submit", f"--{kind}", *words]) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    return call
