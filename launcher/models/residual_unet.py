"""The 2-D nnU-Net of NVIDIA's DeepLearningExamples, as in Composer: a U-Net (Ronneberger 2015) with residuals."""

import torch
from torch import Tensor, nn

# Of leaky ReLU.
SLOPE = 0.01


class NormedConvolution(nn.Module):
    """A convolution of 3 x 3 without bias, and its norm: batch or instance."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: str):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm = nn.InstanceNorm2d(outputs, affine=True) if norm == "instance" else nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x))  # type: ignore[no-any-return]


class TwoConvolutions(nn.Module):
    """Two convolutions with leaky ReLU; a residual one adds its input, after a third if the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: str, residual: bool):
        super().__init__()
        self.conv1 = NormedConvolution(inputs, outputs, stride, norm)
        self.conv2 = NormedConvolution(outputs, outputs, 1, norm)
        self.residual = residual
        changes = residual and (stride > 1 or inputs != outputs)
        self.downsample = NormedConvolution(inputs, outputs, stride, norm) if changes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv2(nn.functional.leaky_relu(self.conv1(x), SLOPE))
        return nn.functional.leaky_relu(out + self.downsample(x) if self.residual else out, SLOPE)


class Up(nn.Module):
    """Doubles the resolution, cuts it to that of the encoder's output, and joins both."""

    def __init__(self, inputs: int, outputs: int, norm: str):
        super().__init__()
        self.transp_conv = nn.ConvTranspose2d(inputs, outputs, 2, 2)
        self.conv_block = TwoConvolutions(2 * outputs, outputs, 1, norm, residual=False)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        larger = self.transp_conv(x)[..., : skip.shape[2], : skip.shape[3]]
        return self.conv_block(torch.cat((larger, skip), 1))  # type: ignore[no-any-return]


class ResidualUNet(nn.Module):
    """Compute logits [B, classes, H, W] of images [B, channels, H, W] of any size.

    filters: of the first of `levels`, twice as many at each further one up to `most_filters`. residual: of the encoder.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        channels: int,
        filters: int,
        most_filters: int,
        levels: int,
        normalization: str,
        residual: bool,
    ):
        super().__init__()
        widths = [min(filters * 2**level, most_filters) for level in range(levels)]
        sizes = zip([channels, *widths[:-1]], widths, [1] + [2] * (levels - 1), strict=True)
        self.downsamples = nn.ModuleList(TwoConvolutions(*size, normalization, residual) for size in sizes)
        self.upsamples = nn.ModuleList(
            Up(*pair, normalization) for pair in zip(widths[:0:-1], widths[-2::-1], strict=True)
        )
        self.output_block = nn.Conv2d(widths[0], num_classes, 1)

    def get_classifier(self) -> nn.Module:
        return self.output_block

    def forward(self, images: Tensor) -> Tensor:
        skips = []
        out = images
        for block in self.downsamples:
            out = block(out)
            skips.append(out)
        for up, skip in zip(self.upsamples, skips[-2::-1], strict=True):
            out = up(out, skip)
        return self.output_block(out)  # type: ignore[no-any-return]
