"""The kernels under the address and undefined-behaviour sanitizers, in a program of their own."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest
from torch import nn

import flamma.training.lanes
from flamma.training.lanes import plan_of

HOME = Path(flamma.training.lanes.__file__).parent
X86 = platform.machine().lower() in {"x86_64", "amd64"}
VARIANT, FLAGS, NUMBER = ("avx2", ["-mavx2", "-mfma"], 1) if X86 else ("portable", [], 0)
"""One instruction set is enough, for all are compiled from the same text, and it takes long."""

SANITIZED = ["-std=c++17", "-O0", "-g", "-fsanitize=address,undefined", "-Wno-psabi"]
SANITIZED += ["-DLANES_INLINE=inline"]  # every block once, which compiles much faster

MAIN = r"""
#include <cstdio>
#include <cmath>
#include <memory>
#include <vector>
#include "api.hpp"

extern "C" {
int lanes_width(int);
void* lanes_new(int, const int64_t*, int64_t, int);
void lanes_delete(void*);
int64_t lanes_params(void*);
void lanes_receive(void*, const float*);
void lanes_put(void*, int, const float*, float, float, float);
void lanes_take(void*, int, float*);
int64_t lanes_run(void*, Seat*, int64_t);
void lanes_load(void*, const float*);
void lanes_score(void*, const float*, const int64_t*, int64_t, float*, uint8_t*);
}

// Reads a plan after the instruction set, trains clients of different sizes in seats of so many
// lanes, and scores.
int main() {
    long set, batch, share, words;
    if (std::scanf("%ld %ld %ld %ld", &set, &batch, &share, &words) != 4) return 2;
    std::vector<int64_t> plan;
    for (long word, i = 0; i < words; ++i) {
        if (std::scanf("%ld", &word) != 1) return 2;
        plan.push_back(word);
    }
    const int lanes = lanes_width(static_cast<int>(set));
    if (lanes == 0) return 3;
    const int width = lanes / static_cast<int>(share);
    void* net = lanes_new(static_cast<int>(set), plan.data(), batch, static_cast<int>(share));
    const int64_t features = plan[0] * plan[1] * plan[2], count = lanes_params(net);
    std::vector<float> params(count), result(count);
    for (int64_t i = 0; i < count; ++i) params[i] = 0.1f * std::sin(static_cast<float>(i));
    lanes_receive(net, params.data());
    std::vector<Seat> seats(width);
    std::vector<std::unique_ptr<std::vector<float>>> xs;
    std::vector<std::unique_ptr<std::vector<int64_t>>> ys, orders;
    for (int seat = 0; seat < width; ++seat) {
        const int64_t samples = seat == 1 ? 0 : 1 + (3 * seat + 4) % 7;
        xs.push_back(std::make_unique<std::vector<float>>(samples * features));
        ys.push_back(std::make_unique<std::vector<int64_t>>(samples));
        orders.push_back(std::make_unique<std::vector<int64_t>>(samples));
        for (int64_t i = 0; i < samples * features; ++i)
            (*xs.back())[i] = std::cos(static_cast<float>(i * (seat + 1)));
        for (int64_t i = 0; i < samples; ++i) {
            (*ys.back())[i] = i % plan[3];
            (*orders.back())[i] = samples - 1 - i;
        }
        lanes_put(net, seat, params.data(), 0.1f, seat % 2 ? 0.9f : 0.0f, 0.01f * seat);
        seats[seat] = Seat{xs[seat]->data(), ys[seat]->data(), orders[seat]->data(), samples};
    }
    while (lanes_run(net, seats.data(), 2) > 0) continue;
    double sum = 0.0;
    for (int seat = 0; seat < width; ++seat) {
        lanes_take(net, seat, result.data());
        for (float value : result) sum += std::fabs(value);
    }
    lanes_load(net, result.data());
    std::vector<float> losses(xs[0]->size() / features);
    std::vector<uint8_t> right(losses.size());
    lanes_score(net, xs[0]->data(), ys[0]->data(), static_cast<int64_t>(losses.size()),
                losses.data(), right.data());
    for (float loss : losses) sum += loss;
    lanes_delete(net);
    std::printf("%s\n", std::isfinite(sum) && sum > 0 ? "finite" : "not finite");
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no g++")
    folder = tmp_path_factory.mktemp("sanitized")
    (folder / "main.cpp").write_text(MAIN)
    others = {"portable", "avx2", "avx512"} - {VARIANT}
    (folder / "others.cpp").write_text(
        '#include "api.hpp"\n'
        + "\n".join(f"const Variant* {name}_variant() {{ return nullptr; }}" for name in others)
    )
    sources = [HOME / "kernels.cpp", HOME / f"{VARIANT}.cpp", *folder.glob("*.cpp")]
    subprocess.run(
        [compiler, *SANITIZED, *FLAGS, f"-I{HOME}", *sources, "-o", folder / "program"],
        check=True,
    )
    return folder / "program"


def lenet(width):
    return nn.Sequential(
        nn.Conv2d(2, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 5, 5), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(5 * 2 * width, 9), nn.ReLU(), nn.Linear(9, 3),
    )  # fmt: skip


NETS = {
    "lenet": (lenet(3), (2, 17, 21)),
    "padded": (
        nn.Sequential(
            nn.Conv2d(1, 3, 3, padding=1), nn.Tanh(), nn.Conv2d(3, 4, (3, 4), padding=(2, 1)),
            nn.AvgPool2d(3, 2), nn.Conv2d(4, 7, 2), nn.Tanh(), nn.MaxPool2d(2, 1), nn.Flatten(),
            nn.Linear(14, 2),
        ),
        (1, 8, 9),
    ),
    "linear": (nn.Sequential(nn.Flatten(), nn.Linear(230, 6), nn.Tanh(), nn.Linear(6, 4)), (230,)),
}  # fmt: skip


@pytest.mark.parametrize("share", [1, 2, 4])
@pytest.mark.parametrize("name", NETS)
def test_no_access_out_of_bounds_and_nothing_undefined(program, name, share):
    plan, reason = plan_of(*NETS[name])
    assert plan is not None, reason
    words = [NUMBER, 3, share, plan.size, *plan.tolist()]
    result = subprocess.run(
        [program], input=" ".join(map(str, words)), capture_output=True, text=True, timeout=300
    )
    if result.returncode == 3:
        pytest.skip("this processor has not got them")
    assert result.stderr == ""
    assert (result.returncode, result.stdout) == (0, "finite\n")
