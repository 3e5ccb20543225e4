"""Run folders with a checkpoint after zero steps, to test the use of their networks."""

import json
from pathlib import Path
from typing import Any

from PIL import Image
from torch import Tensor, nn
from torchvision.transforms._presets import ImageClassification

from launcher.config import resolved
from launcher.config.compose import compose
from launcher.data.inspection import inspect_data
from launcher.plan.plan import plan_for
from launcher.records.run_folder import RunFolder, checkpoint_name, create
from launcher.training import checkpoint
from launcher.training.networks import run_network
from tests.trainers import alone

SMALL = [
    *("recipe=mild", "model=resnet18", "launch=cpu", "batch_size=8", "epochs=40", "dataloader.workers=0"),
    *("dataset=shapes", "dataset.train_samples=32", "dataset.val_samples=20", "dataset.native_size=32"),
]


def finished(runs: Path, *words: str) -> RunFolder:
    """Return the folder of a run of one rank that was evaluated and saved after zero steps."""
    config = inspect_data(compose([*SMALL, *words]).config, must_exist=True).config
    folder = create(runs, "small", unique=False)
    resolved.write(config, folder.config)
    run = alone(config)
    result = run.evaluate(should_stop=lambda: False)
    run.loaders.close()
    start = {"kind": "start", "step": 0, "time": 0.0, "world_size": 1, "total_steps": 160, "epochs": 40}
    start |= {"primary": "top1", "better": "higher"}
    rows = [
        {**start, "device": "cpu", "precision": str(run.train_step.precision.dtype).removeprefix("torch.")},
        {"kind": "eval", "step": 0, "time": 0.0, "epoch": 0.0, "seconds": 1.0, "train_seconds": 1.0, **vars(result)},
    ]
    folder.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    checkpoint.save(run.state_dict(), folder.checkpoints / checkpoint_name(0))
    return folder


def state_of(run: RunFolder) -> dict[str, Any]:
    return checkpoint.load(run.checkpoints / checkpoint_name(0))


def network_of(run: RunFolder) -> nn.Module:
    """Return the network of a finished run, in evaluation mode."""
    return run_network(plan_for(resolved.read(run.config), 1), state_of(run)["weights"]).eval()


def prepared(run: RunFolder, image: Image.Image) -> Tensor:
    """Return an image as a batch of one, by torchvision's own preset with the sizes of a run."""
    config = plan_for(resolved.read(run.config), 1).config
    preset = ImageClassification(crop_size=32, resize_size=config.scaled_size(config.image.eval_resize))
    return preset(image.convert("RGB"))[None]
