"""Three rounds of one of our strategies, with our trainer and our clients' side."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from problem import BATCH, EPOCHS, ROUNDS, STEP, Problem, Weights, first_weights, network, trained

from flamma.seeding import stream
from flamma.simulation.client_side import ClientSide
from flamma.strategies import STRATEGIES
from flamma.strategies.base import Offer, Strategy
from flamma.training import TrainingJob
from flamma.training.torch_trainer import TorchTrainer
from flamma.types import LocalWork, Params, Plan, Population, Profile, TaskVectors, Update


@dataclass(frozen=True)
class Ours:
    """One of our strategies, by name, with options.

    ``late_survey`` asks for losses after the round of which they are; ``met_losses`` has clients
    tell the sum of the losses they met in their last epoch instead of that of the received model.
    ``own_models`` appends what clients keep, in their order, to the weights. ``per_round`` is how
    many of the cohort train; all of it if left out.
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    late_survey: bool = False
    met_losses: bool = False
    own_models: bool = False
    per_round: int | None = None

    def strategy(self, problem: Problem) -> Strategy[Any]:
        per_round = self.per_round or len(problem.cohorts[0])
        plan = Plan(ROUNDS, per_round, EPOCHS, STEP, BATCH)
        return STRATEGIES[self.name](plan, **self.options)

    def play(self, problem: Problem) -> list[Weights]:
        """Return the weights after each round."""
        strategy = self.strategy(problem)
        played = Rounds(problem, strategy, self.met_losses)
        state = strategy.init(first_weights(), played.population())
        after = []
        for number, cohort in enumerate(problem.cohorts, start=1):
            available, before = np.array(cohort), state
            if not self.late_survey:
                state = played.surveyed(state, before, available)
            offer = strategy.offer(state, available, stream(1, "select", number))
            offer = played.with_epochs(offer)
            reports = played.reports(offer, state)
            state, _ = strategy.aggregate(state, offer, reports)
            if self.late_survey:
                state = played.surveyed(state, before, available)
            kept = played.kept(number) if self.own_models else []
            after.append(np.concatenate([state.params, *kept]))
        return after


class Rounds:
    """What an engine does for a strategy, on the problem."""

    def __init__(self, problem: Problem, strategy: Strategy[Any], met_losses: bool) -> None:
        self.problem, self.strategy, self.met_losses = problem, strategy, met_losses
        self.trainer = TorchTrainer(network, BATCH)
        self.side = ClientSide(strategy, first_weights().size)

    def population(self) -> Population:
        return Population(np.array(self.problem.sizes), None, first_weights().size)

    def surveyed(self, state: Any, judged: Any, available: np.ndarray) -> Any:
        """Return the state that has heard the losses of a state's model."""
        asked = self.strategy.survey(state, available, stream(1, "survey", state.round))
        losses = {int(client): self.loss(judged.params, int(client)) for client in asked}
        return self.strategy.hear(state, losses) if losses else state

    def loss(self, params: Params, client: int) -> float:
        losses, _ = self.trainer.predict(params, *self.problem.data(client))
        return float(losses.mean(dtype=np.float64))

    def with_epochs(self, offer: Offer) -> Offer:
        """Return the offer with the problem's epochs for every client."""
        own = [replace(one, epochs=self.problem.epochs[one.client]) for one in offer.terms]
        return replace(offer, terms=tuple(own))

    def reports(self, offer: Offer, state: Any) -> list[Update]:
        sizes = self.problem.sizes
        tasks = [
            self.strategy.respond(terms, Profile(terms.client, 0.1, sizes[terms.client]))
            for terms in offer.terms
        ]
        download = self.strategy.download(state)

        def train(tasks: Any, vectors: Any) -> list[Update]:
            return [self.train(download.params, *one) for one in zip(tasks, vectors, strict=True)]

        return self.side.carry_out(download, tasks, train)

    def train(self, params: Params, task: LocalWork, vectors: TaskVectors) -> Update:
        rng = self.problem.shuffles(task.round, task.client)
        x, y = self.problem.data(task.client)
        loss = self.trainer.train_in_place(params, TrainingJob(task, x, y, rng, vectors))
        if self.met_losses:
            loss = trained(self.problem, params, task.round, task.client)[1]
        return Update(task.client, self.trainer.model.read(), y.size, task.epochs, loss)

    def kept(self, number: int) -> list[Params]:
        return [self.side.kept.read(client, number + 1) for client in range(self.problem.clients)]
