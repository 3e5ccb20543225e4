"""What a verb imports: each takes as long as that."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

_CODE = """
import contextlib, json, sys
from launcher.cli.main import main
with contextlib.redirect_stdout(sys.stderr):
    code = main({words!r})
loaded = {{".".join(name.split(".")[:parts]) for name in sys.modules for parts in (1, 2, 3)}}
print(json.dumps([code, sorted(loaded)]))
"""
_SLOW = {"torch", "torchvision", "hydra", "omegaconf", "numpy", "PIL", "launcher.data", "launcher.algorithms"}
_OF_RUNS = {"torch", "torchvision", "asyncio", "ssl", "launcher.prediction", "launcher.results"}


@pytest.mark.parametrize(
    ("words", "slow"),
    [
        (["--help"], {*_SLOW, "pydantic", "rich", "yaml", "launcher.config"}),
        (["ls"], {*_SLOW, "launcher.prediction", "launcher.results", "launcher.records"}),
        (["ls", "runs"], {*_SLOW, "launcher.prediction", "launcher.results"}),
        (
            ["show", "recipe=mild"],
            {*_OF_RUNS, "rich", "launcher.launch", "launcher.models.gpt", "launcher.data.inspection"},
        ),
        (["plan", "recipe=mild", "launch=cpu"], {*_OF_RUNS, "launcher.submit", "launcher.optimizers.lamb"}),
    ],
)
def test_a_verb_imports_no_more_than_it_needs(words: list[str], slow: set[str], tmp_path: Path) -> None:
    command = [sys.executable, "-c", _CODE.format(words=words)]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    code, loaded = json.loads(ended.stdout)
    assert (code, slow & {*loaded}) == (0, set()), ended.stderr
