"""Fuzzes the compiled trainer under the address and undefined-behaviour sanitizers.

The kernels are linked to a program that reads a case per line, so a crash ends that program and
not the tests. A case may be wrong in any way but one: the lengths it states are those its arrays
have, which C++ cannot check.
"""

from __future__ import annotations

import math
import platform
import random
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import flamma.training.lanes

HOME = Path(flamma.training.lanes.__file__).parent
X86 = platform.machine().lower() in {"x86_64", "amd64"}
VARIANT, FLAGS, NUMBER = ("avx2", ["-mavx2", "-mfma"], 1) if X86 else ("portable", [], 0)
"""One instruction set is enough, for all are compiled from the same text, and it takes long."""

SANITIZED = ["-std=c++17", "-O0", "-g", "-fsanitize=address,undefined", "-Wno-psabi"]
SANITIZED += ["-fno-sanitize-recover=all"]
SANITIZED += ["-DLANES_INLINE=inline"]  # every block once, which compiles much faster

CASE_SECONDS = 60.0
"""Seconds after which a case hangs; most take milliseconds."""

STATUSES = range(-4, 1)
"""What the interface may answer, where it does not count."""

CONV, MAX_POOL, AVG_POOL, RELU, TANH, LINEAR, BARE_CONV, GROUP_NORM, RECALL = range(1, 10)
EPSILON = 925353388  # the bits of 1e-5
MEMORY = 2**24
EXTREMES = [-(2**63), -(2**62), -(2**31), -1, 0, 2**31 - 1, 2**31, 2**32 + 1, 2**62, 2**63 - 1]

SIZES = ["batch", "instructions", "memory", "times"]
SIZES += ["more_params", "fewer_jobs", "more_vector", "rates"]


@dataclass(frozen=True)
class Client:
    """The data of a client; ``numbers`` are those of x beyond samples of the right size.

    The bits of ``given`` are which vectors it has: received, start, correction and samples as they
    are shown; the last one is whether its order begins with an empty piece.
    """

    samples: int
    left: int
    highest: int
    lowest: int = 0
    numbers: int = 0
    order_from: int = 0
    given: int = 0

    def words(self) -> list[int]:
        first = [self.samples, self.numbers, self.left]
        return [*first, self.lowest, self.highest, self.order_from, self.given]


@dataclass(frozen=True)
class Case:
    """One use of the interface, from making a net to scoring with it."""

    plan: list[int]
    clients: list[Client]
    batch: int = 3
    instructions: int = NUMBER
    memory: int = MEMORY
    copies: int = 2  # of every client
    pieces: int = 1  # of every client's order
    wants_loss: int = 1
    wants_trained_loss: int = 0
    more_params: int = 0
    fewer_jobs: int = 0
    more_vector: int = 0  # numbers of the jobs' vectors beyond those of the net
    times: list[float] = field(default_factory=lambda: [10.0, math.inf])  # a call's, and the limit
    # The step size, momentum, proximal weight, bound of the loss, tilt, weight decay and clip.
    rates: list[float] = field(default_factory=lambda: [0.1, 0.9, 0.01, math.inf, 0.0, 0.0, 1.0])

    def line(self) -> str:
        first = [self.instructions, self.batch, self.memory, self.copies, self.pieces]
        more = [self.wants_loss, self.wants_trained_loss, self.more_params, self.fewer_jobs]
        more += [self.more_vector, *self.times, *self.rates]
        clients = [word for client in self.clients for word in client.words()]
        plan = [len(self.plan), *self.plan]
        return " ".join(map(str, [*first, *more, *plan, len(self.clients), *clients])) + "\n"


def fuzz(seed: int, seconds: float) -> int:
    """Play random cases for some seconds and return how many.

    Raises
    ------
    AssertionError
        If a case ended the program, hung, or was answered in an unexpected way.
    """
    rng, count = random.Random(seed), 0
    end = time.monotonic() + seconds
    with player() as play:
        while time.monotonic() < end:
            case = sound_case(rng)
            answer = play(case)
            assert all(status == 0 for name, status in answer if name != "left out"), (case, answer)
            play(damaged(rng, case))
            count += 2
    return count


