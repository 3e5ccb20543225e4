from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torchvision.models import resnet18

from tests.transforms import transformed


def test_the_memory_order_changes_and_values_stay(bound: Callable[..., Any], batch: Callable[..., Any]) -> None:
    model = resnet18(num_classes=10).eval()
    images = torch.randn(2, 3, 32, 32)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    expected = model(images)
    algorithm = bound("channels_last")
    algorithm.change_model(model)
    changed = transformed(algorithm, replace(batch(), inputs=images))
    assert model.layer1[0].conv1.weight.is_contiguous(memory_format=torch.channels_last)
    assert changed.inputs.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(changed.inputs, images)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    torch.testing.assert_close(model(changed.inputs), expected, rtol=1e-4, atol=1e-5)
