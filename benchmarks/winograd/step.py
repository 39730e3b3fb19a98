"""A whole training step of ResNet-18 by the prototype, and by torch, on one core.

All convolutions and group norms are the prototype's, called one by one from Python; torch has
the packing of the input, the average pooling, the last layer, the loss, the sums of gradients
and the optimiser. The gradients are compared with torch's in double precision first. Both take
turns; the best of several times in seconds of the processor counts.

    python benchmarks/winograd/step.py [--repeats 30] [--march native]
"""

from __future__ import annotations

import ctypes
from functools import partial
from typing import NamedTuple

import torch
from measure import BATCH, LINE, METHODS, POINTS, SHAPES, Call, network, race, started, step_of
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

RATE = 0.01
ALONE, RELU, SHORTCUT_AND_RELU = range(3)  # what is part of a norm
STRIDED = [(3, 16, 3), *((c, 2 * c, taps) for c, _, _ in SHAPES[:3] for taps in (3, 1))]
# Of the largest number of a parameter's gradient. A ReLU whose input is almost zero may go the
# other way, which changes gradients by about a thousandth; a wrong layer changes them wholly.
TOLERANCE = 1e-2
GROUPS = 8


class Map(NamedTuple):
    values: Tensor
    gradient: Tensor


class Both(NamedTuple):
    """The calls of a layer, forth and back."""

    forth: Call
    back: Call


