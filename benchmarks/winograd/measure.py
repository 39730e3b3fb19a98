"""What a compiled path for residual networks would gain over torch, on one core.

The 3x3 convolutions of stride 1 of ResNet-18 at a quarter of its width, by a prototype
(``convolution.cpp``: images in the lanes; direct, and Winograd's minimal filtering) and by torch
in the best of its layouts. All take turns in one process with one thread; the best of several
times in seconds of the processor counts. The transforms of the weights are part of the
prototype's times, since weights change with every step. Then the same for all these layers one
after the other, forth and back, with inputs and weights of their own; and what a training step
would come to, with everything else as torch's profiler has it.

    python benchmarks/winograd/measure.py [--repeats 15] [--march native]
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn.functional import conv2d, cross_entropy
from torch.profiler import ProfilerActivity, profile

from flamma.models import build_model
from flamma.training import lanes

BATCH = 32
SHAPES = [(16, 16, 4), (32, 8, 3), (64, 4, 3), (128, 2, 3)]  # channels, side, layers of the net
METHODS = ["direct", "F(2x2)", "largest tile"]
DIRECTIONS = ["forward", "by data", "by weights", "both gradients"]
LAYOUTS = ["contiguous", "channels last", "blocked"]
TOLERANCE = 2e-5  # of the largest number of a result in double precision
POINTS = 36
LINE = 16  # numbers between the points of transformed weights
FLAGS = ["-std=c++17", "-O3", "-fPIC", "-shared", "-Wno-psabi"]
# A zero beyond the edge drops out of a transform when it is compiled.
FLAGS += ["-fno-signed-zeros", "-ffinite-math-only", "-fno-trapping-math", "-ffp-contract=fast"]

Call = Callable[[], object]


def started(doc: str, repeats: int) -> tuple[ctypes.CDLL, int]:
    """Read the command line, compile the prototype and return it with the number of repeats."""
    parser = argparse.ArgumentParser(description=doc.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=repeats)
    parser.add_argument("--march", default="native", help="x86-64-v3 for AVX2 alone")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        return compiled(folder, options.march), options.repeats


def compiled(folder: str, march: str) -> ctypes.CDLL:
    """Compile the prototype; vectors are those of the compiled trainer."""
    source, target = Path(__file__).with_name("convolution.cpp"), f"{folder}/convolution.so"
    flags = [*FLAGS, f"-march={march}", f"-I{Path(lanes.__file__).parent}"]
    subprocess.run(["g++", *flags, str(source), "-o", target], check=True)
    library = ctypes.CDLL(target)
    library.forward.argtypes = [ctypes.c_int] * 2 + [ctypes.c_void_p] * 4
    library.backward.argtypes = [ctypes.c_int] * 2 + [ctypes.c_void_p] * 5
    library.strided_forward.argtypes = [ctypes.c_int] + [ctypes.c_void_p] * 3
    library.strided_backward.argtypes = [ctypes.c_int] + [ctypes.c_void_p] * 5
    library.norm_forward.argtypes = [ctypes.c_int] * 2 + [ctypes.c_void_p] * 6
    library.norm_backward.argtypes = [ctypes.c_int] * 2 + [ctypes.c_void_p] * 9
    return library


def race(calls: dict[str, Call], repeats: int, inner: int) -> dict[str, float]:
    """Return the best time of each in microseconds of the processor; they take turns."""
    best = dict.fromkeys(calls, float("inf"))
    for turn in range(repeats + 1):
        for name, call in calls.items():
            start = time.process_time()
            for _ in range(inner):
                call()
            if turn:  # the first warms up
                best[name] = min(best[name], (time.process_time() - start) / inner * 1e6)
    return best


class Layer:
    """A convolution: its numbers in torch's layouts and in the prototype's."""

    def __init__(
        self, library: ctypes.CDLL, shape: int, results: list[torch.Tensor] | None = None
    ) -> None:
        channels, side, _ = SHAPES[shape]
        self.library, self.shape, self.channels, self.side = library, shape, channels, side
        self.x, self.dy = torch.randn(2, BATCH, channels, side, side)
        self.w = torch.randn(channels, channels, 3, 3) / (3 * channels**0.5)
        self.mine_x, self.mine_dy = self.packed(self.x), self.packed(self.dy)
        self.mine_w = self.w.permute(2, 3, 1, 0).contiguous()
        self.u = torch.zeros(POINTS * (channels * channels + LINE))
        self.y, self.dx, self.dw = results or [
            torch.zeros_like(like) for like in (self.mine_x, self.mine_x, self.mine_w)
        ]
        self.given = {layout: self.as_layout(layout) for layout in LAYOUTS}

    def packed(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.permute(2, 3, 1, 0).reshape(self.side**2, -1)
        packed = torch.zeros(len(rows), self.library.pixel_floats(self.channels))
        packed[:, : rows.shape[1]] = rows
        return packed

    def unpacked(self, packed: torch.Tensor) -> torch.Tensor:
        rows = packed[:, : self.channels * BATCH]
        return rows.reshape(self.side, self.side, self.channels, BATCH).permute(3, 2, 0, 1)

    def as_layout(self, layout: str) -> list[torch.Tensor]:
        numbers = [self.dy, self.x, self.w]
        if layout == "channels last":
            return [x.to(memory_format=torch.channels_last) for x in numbers]
        if layout == "blocked":  # oneDNN's, which it does not take for weights in training
            return [self.dy.to_mkldnn(), self.x.to_mkldnn(), self.w]
        return numbers

    def torch_call(self, layout: str, direction: str) -> Call:
        dy, x, w = self.given[layout]
        if direction == "forward":
            return lambda: conv2d(x, w, padding=1)
        wanted = [direction != "by weights", direction != "by data", False]
        ones, zeros = [1, 1], [0, 0]
        return lambda: torch.ops.aten.convolution_backward(
            dy, x, w, None, ones, ones, ones, False, zeros, 1, wanted
        )

    def call(self, method: str, direction: str) -> Call:
        how = METHODS.index(method)
        x, dy, w, u, y, dx, dw = (
            numbers.data_ptr()
            for numbers in (
                *(self.mine_x, self.mine_dy, self.mine_w, self.u),
                *(self.y, self.dx, self.dw),
            )
        )
        if direction == "forward":
            return lambda: self.library.forward(self.shape, how, x, w, u, y)
        wanted_x = None if direction == "by weights" else dx
        wanted_w = None if direction == "by data" else dw
        weights = u if how else w
        return lambda: self.library.backward(self.shape, how, x, dy, weights, wanted_x, wanted_w)

    def results(self, method: str) -> list[torch.Tensor]:
        """Return output and gradients, in torch's layout."""
        if method == "torch":
            backward = self.torch_call("contiguous", "both gradients")
            return [self.torch_call("contiguous", "forward")(), *backward()[:2]]
        self.call(method, "forward")()
        self.call(method, "both gradients")()
        return [self.unpacked(self.y), self.unpacked(self.dx), self.dw.permute(3, 2, 0, 1)]

    def errors(self, method: str) -> list[float]:
        """Return the largest error of output and gradients, of the largest number of each."""
        x, w = (numbers.double().requires_grad_() for numbers in (self.x, self.w))
        y = conv2d(x, w, padding=1)
        y.backward(self.dy.double())
        return [
            float((a.double() - b).abs().max() / b.abs().max())
            for a, b in zip(self.results(method), (y.detach(), x.grad, w.grad), strict=True)
        ]


