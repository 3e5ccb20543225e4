"""Twenty steps have the losses of a loop as nanoGPT's, written here with its batches and AdamW."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from launcher.config.compose import compose
from tests.language import RUN, text_in
from tests.trainers import alone, steps

STEPS, LENGTH = 20, 16
WORDS = [
    *(
        "model.dropout=0",
        "schedule.warmup=0ba",
        "epochs=1",
        f"dataset.train_samples={8 * STEPS}",
        "schedule=constant",
        "precision=fp32",
    ),
    *("optimizer.beta1=0.9", "optimizer.beta2=0.95", "optimizer.weight_decay=0.1", "optimizer.no_decay=vectors"),
    *("algorithms=[gradient_clipping]", "algorithms.gradient_clipping.kind=norm"),
    "algorithms.gradient_clipping.threshold=1.0",
]


def test_twenty_steps_have_nanogpts_losses(tmp_path: Path) -> None:
    text_in(tmp_path)
    sizes = ["dataset.classes=257", f"dataset.path={tmp_path}", f"dataloader.folder={tmp_path}/tokens"]
    config = compose([*RUN, *sizes, *WORDS]).config
    run, order = alone(config), alone(config)
    theirs = copy.deepcopy(run.train_step.model)
    decayed, others = ([p for p in theirs.parameters() if (p.dim() > 1) == large] for large in (True, False))
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.95))
    data = np.array([*(tmp_path / "train.txt").read_bytes(), 256])
    sequences = (len(data) - 1) // LENGTH
    expected = []
    for _, _, indices in order.rest_of_epoch():
        starts = indices * sequences // (8 * STEPS) * LENGTH
        x, y = (torch.from_numpy(np.stack([data[i + n : i + n + LENGTH] for i in starts])) for n in (0, 1))
        loss = F.cross_entropy(theirs(x).view(-1, 257), y.view(-1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        optimizer.step()
        expected.append(loss.item())
    losses = steps(run, STEPS)
    assert losses == pytest.approx(expected, abs=1e-4)
    assert losses[-1] < losses[0] - 1
