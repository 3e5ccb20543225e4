"""The layers of squeeze-and-excitation (Hu et al. 2018)."""

from typing import Any

from torch import Tensor, nn


class SqueezeExcite2d(nn.Module):
    """Computes `x * sigmoid(W2 relu(W1 mean(x)))` of [B, C, H, W] with the mean over H and W, and `latent` units."""

    def __init__(self, channels: int, latent: int):
        super().__init__()
        # note: skip_init does not use the global generator; `change_model` draws the weights by their names
        self.squeeze = nn.utils.skip_init(nn.Linear, channels, latent, bias=False)
        self.excite = nn.utils.skip_init(nn.Linear, latent, channels, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        scale: Tensor = self.excite(self.squeeze(images.mean((2, 3))).relu()).sigmoid()
        return images * scale[:, :, None, None].to(images.dtype)


def excite(conv: nn.Module, _: Any, output: Tensor) -> Tensor:
    """Apply the squeeze-excite block of a convolution, as its forward hook."""
    excited: Tensor = conv.get_submodule("squeeze_excite")(output)
    return excited


def squeeze_excite(network: nn.Module, *, latent_channels: int, min_channels: int) -> dict[str, SqueezeExcite2d]:
    """Add uninitialized blocks after convolutions with at least `min_channels` inputs and outputs.

    Returns the block of each convolution; its parameters are `<conv>.squeeze_excite.*`.
    """
    blocks = {}
    for name, conv in list(network.named_modules()):
        if isinstance(conv, nn.Conv2d) and min(conv.in_channels, conv.out_channels) >= min_channels:
            blocks[name] = SqueezeExcite2d(conv.out_channels, latent_channels).to(conv.weight.device)
            conv.add_module("squeeze_excite", blocks[name])
            conv.register_forward_hook(excite)
    return blocks
