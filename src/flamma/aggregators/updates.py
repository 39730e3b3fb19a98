"""Aggregators that go by the clients' updates: how far each moved from the model it received."""

from __future__ import annotations

import math

import numpy as np

from flamma.aggregators.contract import Reference, Vectors, Weighed, asks
from flamma.aggregators.coordinates import coordinate_median, weighted_median
from flamma.errors import StrategyError
from flamma.numerics import dot, norm, total, weighted_sum
from flamma.types import Floats

ROUNDING_LENGTH = 2.0**-20
"""An update shorter than this part of the model is rounding, which must not be scaled up."""


def _check_radius(answers: int, *, radius: float | None, weighted: bool) -> None:
    if radius is not None and not radius > 0:
        raise StrategyError(f"the radius must be positive, not {radius:g}.")


@asks(check=_check_radius)
def norm_clipping(
    vectors: Vectors,
    weights: Floats,
    reference: Reference,
    *,
    radius: float | None = None,
    weighted: bool = True,
) -> Floats:
    """Return the mean of the models after updates longer than a radius were cut to it.

    The update u counts as u min(1, radius / ‖u‖).

    Parameters
    ----------
    radius : float, optional
        The longest update that counts in full; by default the median length of those at hand.
    weighted : bool
        Whether clients count by their weights, such as their data sizes; else they count alike.
    """
    given = Weighed.of(vectors, weights, weighted)
    lengths = np.array([norm(vector - reference.received) for vector in given.vectors])
    most = weighted_median(lengths, given.weights) if radius is None else radius
    cut = np.minimum(1.0, most / np.maximum(lengths, np.finfo(float).tiny))
    return _moved(given, reference, given.weights * cut)


@asks(needs_validation=True, needs_server_update=True)
def fltrust(
    vectors: Vectors, weights: Floats, reference: Reference, *, weighted: bool = True
) -> Floats:
    """Return the model moved by updates trusted as far as they agree with the server's own.

    Cao et al., "FLTrust: Byzantine-robust federated learning via trust bootstrapping", NDSS 2021.
    The server trains the received model on its validation set, which gives the update u_0. A
    client's trust is max(0, cos ∠(u, u_0)); its update is scaled to the length of u_0, and the
    step is the mean of these by trust. If none is trusted, the model stays as it is. What is not
    trained, such as a running variance, has no update to compare: it becomes the median by trust.

    Parameters
    ----------
    weighted : bool
        Whether trust is multiplied by the clients' weights, such as their data sizes; the paper
        does not do that.
    """
    given = Weighed.of(vectors, weights, weighted)
    own = reference.server_update()
    trained, length = slice(own.size), norm(own)
    shortest = ROUNDING_LENGTH * norm(reference.received[trained])
    trust, scales = np.zeros(len(given.vectors)), np.zeros(len(given.vectors))
    for place, vector in enumerate(given.vectors):
        update = vector[trained].astype(np.float64) - reference.received[trained]
        size = norm(update)
        if size > shortest and 0 < length < math.inf:
            trust[place] = max(0.0, dot(update, own) / size / length)
            scales[place] = length / size
    trust *= given.weights
    believed = total(trust)
    if not believed > 0:
        return given.scale * reference.received.astype(np.float64)
    result = _moved(given, reference, trust / believed * scales)
    if own.size < result.size:
        rest = [vector[own.size :] for vector in given.vectors]
        result[own.size :] = given.scale * coordinate_median(rest, trust / believed)
    return result


def _moved(given: Weighed, reference: Reference, factors: Floats) -> Floats:
    """Return the received model plus the updates times their factors, times the scale."""
    stays = (1.0 - total(factors)) * reference.received.astype(np.float64)
    return given.scale * (stays + weighted_sum(given.vectors, factors))
