"""FedAvg: clients at random, a fixed number of epochs, the mean of their models.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
AISTATS 2017.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, TypeVar

import numpy as np

from flamma.aggregators import ROUNDING_LENGTH, Reference
from flamma.numerics import dot, norm, power
from flamma.registry import above, at_least
from flamma.strategies.base import (
    MAX_EPOCHS,
    Needs,
    Offer,
    Round,
    S,
    State,
    Strategy,
    data_weights,
    model_of,
    uniform_choice,
)
from flamma.strategies.flamma import Flamma, FlammaState
from flamma.types import (
    Floats,
    Ints,
    LocalWork,
    Objective,
    Params,
    Plan,
    Population,
    Profile,
    Terms,
    Update,
)


@dataclass(frozen=True)
class Averaging(Strategy[S]):
    """What FedAvg and its variants share, whatever their state."""

    @property
    def wants_losses(self) -> bool:
        """Whether clients must tell the loss of a model on their data."""
        terms = self.terms(0, 1)
        return super().wants_losses or terms.report_loss != "no"

    def offer(self, state: S, available: Ints, rng: np.random.Generator) -> Offer:
        """Select clients, and offer each its terms."""
        number = state.round + 1
        chosen = self.select(state, available, rng)
        return Offer(number, tuple(self.terms(int(client), number) for client in chosen))

    def select(self, state: S, available: Ints, rng: np.random.Generator) -> Ints:
        """Return the clients of the next round, in order: here a uniform draw."""
        return uniform_choice(available, self.plan.per_round, rng)

    def terms(self, client: int, round: int) -> Terms:
        """Return one client's terms; variants change them."""
        return Terms(client, round)

    def step(self, state: S, round: Round) -> S:
        """Take the mean of the models, weighted by data size."""
        updates = round.updates
        if not updates:
            return state
        return replace(state, params=self.average(round, data_weights(updates)))


@dataclass(frozen=True)
class FedAvg(Averaging[State]):
    """K clients uniformly, E epochs each, w ← Σ p_k w_k with p by data size."""

    name: ClassVar[str] = "fedavg"
    label: ClassVar[str] = "FedAvg"
    summary: ClassVar[str] = "random clients, fixed epochs, mean by data size"
    family: ClassVar[str] = "reference"
    needs: ClassVar[Needs] = Needs(server_reads="mean")

    def init(self, params: Params, population: Population) -> State:
        """Start with the given weights."""
        return State(params, 0, population.samples)


# What strategies share that combine the clients' gradients rather than their models.
#
# What a client has moved by in its local training, with the other sign, stands for its gradient:
# g_k = w - w_k. What is not trained, such as a batch norm's running means, has no gradient: it
# becomes the mean by data size.


@dataclass(frozen=True, eq=False)
class GradientState(State):
    """``trainable_size`` is how many of the weights are trained, and so have a gradient."""

    trainable_size: int


G = TypeVar("G", bound=GradientState)


@dataclass(frozen=True, eq=False)
class Moves:
    """How far each client has moved the trained weights, -g_k, in the order of the reports.

    ``received`` are the trained weights that they moved from, and ``reference`` what aggregators
    measure from.
    """

    reports: Sequence[Update]
    received: Floats
    updates: list[Floats]
    reference: Reference | None

    @classmethod
    def of(cls, state: GradientState, round: Round) -> Moves:
        """Return the moves of the updates of a round."""
        size, reference = state.trainable_size, round.reference
        received = state.params[:size].astype(np.float64)
        moves = [model_of(update)[:size] - received for update in round.updates]
        return cls(round.updates, received, moves, reference and reference.of_trained(size))

    def of_length_1(self) -> list[Floats]:
        """Return the updates at length 1; one that is no more than rounding has no direction."""
        shortest = ROUNDING_LENGTH * norm(self.received)
        lengths = [norm(update) for update in self.updates]
        return [
            update / length if length > shortest else np.zeros(update.size)
            for update, length in zip(self.updates, lengths, strict=True)
        ]


def inner_products(vectors: Sequence[Floats]) -> Floats:
    """Return the matrix of the inner products of all pairs."""
    products = np.zeros((len(vectors), len(vectors)))
    for first, one in enumerate(vectors):
        for second in range(first, len(vectors)):
            products[first, second] = products[second, first] = dot(one, vectors[second])
    return products