class Player:
    """The running program; call it with a case."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.selector = selectors.DefaultSelector()
        assert process.stdout is not None
        self.selector.register(process.stdout, selectors.EVENT_READ)

    def __call__(self, case: Case) -> list[tuple[str, int]]:
        """Return what each call of a case returned, by name."""
        process = self.process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(case.line())
            process.stdin.flush()
        except BrokenPipeError:
            raise AssertionError(f"{case} ended it: {self._ending()}") from None
        if not self.selector.select(CASE_SECONDS):
            process.kill()
            raise AssertionError(f"{case} hangs")
        words = process.stdout.readline().replace("left out", "left_out").split()
        assert words, f"{case} ended it: {self._ending()}"
        answer = [
            (name.replace("_", " "), int(status))
            for name, status in zip(words[::2], words[1::2], strict=True)
        ]
        for name, status in answer:
            assert name == "infinite" or status in STATUSES, f"{case}: {answer}"
        return answer

    def _ending(self) -> str:
        _, errors = self.process.communicate(timeout=CASE_SECONDS)
        return f"exit code {self.process.returncode}\n{errors}"


@contextmanager
def player() -> Iterator[Player]:
    """Run the program while in scope; sanitizers that find something at its end fail it too."""
    pipe = subprocess.PIPE
    with subprocess.Popen([program()], stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield Player(process)
            _, errors = process.communicate(timeout=CASE_SECONDS)
            assert (process.returncode, errors) == (0, "")
        finally:
            process.kill()


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="flamma-sanitized-")


@cache
def program() -> Path:
    """Compile the program, once in this process, and return its path."""
    folder = Path(_folder().name)
    compiler = shutil.which("g++")
    assert compiler is not None, "there is no g++"
    others = {"portable", "avx2", "avx512"} - {VARIANT}
    (folder / "others.cpp").write_text(
        '#include "api.hpp"\n'
        + "\n".join(f"const Variant* {name}_variant() {{ return nullptr; }}" for name in others)
    )
    main = Path(__file__).parent / "compiled_main.cpp"
    sources = [HOME / "kernels.cpp", HOME / f"{VARIANT}.cpp", main, folder / "others.cpp"]
    subprocess.run(
        [compiler, *SANITIZED, *FLAGS, f"-I{HOME}", *sources, "-o", folder / "program"],
        check=True,
    )
    return folder / "program"


def sound_case(rng: random.Random) -> Case:
    """Return a case in which everything fits."""
    plan, classes = sound_plan(rng)
    clients = []
    for _ in range(rng.randint(1, 4)):
        samples = rng.choice([0, 1, 2, 5, 9, 20])
        order_from = rng.randint(0, samples)
        left = samples - order_from
        highest, given = rng.randrange(classes), rng.choice([0, 0, rng.randrange(32)])
        clients.append(Client(samples, left, highest, order_from=order_from, given=given))
    bound, tilt = rng.choice([(math.inf, 0.0), (1.5, 0.0), (math.inf, 2.0), (math.inf, -1e300)])
    return Case(
        plan,
        clients,
        batch=rng.choice([1, 2, 3, 8, 100, 2**31, 2**62, 2**63 - 1]),
        copies=rng.randint(0, 6),
        # Without samples the next piece would be empty too, for ever.
        pieces=rng.randint(1, 3) if all(client.left for client in clients) else 1,
        wants_loss=rng.randint(0, 1),
        wants_trained_loss=rng.randint(0, 1),
        times=[rng.choice([0.0, 1e-4, 10.0]), rng.choice([0.0, 1e-3, math.inf])],
        rates=[
            rng.choice([0.0, 0.01]),
            rng.choice([0.0, 0.9]),
            rng.choice([0.0, 0.1]),
            bound,
            tilt,
            rng.choice([0.0, 0.01]),
            rng.choice([0.01, 1.0, math.inf]),
        ],
    )


def sound_plan(rng: random.Random) -> tuple[list[int], int]:
    """Return the plan of a random small net, and its classes."""
    image = c, h, w = rng.randint(1, 4), rng.randint(1, 9), rng.randint(1, 9)
    operations: list[list[int]] = []
    for _ in range(rng.randint(0, 4)):
        kind = rng.choice([CONV, MAX_POOL, AVG_POOL, RELU, TANH, BARE_CONV, GROUP_NORM, RECALL])
        kh, kw = rng.randint(1, min(h, 5)), rng.randint(1, min(w, 6))
        if kind == CONV:
            c, ph, pw = rng.randint(1, 7), rng.randrange(kh), rng.randrange(kw)
            operations.append([CONV, c, kh, kw, ph, pw])
            h, w = h + 2 * ph - kh + 1, w + 2 * pw - kw + 1
        elif kind in (MAX_POOL, AVG_POOL):
            sh, sw = rng.randint(1, 3), rng.randint(1, 3)
            operations.append([kind, kh, kw, sh, sw, rng.randint(0, 1)])
            h, w = (h - kh) // sh + 1, (w - kw) // sw + 1
        elif kind == BARE_CONV:
            c, ph, pw = rng.randint(1, 12), rng.randrange(kh), rng.randrange(kw)
            sh, sw = rng.randint(1, 3), rng.randint(1, 3)
            operations.append([BARE_CONV, c, kh, kw, ph, pw, sh, sw])
            h, w = (h + 2 * ph - kh) // sh + 1, (w + 2 * pw - kw) // sw + 1
        elif kind == GROUP_NORM:
            operations.append([GROUP_NORM, _groups(rng, c), EPSILON, rng.randint(0, 1), 0])
        elif kind == RECALL:
            block, c, h, w = sound_block(rng, len(operations), c, h, w)
            operations += block
        elif not operations or not _activated(operations[-1]):
            operations.append([kind])
    for _ in range(rng.randint(1, 3)):
        c, h, w = rng.randint(1, 12), 1, 1
        operations.append([LINEAR, c])
        if rng.random() < 0.5:
            operations.append([rng.choice([RELU, TANH])])
    words = [word for one in operations for word in (one + [0] * 8)[:8]]
    return [*image, c, len(operations), *words], c


def sound_block(
    rng: random.Random, start: int, c: int, h: int, w: int
) -> tuple[list[list[int]], int, int, int]:
    """Return a residual block after so many operations, and the size of its images."""
    if start and rng.random() < 0.5:
        norm = [GROUP_NORM, _groups(rng, c), EPSILON, 1, start]
        return [[BARE_CONV, c, 3, 3, 1, 1, 1, 1], norm], c, h, w
    c, stride = rng.randint(1, 12), rng.randint(1, 2)
    norm = [GROUP_NORM, _groups(rng, c), EPSILON]
    path = [[BARE_CONV, c, 3, 3, 1, 1, stride, stride], [*norm, 0, 0]]
    beside = [[BARE_CONV, c, 1, 1, 0, 0, stride, stride], [*norm, rng.randint(0, 1), start + 2]]
    return [*path, [RECALL, start], *beside], c, -(-h // stride), -(-w // stride)


def _groups(rng: random.Random, channels: int) -> int:
    return rng.choice([n for n in range(1, channels + 1) if channels % n == 0])


def _activated(operation: list[int]) -> bool:
    return operation[0] in (RELU, TANH) or (operation[0] == GROUP_NORM and operation[3] == 1)


def damaged(rng: random.Random, case: Case) -> Case:
    """Return a case with one to three things changed, most of which do not fit any more."""
    for _ in range(rng.randint(1, 3)):
        case = rng.choice([_in_plan, _in_plan, _in_client, _in_sizes])(rng, case)
    return case


def _wild(rng: random.Random, near: int) -> int:
    value = rng.choice([*EXTREMES, *[near + step for step in (-2, -1, 1, 2)] * 3, 2 * near])
    return max(-(2**63), min(value, 2**63 - 1))


def _in_plan(rng: random.Random, case: Case) -> Case:
    plan = list(case.plan)
    how = rng.random()
    if how < 0.1:
        plan = plan[: rng.randrange(len(plan) + 1)]
    elif how < 0.2:
        plan += [rng.randint(0, 6) for _ in range(rng.randint(1, 9))]
    elif how < 0.4 and len(plan) > 5:
        place = 5 + 8 * rng.randrange((len(plan) - 5) // 8 or 1)
        plan[place : place + 1] = [rng.randint(-1, 11)]
    elif plan:
        place = rng.randrange(len(plan))
        plan[place] = _wild(rng, plan[place])
    return replace(case, plan=plan)


def _in_client(rng: random.Random, case: Case) -> Case:
    clients = list(case.clients)
    place = rng.randrange(len(clients))
    name = rng.choice(["samples", "left", "highest", "lowest", "numbers", "order_from"])
    # Lengths are those of real arrays, which cannot be huge.
    near = getattr(clients[place], name)
    value = _wild(rng, near) if name in ("highest", "lowest", "order_from") else rng.randint(-3, 12)
    if name == "order_from":
        value = max(-(2**62), min(value, 2**62))
    clients[place] = replace(clients[place], **{name: value})
    return replace(case, clients=clients)


def _in_sizes(rng: random.Random, case: Case) -> Case:
    name = rng.choice(SIZES)
    if name == "rates":
        wild = [rng.choice([1e38, -1.0, 3.0, float("inf"), float("nan")]) for _ in range(7)]
        return replace(case, rates=wild)
    if name == "times":
        return replace(case, times=[rng.choice([-1.0, 0.0, math.nan, 1.0]) for _ in range(2)])
    if name in ("batch", "memory"):
        return replace(case, **{name: _wild(rng, getattr(case, name))})
    if name == "fewer_jobs":  # there are no more than there are
        return replace(case, fewer_jobs=rng.randint(0, 30))
    return replace(case, **{name: rng.randint(-3, 20)})


if __name__ == "__main__":
    print(f"{fuzz(int(sys.argv[1]), float(sys.argv[2]))} cases, none failing.")
