"""Profiles: many more random games with ``--hypothesis-profile=thorough``."""

from hypothesis import settings

settings.register_profile("default", deadline=None, max_examples=300)
settings.register_profile("thorough", deadline=None, max_examples=20_000)
settings.load_profile("default")
