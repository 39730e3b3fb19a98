"""The residual block of ResNet-18."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

Norm = Callable[[int], nn.Module]
"""Makes the normalisation layer for a number of channels."""


class Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
            norm(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            norm(outputs),
        )
        self.shortcut = (
            nn.Identity()
            if stride == 1 and inputs == outputs
            else nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), norm(outputs)
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the ReLU of the sum of both paths."""
        summed: Tensor = self.convolutions(x) + self.shortcut(x)
        return summed.relu_()
