"""Each kind of option, as a stranger writes it in an empty folder: trained, stopped and resumed to the same bits."""

import io
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.own_code import FORMULAS, METRICS, NETWORKS, OWN, TYPED, WATCH, own_folder
from tests.runs import Here, results, same

pytestmark = pytest.mark.system
FILES = {
    "nets.py": NETWORKS,
    "formulas.py": FORMULAS + METRICS + WATCH,
    "typed.py": TYPED,
    "conf/model/mine.yaml": "_target_: nets.TinyNet\n",
    "conf/model/tiny.yaml": "{name: tiny, width: 4, architecture: tiny, weights: null, weights_sha256: null, "
    "checkpointing: 'off'}\n",
    "conf/optimizer/plain.yaml": "{name: plain, lr: 0.01, reference_batch_size: 16, scale_lr: 'off', backbone_lr: 1.0, "
    "layer_decay: 1.0, weight_decay: 0.0, no_decay: none}\n",
    "conf/algorithms/dark.yaml": "probability: 0.5\n",
    "conf/algorithms/turned.yaml": "_target_: torchvision.transforms.v2.RandomRotation\ndegrees: 30\n",
    "conf/schedule/steep.yaml": "defaults: [constant, _self_]\nname: steep\n",
    "conf/loss/hinge.yaml": "name: hinge\n",
    "conf/task/amounts.yaml": "name: amounts\n",
    "conf/callbacks/watch.yaml": "_target_: formulas.Watch\n",
}
# The words of each kind.
KINDS = {
    "model by target": ["model=mine", "model.width=4"],
    "model of timm": ["model=timm", "model.architecture=my_tiny"],
    "model": ["model=tiny"],
    "algorithm": ["algorithms=[dark]"],
    "transform of images": ["algorithms=[turned]"],
    "transform of batches": ["algorithms=[turned]", "algorithms.turned.at=change_batch"],
    "optimizer by target": ["optimizer._target_=formulas.Sign", "optimizer.lr=0.001"],
    "optimizer of torch": ["optimizer._target_=torch.optim.RAdam", "optimizer.lr=0.001"],
    "optimizer": ["optimizer=plain"],
    "schedule by target": ["schedule._target_=formulas.ramp", "schedule.power=2.0"],
    "schedule": ["schedule=steep"],
    "loss by target": ["loss._target_=formulas.soft", "loss.smoothing=0.1"],
    "loss": ["loss=hinge"],
    "metric": ["metrics.top2._target_=formulas.top2"],
    "callback": ["callbacks=[watch]", "metrics.top2._target_=formulas.top2"],
    "task": ["task=amounts"],
}
SMALL = [word for word in OWN if not word.startswith(("code=", "model", "launch.nproc", "schedule"))]
SMALL += ["epochs=2", "schedule.warmup=0ba", "launch.nproc=1", "model=resnet18", "code=[nets.py,formulas.py,typed.py]"]


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Import the files of this test, not those of the same names of another one."""
    for name in ("nets", "formulas", "typed"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_resumes_to_the_same_bits(here: Here, kind: str, tmp_path: Path) -> None:
    own_folder(here, FILES)
    words = [*SMALL, *KINDS[kind]]
    here(*words, "run_name=whole")
    here(*words, "run_name=stopped", code=143, stop_after=5)
    whole, stopped = tmp_path / "runs" / "whole", tmp_path / "runs" / "stopped"
    assert here.state(stopped)["step"] < here.state(whole)["step"]
    here("resume", str(stopped))
    assert same(here.decided(whole), here.decided(stopped))
    assert same(here.state(whole)["callbacks"], here.state(stopped)["callbacks"])
    assert results(whole) == results(stopped)


def test_a_format_of_archives_is_a_source(here: Here, tmp_path: Path) -> None:
    own_folder(here, FILES)
    random = np.random.default_rng(0)
    for split, count in {"train": 16, "val": 4}.items():
        with (tmp_path / f"{split}.raw").open("wb") as file:
            for number in range(count):
                data = io.BytesIO()
                Image.fromarray(random.integers(0, 256, (20, 20, 3), dtype=np.uint8)).save(data, "JPEG")
                file.write(struct.pack("<II", number % 2, len(data.getvalue())) + data.getvalue())
    words = [word for word in SMALL if not word.startswith(("dataset", "batch_size"))]
    words += ["dataset.path=.", "image.train_size=16", "image.eval_size=16", "image.eval_resize=16", "batch_size=8"]
    here(*words, "run_name=whole")
    here(*words, "run_name=stopped", code=143, stop_after=3)
    here("resume", str(tmp_path / "runs" / "stopped"))
    whole, stopped = (here.state(tmp_path / "runs" / name) for name in ("whole", "stopped"))
    assert whole["classes"] == ["0", "1"]
    assert same(whole["weights"], stopped["weights"])