def checked(layers: list[Layer]) -> None:
    print("| map | method | error forward | by data | by weights |\n|---|---|---:|---:|---:|")
    for layer in layers:
        for method in ["torch", *METHODS]:
            errors = layer.errors(method)
            if max(errors) > TOLERANCE:
                raise SystemExit(f"{method} is wrong: {errors}")
            print(f"| {name_of(layer)} | {method} | {' | '.join(f'{e:.0e}' for e in errors)} |")


def name_of(layer: Layer) -> str:
    return f"{layer.side}x{layer.side}, {layer.channels} channels"


def compare(layer: Layer, repeats: int) -> dict[str, dict[str, float]]:
    """Print a row per direction, and return all times."""
    times = {}
    for direction in DIRECTIONS:
        calls = {layout: layer.torch_call(layout, direction) for layout in LAYOUTS}
        calls |= {method: layer.call(method, direction) for method in METHODS}
        times[direction] = best = race(calls, repeats, inner=8)
        theirs = min(LAYOUTS, key=best.__getitem__)
        ratio = best[theirs] / min(best[method] for method in METHODS)
        mine = " | ".join(f"{best[method]:.0f}" for method in METHODS)
        print(
            f"| {name_of(layer)} | {direction} | {best['contiguous']:.0f} "
            f"| {best[theirs]:.0f} ({theirs}) | {mine} | {ratio:.2f} |"
        )
    return times


def fastest(times: dict[str, dict[str, float]], names: list[str]) -> str:
    return min(names, key=lambda name: times["forward"][name] + times["both gradients"][name])


