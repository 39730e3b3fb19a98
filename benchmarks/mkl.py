"""What MKL's strict mode (`MKL_CBWR`) costs a round of torch, and what it is good for.

A round trains three clients and scores their held-out samples. Each mode has a process of its own;
they take turns, with one thread, timed in seconds of the processor. Ratios are taken of the rounds
of every turn, of which the median is shown. The last column says for how many batches of 1 to 63
samples the network itself has other outputs than for a batch of 64 that begins with them; what is
scored in a run is filled up to whole multiples of 16, so that there are none.

    python benchmarks/mkl.py [--models mlp logistic lenet5 resnet18] [--turns 15]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time

import numpy as np
import torch

from flamma.experiments.result import text_table
from flamma.models import build_model
from flamma.training import TorchTrainer
from flamma.types import LocalWork, Terms

MODES = ["OFF", "AUTO,STRICT", "AVX2,STRICT", "COMPATIBLE"]
MODELS = {
    "mlp": ((784,), 10, {}, 320),
    "logistic": ((20,), 2, {}, 320),
    "lenet5": ((1, 28, 28), 10, {}, 160),
    "resnet18": ((3, 32, 32), 10, {"width": 0.25}, 32),
}
CLIENTS, BATCH_SIZE, MOST = 3, 32, 64


def serve(name: str) -> None:
    """Do a round for each line that is read; print its seconds."""
    torch.set_num_threads(1)
    shape, classes, options, samples = MODELS[name]
    trainer = TorchTrainer(lambda: build_model(name, shape, classes, 0, **options), BATCH_SIZE)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((samples, *shape), dtype=np.float32)
    y = rng.integers(0, classes, samples)
    params = trainer.model.read()
    module, beginning = trainer.model.module.eval(), torch.tensor(np.resize(x, (MOST, *shape)))
    with torch.inference_mode():
        outputs = [module(beginning[:size]) for size in range(1, MOST + 1)]
    print(sum(not some.equal(outputs[-1][: len(some)]) for some in outputs), flush=True)
    module.train()
    for _ in sys.stdin:
        begin = time.process_time()
        for client in range(CLIENTS):
            task = LocalWork(Terms(client, 1), epochs=1, learning_rate=0.01)
            trainer.train(params, x, y, task, np.random.default_rng(client))
            trainer.predict(params, x[: samples // 4], y[: samples // 4])
        print(time.process_time() - begin, flush=True)


class Mode:
    """A process in one mode."""

    def __init__(self, mode: str, model: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve", model],
            env=os.environ | {"MKL_CBWR": "" if mode == "OFF" else mode},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.differing = self.process.stdout.readline().strip()
        self.round()  # which warms up

    def round(self) -> float:
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    rows = []
    for model in options.models:
        modes = [Mode(mode, model) for mode in MODES]
        turns = np.array([[mode.round() for mode in modes] for _ in range(options.turns)])
        for number, mode in enumerate(modes):
            mode.process.stdin.close()
            mode.process.wait()
            seconds = statistics.median(turns[:, number])
            ratio = statistics.median(turns[:, number] / turns[:, 0])
            row = f"{1000 * seconds:.1f}", f"{ratio:.2f}", f"{mode.differing} of {MOST - 1}"
            rows.append([model, MODES[number], *row])
    print(text_table(["model", "MKL_CBWR", "ms a round", "ratio", "batches that differ"], rows))


if __name__ == "__main__":
    main()
