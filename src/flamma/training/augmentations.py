"""Random changes of the samples that a client trains on, sampled again for every mini-batch.

Another package adds one by an entry point of the group ``flamma.augmentations`` that names a
frozen dataclass with ``__call__(samples, rng) -> samples``; its fields are the options. The first
dimension counts the samples of a mini-batch, and the shape stays as it is. Whatever is random comes
from ``rng``, which belongs to the client and the round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from flamma.errors import ConfigError, FlammaError, Key
from flamma.registry import Between, CheckedOptions, Choice, Registry
from flamma.training import Floats32

OWN_AUGMENTATION = "own"
"""The name of an augmentation that was given from Python."""

Augment = Callable[[Floats32, np.random.Generator], Floats32]
"""Returns the samples of a mini-batch changed at random, in the same shape."""


@dataclass(frozen=True)
class _Flip(CheckedOptions):
    """Mirror pictures left to right, each with the same chance.

    Parameters
    ----------
    chance : float
        Of a picture to be mirrored.
    """

    chance: Annotated[float, Between(0, 1)] = 0.5

    def __call__(self, samples: Floats32, rng: np.random.Generator) -> Floats32:
        """Return the pictures, some of them mirrored."""
        _require_pictures("flip", samples)
        mirrored = rng.random(len(samples)) < self.chance
        return np.where(mirrored.reshape(-1, 1, 1, 1), samples[..., ::-1], samples)


@dataclass(frozen=True)
class _Crop(CheckedOptions):
    """Shift pictures by a random number of pixels in each direction; zeros move in.

    Parameters
    ----------
    padding : int
        The largest shift in pixels: a picture is padded by zeros on every side, and one of
        its own size is cut out.
    """

    padding: Annotated[int, Between(0, 10_000)] = 2

    def __call__(self, samples: Floats32, rng: np.random.Generator) -> Floats32:
        """Return the pictures, each shifted."""
        _require_pictures("crop", samples)
        height, width = samples.shape[2:]
        around = (self.padding, self.padding)
        wide = np.pad(samples, ((0, 0), (0, 0), around, around))
        down, across = rng.integers(0, 2 * self.padding + 1, (2, len(samples)))
        rows, columns = down[:, None] + np.arange(height), across[:, None] + np.arange(width)
        each = np.arange(len(samples))[:, None, None]
        cut: Floats32 = wide[each, :, rows[:, :, None], columns[:, None, :]]
        return np.ascontiguousarray(np.moveaxis(cut, 3, 1))


AUGMENTATIONS: Registry[Callable[..., Augment]] = Registry(
    "augmentation", "flamma.augmentations", {"flip": _Flip, "crop": _Crop}
)
"""All augmentations by name: what makes one from its options."""


@dataclass(frozen=True)
class AugmentationReader:
    """Reads what a configuration says: a name, a table, or a list of them."""

    def choose(self, given: Any, where: str) -> tuple[Choice, ...]:
        """Return the chosen augmentations in the order in which they are applied."""
        if callable(given):
            raise ConfigError(
                "a function of your own is no setting: give it from Python, augment=..."
            )
        several = given if isinstance(given, list | tuple) else [given]
        if len(several) == 1 and several[0] in (OWN_AUGMENTATION, Choice(OWN_AUGMENTATION)):
            return (Choice(OWN_AUGMENTATION),)
        return tuple(AUGMENTATIONS.choose(one, where) for one in several)


def augmentation_of(chosen: Sequence[Choice], own: Augment | None = None) -> Augment | None:
    """Return the augmentation of a configuration, None if it has none."""
    if Choice(OWN_AUGMENTATION) in chosen:
        if own is None:
            raise ConfigError(
                Key("training.augmentation"),
                " is own, a function that was given from Python: give it again, augment=..., on "
                "the local engine.",
            )
        return own
    parts = [AUGMENTATIONS[one.name](**one.options) for one in chosen]

    def in_turn(samples: Floats32, rng: np.random.Generator) -> Floats32:
        for part in parts:
            samples = part(samples, rng)
        return samples

    return in_turn if parts else None


def augmented(augment: Augment, samples: Floats32, rng: np.random.Generator) -> Floats32:
    """Return augmented samples, which must be as many and of the same shape as before."""
    changed = np.ascontiguousarray(augment(samples, rng))
    if changed.shape != samples.shape:
        raise FlammaError(
            f"the augmentation made samples of shape {changed.shape} out of {samples.shape}: it "
            f"must keep the shape."
        )
    return changed.astype(samples.dtype, copy=False)


def _require_pictures(name: str, samples: Floats32) -> None:
    if samples.ndim != 4:
        raise ConfigError(
            f"the augmentation {name} is for pictures (channels, height, width), not for samples "
            f"of shape {samples.shape[1:]}."
        )