def chain(layers: list[Layer], call_of: Callable[[Layer, str], Call]) -> Call:
    """All layers forth and back, as in a step."""
    calls = [call_of(layer, "forward") for layer in layers]
    calls += [call_of(layer, "both gradients") for layer in reversed(layers)]

    def run() -> None:
        for call in calls:
            call()

    return run


def chains(
    library: ctypes.CDLL, all_times: list[dict[str, dict[str, float]]], repeats: int
) -> dict[str, float]:
    layers = []
    for shape, (_, _, count) in enumerate(SHAPES):
        first = Layer(library, shape)
        # Results are dropped at once, so that torch's take the same memory again: so do these.
        results = [first.y, first.dx, first.dw]
        layers += [first, *(Layer(library, shape, results) for _ in range(count - 1))]
    mine = [fastest(times, METHODS) for times in all_times]
    theirs = [fastest(times, LAYOUTS) for times in all_times]
    calls = {
        "contiguous": chain(layers, lambda layer, to: layer.torch_call("contiguous", to)),
        "best layouts": chain(layers, lambda layer, to: layer.torch_call(theirs[layer.shape], to)),
        "direct": chain(layers, lambda layer, to: layer.call("direct", to)),
        "F(2x2)": chain(layers, lambda layer, to: layer.call("F(2x2)", to)),
        "fastest": chain(layers, lambda layer, to: layer.call(mine[layer.shape], to)),
    }
    return race(calls, repeats, inner=2)


def network() -> torch.nn.Sequential:
    shape, options = (3, 32, 32), {"width": 0.25, "norm": "group", "stem_stride": 2}
    return build_model("resnet18", shape, 10, 0, **options).train()


def step_of(layout: torch.memory_format) -> Call:
    """Return torch's step of training with the given layout."""
    module = network().to(memory_format=layout)
    x = torch.randn(BATCH, 3, 32, 32).to(memory_format=layout)
    y = torch.randint(0, 10, (BATCH,))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        cross_entropy(module(x), y).backward()
        optimizer.step()

    return step


def share_of_layers(step: Call, steps: int = 5) -> float:
    """Return the share of some steps that the 3x3 convolutions of stride 1 take."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled:
        for _ in range(steps):
            step()
    weights = [[channels, channels, 3, 3] for channels, _, _ in SHAPES]
    events = profiled.key_averages(group_by_input_shape=True)
    inside = sum(
        event.cpu_time_total
        for event in events
        if (event.key == "aten::conv2d" and event.input_shapes[1] in weights)
        or (event.key == "aten::convolution_backward" and event.input_shapes[2] in weights)
    )
    return inside / sum(event.self_cpu_time_total for event in events)


def report_step(chain_times: dict[str, float], repeats: int) -> None:
    steps = {
        "contiguous": step_of(torch.contiguous_format),
        "channels last": step_of(torch.channels_last),
    }
    times = race(steps, repeats, inner=2)
    layout = min(times, key=times.__getitem__)
    # The profiler has the wall clock, so that other processes may disturb a part of them.
    share = statistics.median(share_of_layers(steps[layout]) for _ in range(repeats))
    for name, time_of in times.items():
        print(f"- torch's step, {name}: {time_of / 1e3:.1f} ms ({BATCH / time_of * 1e6:,.0f}/s)")
    print(f"- of which 3x3 convolutions of stride 1: {share:.0%} ({layout})")
    print("\n| these layers by | ms | step, ms | times as fast | if all else took no time |")
    print("|---|---:|---:|---:|---:|")
    whole = times[layout]
    for name in ("direct", "F(2x2)", "fastest"):
        layers = chain_times[name]
        step = whole * (1 - share) + layers
        print(
            f"| {name} | {layers / 1e3:.2f} | {step / 1e3:.1f} | {whole / step:.2f} "
            f"| {whole / layers:.2f} |"
        )


def main() -> None:
    library, repeats = started(__doc__, 15)
    layers = [Layer(library, shape) for shape in range(len(SHAPES))]
    checked(layers)
    print("\n| map | direction | torch, contiguous, µs | torch, best, µs | direct, µs ", end="")
    print("| F(2x2), µs | largest tile, µs | times as fast |\n|---|---|" + "---:|" * 6)
    all_times = [compare(layer, repeats) for layer in layers]
    chain_times = chains(library, all_times, repeats)
    print("\nAll 13 layers forth and back, each with inputs and weights of its own:\n")
    for name, time_of in chain_times.items():
        print(f"- {name}: {time_of / 1e3:.2f} ms")
    report_step(chain_times, repeats)


if __name__ == "__main__":
    main()
