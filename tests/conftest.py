"""Profiles: many more random games with ``--hypothesis-profile=thorough``; the order of tests."""

import pytest
from hypothesis import settings

settings.register_profile("default", deadline=None, max_examples=150)
settings.register_profile("thorough", deadline=None, max_examples=20_000)
settings.load_profile("default")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put tests that share a federation first: one worker then starts it, and others take the rest.

    Workers take tests from the end of what another one has left, and each one that has a test of
    such a module would start a federation of its own.
    """
    items.sort(key=lambda item: "trial" not in getattr(item, "fixturenames", ()))
