"""Twenty steps have the losses of a loop as nanoGPT's, written here with its network, batches and AdamW."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from launcher.config.compose import compose
from tests.language import RUN, text_in
from tests.trainers import alone, steps

STEPS, LENGTH, WIDTH, HEADS = 20, 16, 16, 2
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


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (part.view(batch, length, HEADS, -1).transpose(1, 2) for part in self.c_attn(x).split(WIDTH, 2))
        scores = q @ k.transpose(-2, -1) / (WIDTH // HEADS) ** 0.5
        before = torch.tril(torch.ones(length, length)).bool()
        mixed = scores.masked_fill(~before, -torch.inf).softmax(-1) @ v
        projected: Tensor = self.c_proj(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return projected


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c_fc, self.c_proj = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        mapped: Tensor = self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))
        return mapped


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.attn, self.ln_2, self.mlp = nn.LayerNorm(WIDTH), Attention(), nn.LayerNorm(WIDTH), Perceptron()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))  # type: ignore[no-any-return]


class NanoGPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(257, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.h, self.ln_f = nn.ModuleList([Block(), Block()]), nn.LayerNorm(WIDTH)

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(LENGTH))
        for block in self.h:
            x = block(x)
        return F.cross_entropy((self.ln_f(x) @ self.wte.weight.T).view(-1, 257), targets.view(-1))


def test_twenty_steps_have_nanogpts_losses(tmp_path: Path) -> None:
    text_in(tmp_path)
    sizes = ["dataset.classes=257", f"dataset.path={tmp_path}", f"dataloader.folder={tmp_path}/tokens"]
    config = compose([*RUN, *sizes, *WORDS]).config
    run, order = alone(config), alone(config)
    theirs = NanoGPT()
    theirs.load_state_dict(run.train_step.model.state_dict())
    decayed, others = ([p for p in theirs.parameters() if (p.dim() > 1) == large] for large in (True, False))
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.95))
    data = np.array([*(tmp_path / "train.txt").read_bytes(), 256])
    sequences = (len(data) - 1) // LENGTH
    expected = []
    for _, _, indices in order.rest_of_epoch():
        starts = indices * sequences // (8 * STEPS) * LENGTH
        x, y = (torch.from_numpy(np.stack([data[i + n : i + n + LENGTH] for i in starts])) for n in (0, 1))
        loss = theirs.loss(x, y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        optimizer.step()
        expected.append(loss.item())
    losses = steps(run, STEPS)
    assert losses == pytest.approx(expected, abs=1e-4)
    assert losses[-1] < losses[0] - 1