class Network:
    """The layers' memory and the calls of a step, in order."""

    def __init__(self, library: ctypes.CDLL, module: nn.Sequential, how: int) -> None:
        self.library, self.how = library, how
        self.owners: list[Tensor] = []  # torch's parameters, in the order of these weights
        self.weights: list[Tensor] = []
        self.gradients: list[Tensor] = []
        self.alive: list[Tensor] = []  # what the calls have addresses of
        # Gradients of maps take turns in a few places for each shape.
        self.places = [[self.image(c, side) for _ in range(5)] for c, side, _ in SHAPES]
        self.input = self.image(3, 32)
        first, x = self.map(0, 0), self.map(0, 3)
        stem = self.convolution(module[0], Map(self.input, self.input), first, None)
        norm = self.norm(module[1], RELU, 0, first, x)
        self.forth, self.back = [stem.forth, norm.forth], [norm.back, stem.back]
        for number, block in enumerate(module[3:11]):
            x = self.block(block, x, number // 2, number)
        self.last = x
        self.head = [parameter.detach().clone() for parameter in module[-1].parameters()]

    def address(self, numbers: Tensor | None) -> int | None:
        if numbers is None:
            return None
        self.alive.append(numbers)
        return numbers.data_ptr()

    def image(self, channels: int, side: int) -> Tensor:
        return torch.zeros(side * side, self.library.pixel_floats(channels))

    def map(self, shape: int, place: int) -> Map:
        return Map(self.image(*SHAPES[shape][:2]), self.places[shape][place])

    def parameter(self, owner: Tensor) -> tuple[Tensor, Tensor]:
        numbers = owner.detach()
        weights = (numbers.permute(2, 3, 1, 0) if numbers.dim() == 4 else numbers).clone(
            memory_format=torch.contiguous_format
        )
        self.owners.append(owner)
        self.weights.append(weights)
        self.gradients.append(torch.zeros_like(weights))
        return weights, self.gradients[-1]

    def convolution(self, layer: nn.Conv2d, x: Map, y: Map, dx: Tensor | None) -> Both:
        weights, gradient = self.parameter(layer.weight)
        numbers = (x.values, y.values, y.gradient, weights, dx, gradient)
        x_at, y_at, dy_at, w_at, dx_at, dw_at = map(self.address, numbers)
        taps, inputs, outputs = layer.kernel_size[0], layer.in_channels, layer.out_channels
        calls = self.library
        if layer.stride[0] > 1:
            which = STRIDED.index((inputs, outputs, taps))
            return Both(
                partial(calls.strided_forward, which, x_at, w_at, y_at),
                partial(calls.strided_backward, which, x_at, dy_at, w_at, dx_at, dw_at),
            )
        shape = [channels for channels, _, _ in SHAPES].index(inputs)
        u_at = self.address(torch.zeros(POINTS * (inputs * outputs + LINE))) if self.how else w_at
        return Both(
            partial(calls.forward, shape, self.how, x_at, w_at, u_at, y_at),
            partial(calls.backward, shape, self.how, x_at, dy_at, u_at, dx_at, dw_at),
        )

    def norm(
        self,
        layer: nn.GroupNorm,
        kind: int,
        shape: int,
        x: Map,
        y: Map,
        shortcut: Map | None = None,
    ) -> Both:
        scale, dscale = map(self.address, self.parameter(layer.weight))
        shift, dshift = map(self.address, self.parameter(layer.bias))
        kept = self.address(torch.zeros(2 * GROUPS, BATCH))
        x_at, dx_at, y_at, dy_at = map(self.address, (*x, *y))
        added, shared = map(self.address, shortcut or (None, None))
        calls = self.library
        return Both(
            partial(calls.norm_forward, shape, kind, x_at, scale, shift, added, y_at, kept),
            partial(
                calls.norm_backward,
                *(shape, kind, x_at, y_at, dy_at, scale, kept, dx_at, shared, dscale, dshift),
            ),
        )

    def block(self, block: nn.Module, x: Map, shape: int, number: int) -> Map:
        first, norm_first, _, second, norm_second = block.convolutions
        a, b, c = self.map(shape, 0), self.map(shape, 1), self.map(shape, 0)
        y = self.map(shape, 3 + (number + 1) % 2)
        layers = [
            self.convolution(first, x, a, x.gradient),
            self.norm(norm_first, RELU, shape, a, b),
            self.convolution(second, b, c, b.gradient),
        ]
        back = [layer.back for layer in reversed(layers)]
        if isinstance(block.shortcut, nn.Identity):
            shortcut = Map(x.values, self.places[shape][2])
            joined = shortcut.gradient
        else:
            t, shortcut = self.map(shape, 0), self.map(shape, 2)
            joined = self.places[shape - 1][1]
            beside = [
                self.convolution(block.shortcut[0], x, t, joined),
                self.norm(block.shortcut[1], ALONE, shape, t, shortcut),
            ]
            layers += beside
            back += [layer.back for layer in reversed(beside)]
        last = self.norm(norm_second, SHORTCUT_AND_RELU, shape, c, y, shortcut)
        self.forth += [layer.forth for layer in (*layers, last)]
        self.back = [last.back, *back, partial(x.gradient.add_, joined), *self.back]
        return y

    def gradients_of(self, x: Tensor, labels: Tensor) -> list[Tensor]:
        self.input[:, : 3 * BATCH] = x.permute(2, 3, 1, 0).reshape(len(self.input), -1)
        for call in self.forth:
            call()
        channels, side, _ = SHAPES[-1]
        pixels = self.last.values[:, : channels * BATCH].view(-1, channels, BATCH)
        pooled = pixels.mean(0).T.requires_grad_()
        head = [parameter.requires_grad_() for parameter in self.head]
        loss = cross_entropy(linear(pooled, *head), labels)
        by_pooled, *by_head = torch.autograd.grad(loss, [pooled, *head])
        self.last.gradient[:, : channels * BATCH] = (by_pooled.T / side**2).reshape(1, -1)
        for call in self.back:
            call()
        return [*self.gradients, *by_head]

    def step(self, x: Tensor, labels: Tensor) -> None:
        gradients = self.gradients_of(x, labels)
        with torch.no_grad():
            torch._foreach_add_([*self.weights, *self.head], gradients, alpha=-RATE)


def largest_error(mine: Network, module: nn.Sequential, x: Tensor, labels: Tensor) -> float:
    """Return that of all gradients, of the largest number of each parameter's."""
    owners = [*mine.owners, *module[-1].parameters()]
    gradients = [gradient.clone() for gradient in mine.gradients_of(x, labels)]
    for parameter in module.parameters():
        parameter.data = parameter.data.double()
    cross_entropy(module(x.double()), labels).backward()
    errors = []
    for owner, gradient in zip(owners, gradients, strict=True):
        right = owner.grad.permute(2, 3, 1, 0) if owner.dim() == 4 else owner.grad
        errors.append(float((gradient - right).abs().max() / right.abs().max()))
    return max(errors)


def main() -> None:
    library, repeats = started(__doc__, 30)
    x, labels = torch.randn(BATCH, 3, 32, 32), torch.randint(0, 10, (BATCH,))
    calls: dict[str, Call] = {"torch": step_of(torch.contiguous_format)}
    for how, method in enumerate(METHODS):
        module = network()
        mine = Network(library, module, how)
        error = largest_error(mine, module, x, labels)
        print(f"{method}: largest error of a gradient {error:.0e}")
        if error > TOLERANCE:
            raise SystemExit("These gradients are wrong.")
        calls[method] = partial(mine.step, x, labels)
    times = race(calls, repeats, inner=2)
    print("\n| step by | ms | samples/s | times as fast |\n|---|---:|---:|---:|")
    for name, best in times.items():
        ratio = times["torch"] / best
        print(f"| {name} | {best / 1e3:.2f} | {BATCH / best * 1e6:,.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
