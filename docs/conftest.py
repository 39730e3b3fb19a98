"""Examples that add to a registry do not change it for the tests that run after them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flamma.experiments.parts import PARTS


@pytest.fixture(autouse=True)
def _restored_registries() -> Iterator[None]:
    before = [set(part.registry) for part in PARTS]
    yield
    for part, names in zip(PARTS, before, strict=True):
        for name in set(part.registry) - names:
            part.registry.discard(name)
