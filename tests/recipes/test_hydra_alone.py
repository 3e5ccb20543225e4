"""conf/ and recipes/ are an ordinary Hydra application: hydra-core alone composes what `train show` prints."""

import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest
import yaml

from launcher import paths
from launcher.config import recipes
from launcher.config.layers import leaves
from tests.commands import output_of

ALONE = """
import json, sys
from pathlib import Path
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

*lines, folders = sys.argv[1:]
folders, composed = [Path(folder) for folder in folders.split(":")], {}
for line in lines:
    name, *words = line.split()
    (main,) = [folder for folder in folders if (folder / f"{name}.yaml").exists()]
    with initialize_config_dir(config_dir=str(main), version_base="1.3"):
        # note: the rented machines are one table, which Hydra does not read
        words += ["hardware=this_machine", f"hydra.searchpath=[{','.join(f'file://{folder}' for folder in folders)}]"]
        composed[line] = OmegaConf.to_container(compose(name, words), resolve=True)
assert not any(name.partition(".")[0] in ("launcher", "launcher_lab") for name in sys.modules)
print(json.dumps(composed))
"""
# What dataloader=auto is without files of the images.
IMAGES = "dataloader=torchvision"
# Command lines, and Hydra's own words for them.
OTHERS = {
    "recipe=hot fidelity=published": f"hot +published=hot fidelity=published {IMAGES}",
    "recipe=ffcv_rn50 epochs=32": f"ffcv_rn50 +lengths/ffcv_rn50='32' epochs=32 {IMAGES}",
    "recipe=mild dataset=shapes epochs=3": f"mild dataset=shapes epochs=3 {IMAGES}",
    "recipe=none algorithms=[ema,blurpool] epochs=7": "train algorithms=[ema,blurpool] epochs=7",
    "recipe=mild algorithms.ema=off": f"mild ++algorithms.ema=null {IMAGES}",
}
AUTO = [name for name in recipes.names() if recipes.load(name).options["dataloader"] == "auto"]
LINES = {**{f"recipe={name}": f"{name} {IMAGES if name in AUTO else ''}" for name in recipes.names()}, **OTHERS}


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    folders = (paths.PACKAGED_RECIPES, paths.PACKAGED_RECIPES / paths.ABLATIONS, paths.CONF)
    command = [sys.executable, "-c", ALONE, *LINES.values(), ":".join(map(str, folders))]
    # note: a simulated processor would import this project
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRAIN_TEST_")}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    composed: dict[str, Any] = json.loads(done.stdout)
    return composed


@pytest.mark.slow
@pytest.mark.parametrize("line", LINES)
def test_hydra_composes_what_train_show_prints(line: str, alone: dict[str, Any]) -> None:
    shown = yaml.safe_load(output_of("show", *line.split()))
    # note: the values of a packaged option are without its target
    values = {key: value for key, value in leaves(alone[LINES[line]]) if not key.startswith("about")}
    values = {key: value for key, value in values.items() if not key.endswith("._target_")}
    values = {key: value for key, value in values.items() if not key.startswith("hardware.")}
    shown = {key: value for key, value in shown.items() if key != "hardware"}
    off = {key for key, value in values.items() if re.fullmatch(r"algorithms\.\w+", key) and value is None}
    assert {key: value for key, value in values.items() if key not in off} == {**dict(leaves(shown)), "recipe": None}