@dataclass(frozen=True)
class ByGradients(Averaging[G]):
    """The round of a strategy that combines gradients; variants say where the weights move."""

    def step(self, state: G, round: Round) -> G:
        """Move the trained weights by the gradients, and average the others."""
        round = round.only(self.usable(round.updates))
        if not round.updates:
            return state
        params = self.average(round, data_weights(round.updates))
        moved = self.moved(state, Moves.of(state, round))
        params[: state.trainable_size] = moved.astype(np.float32)
        return replace(state, params=params)

    def usable(self, accepted: Sequence[Update]) -> Sequence[Update]:
        """Return the reports that can be used: here all."""
        return accepted

    @abstractmethod
    def moved(self, state: G, moves: Moves) -> Floats:
        """Return the trained weights after the round."""


@dataclass(frozen=True)
class ByUnitGradients(ByGradients[GradientState]):
    """Gradients are brought to length 1, so that a step is as long as the server says.

    Parameters
    ----------
    server_step : float
        η_s, the length of a step along gradients that all point the same way; a schedule of the
        learning rate multiplies it, too.
    """

    server_step: Annotated[float, above(0)] = 1.0

    def init(self, params: Params, population: Population) -> GradientState:
        """Start with the given weights."""
        return GradientState(params, 0, population.samples, population.trainable_size)

    def step_length(self, state: GradientState) -> float:
        """Return η_s of the round after a state."""
        return self.server_step * self.plan.factor(state.round + 1)


# What strategies share whose server does more with the clients' updates than take their mean.
#
# u_k = w_k - w is client k's update of the received weights w. What is not trained, such as the
# running variance of a batch norm, has no update: it becomes the mean of what clients sent.

_Stepping = TypeVar("_Stepping", bound=GradientState)


@dataclass(frozen=True)
class ServerOptimiser(Averaging[_Stepping]):
    """What strategies share whose server makes a step of its own from the mean update."""

    needs: ClassVar[Needs] = Needs(server_reads="mean")

    @abstractmethod
    def move(self, state: _Stepping, update: Floats) -> tuple[Floats, _Stepping]:
        """Return the server's step after a mean update, and the state that remembers it."""

    def step(self, state: _Stepping, round: Round) -> _Stepping:
        """Take the mean of the updates by data size, and the step that follows from it."""
        updates = round.updates
        if not updates:
            return state
        mean = self.average(round, data_weights(updates))
        step, after = self.move(state, change(state.params, mean, state.trainable_size))
        return replace(after, params=stepped(state.params, mean, step))


def stepped(received: Params, mean: Params, step: Floats) -> Params:
    """Return w + step in what is trained, the first weights, and the mean in what is not.

    It is computed as mean + (step - (mean - w)), so that the step to the mean leads to the mean to
    the last bit.
    """
    size = step.size
    params = mean.copy()
    params[:size] = (mean[:size] + (step - change(received, mean, size))).astype(np.float32)
    return params


def change(before: Params, after: Params, trainable_size: int) -> Floats:
    """Return after - before in what is trained, in double precision."""
    return after[:trainable_size].astype(np.float64) - before[:trainable_size]


def scaled_models(
    updates: Sequence[Update], received: Params, factors: Sequence[float], trainable_size: int
) -> list[Floats]:
    """Return w + f_k u_k of every report; a factor of 1 gives its model to the last bit."""
    models = []
    for update, factor in zip(updates, factors, strict=True):
        model = model_of(update).astype(np.float64)
        trained = model[:trainable_size]
        trained += (factor - 1) * (trained - received[:trainable_size])
        models.append(model)
    return models


def gradient_weight(plan: Plan, samples: int, epochs: int, iterations: int | None = None) -> float:
    """Return how many gradients there are in the update of a client with so many samples.

    Without momentum that is the number τ of its mini-batches. With a momentum ρ from zero velocity
    it is (τ - ρ (1 - ρ^τ) / (1 - ρ)) / (1 - ρ), which FedNova calls ‖a‖₁: a gradient counts again
    in every step after its own.

    Examples
    --------
    >>> gradient_weight(Plan(rounds=1, per_round=1, batch_size=32), samples=65, epochs=2)
    6.0
    >>> gradient_weight(Plan(rounds=1, per_round=1, momentum=0.5), samples=1, epochs=2)
    2.5
    """
    batches = epochs * -(-samples // plan.batch_size) if iterations is None else iterations
    steps, momentum = max(1, batches), plan.momentum
    if momentum == 0:
        return float(steps)
    faded = momentum * (1 - float(power(momentum, steps))) / (1 - momentum)
    return (steps - faded) / (1 - momentum)


# FedProx: FedAvg whose clients are held near the global model.
#
# Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020.


@dataclass(frozen=True)
class FedProx(FedAvg):
    """The local step is w_k ← w_k - η (∇F_k + μ (w_k - w)); μ = 0 is FedAvg.

    Parameters
    ----------
    mu : float
        μ, the weight of the proximal term.
    """

    name: ClassVar[str] = "fedprox"
    label: ClassVar[str] = "FedProx"
    summary: ClassVar[str] = "FedAvg with a proximal term (mu) in the local loss"
    family: ClassVar[str] = "optimisation"

    mu: Annotated[float, at_least(0)] = 0.1

    def terms(self, client: int, round: int) -> Terms:
        """Return FedAvg's terms with the proximal weight."""
        return Terms(client, round, objective=Objective(proximal=self.mu))


# FedAvg with FLamma's decay of the step: γ as FLamma's server finds it, and nothing else of it.
#
# The row that tells whether a gain is the decay's: clients are drawn at random and do a fixed
# number of epochs, whatever the γ that their step is scaled with.


@dataclass(frozen=True)
class FedAvgDecay(Flamma):
    """Random clients, E epochs each with step η γ, the mean of their models."""

    name: ClassVar[str] = "fedavg-decay"
    label: ClassVar[str] = "FedAvg + decay"
    summary: ClassVar[str] = "FedAvg whose step decays as FLamma's does"
    family: ClassVar[str] = "optimisation"

    selection: Literal["top", "sample", "uniform"] = "uniform"

    def offer(self, state: FlammaState, available: Ints, rng: np.random.Generator) -> Offer:
        """Solve FLamma's game for γ; no client plays it, so there is nothing to certify."""
        return replace(super().offer(state, available, rng), game=None)

    def respond(self, terms: Terms, profile: Profile) -> LocalWork:
        """Do the epochs that the plan fixes."""
        return Strategy.respond(self, terms, profile)

    def epoch_range(self, terms: Terms) -> tuple[int, int]:
        """Return the one number of epochs that the plan fixes; a warm-up has none."""
        fixed = self.plan.epochs
        return (fixed, fixed) if terms.batches is None else (0, MAX_EPOCHS)


# The ceiling: the same net trained centrally on all clients' data, with as many sample-steps.
#
# Not a federated algorithm. With one class per client its variance over clients is the spread of
# the class accuracies, which no federated strategy can honestly undercut.


@dataclass(frozen=True)
class Central(Strategy[State]):
    """Each round as many mini-batches of the pooled data as K average clients have in E epochs."""

    name: ClassVar[str] = "central"
    label: ClassVar[str] = "Central (ceiling)"
    summary: ClassVar[str] = "not federated: the pooled data, as the ceiling"
    family: ClassVar[str] = "reference"
    needs: ClassVar[Needs] = Needs(server_reads="plain", pooled_data=True)

    def init(self, params: Params, population: Population) -> State:
        """Start with the given weights."""
        return State(params, 0, population.samples)

    def offer(self, state: State, available: Ints, rng: np.random.Generator) -> Offer:
        """Let client 0, which holds all clients' data, train as much as K clients would."""
        number, clients = state.round + 1, state.samples.size
        epochs = self.plan.epochs * min(self.plan.per_round, clients)
        batches = -(-int(state.samples.sum()) // (clients * self.plan.batch_size))
        return Offer(number, (Terms(0, number, epochs=epochs, batches=epochs * batches),))

    def step(self, state: State, round: Round) -> State:
        """Take what was trained."""
        params = [update.params for update in round.updates if update.params is not None]
        return replace(state, params=params[0]) if params else state
