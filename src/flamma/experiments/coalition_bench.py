"""FedAvg among some clients of a federation: exact worth of coalitions, and what measures pay."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from flamma.contributions import RoundUpdates, measure_round
from flamma.errors import RunError
from flamma.experiments.config import Config
from flamma.experiments.setup import build_data, build_runner
from flamma.experiments.update_deviations import RoundKnowledge, UpdateDeviation
from flamma.registry import Choice
from flamma.strategies.base import Offer
from flamma.strategies.fedavg import FedAvg
from flamma.types import Floats, Ints, Params, Population, Profile, Report

if TYPE_CHECKING:
    from flamma.engines.runner import ClientRunner

ChangedReports = Callable[["PlayedRound"], Sequence[Report]]


class PlayedRound(NamedTuple):
    """A round of training: its number, the global model before and after, and the reports."""

    number: int
    before: Params
    reports: Sequence[Report]
    after: Params


class CoalitionValue(NamedTuple):
    """What a model is worth on the test set: accuracy in percent, and loss."""

    accuracy: float
    loss: float


@dataclass(frozen=True, eq=False)
class CoalitionBench:
    """The clients of one seed, and FedAvg among any of them, every one of them in every round.

    Random streams are keyed by round and client, so that a client does the same in every
    coalition but for the model it receives.
    """

    strategy: FedAvg
    runner: ClientRunner
    population: Population
    seed: int

    @classmethod
    def build(cls, config: Config, data_dir: Path | None = None) -> CoalitionBench:
        """Return the clients of a configuration, in this process alone."""
        data = build_data(config, data_dir)
        runner = build_runner(config, data, processes=1)
        population = Population(data.samples, None, runner.layout.trainable_size)
        return cls(FedAvg(config.strategy.plan), runner, population, config.seed)

    @property
    def samples(self) -> Ints:
        """How many training samples each client has."""
        return self.population.samples

    def value(self, members: Sequence[int]) -> CoalitionValue:
        """Return what the model is worth that these clients train among themselves."""
        params = self.runner.initial_params
        if members:
            for played in self.rounds(members):
                params = played.after
        scores = self.runner.evaluate(params)
        return CoalitionValue(scores.test_accuracy, scores.test_loss)

    def rounds(
        self, members: Sequence[int], change: ChangedReports | None = None
    ) -> Iterator[PlayedRound]:
        """Train among these clients and yield every round.

        ``change`` returns the reports that reach the server instead of the honest ones.
        """
        strategy = self.strategy
        state = strategy.init(self.runner.initial_params, self.population)
        for number in range(1, strategy.plan.rounds + 1):
            terms = tuple(strategy.terms(client, number) for client in members)
            tasks = [
                strategy.respond(t, Profile(t.client, 1.0, int(self.samples[t.client])))
                for t in terms
            ]
            before = state.params
            played = PlayedRound(number, before, self.runner.train(before, tasks), before)
            reports = played.reports if change is None else change(played)
            state, record = strategy.aggregate(state, Offer(number, terms), reports)
            for client, reason in record.failed.items():
                raise RunError(f"client {client} failed in round {number}: {reason}.")
            yield PlayedRound(number, before, reports, state.params)

    def earnings(
        self,
        measures: Mapping[str, Choice],
        deviation: UpdateDeviation | None = None,
        deviator: int = 0,
    ) -> tuple[dict[str, Floats], dict[str, float]]:
        """Return each client's contributions over all rounds, and each measure's seconds a round.

        All clients take part. One of them may deviate; the others are honest, and the server
        aggregates what it is sent.
        """
        everyone = range(self.population.clients)
        change = None if deviation is None else Deviator(deviation, deviator, self.seed)
        earned = {name: np.zeros(len(everyone)) for name in measures}
        last = {name: np.full(len(everyone), np.nan) for name in measures}
        seconds = dict.fromkeys(measures, 0.0)
        before: Params | None = None
        for played in self.rounds(everyone, change):
            step = None if before is None else played.before - before
            updates, before = replace(self._updates(played), last_step=step), played.before
            for name, choice in measures.items():
                begun = time.perf_counter()
                last[name] = measure_round(choice, replace(updates, previous=last[name]))
                seconds[name] += (time.perf_counter() - begun) / self.strategy.plan.rounds
                earned[name] += last[name]
        return earned, seconds

    def _updates(self, played: PlayedRound) -> RoundUpdates:
        samples = self.samples
        return RoundUpdates(
            clients=np.arange(samples.size),
            models=[r.params for r in played.reports if r.params is not None],
            before=played.before,
            after=played.after,
            trainable_size=self.population.trainable_size,
            weights=samples / samples.sum(),
            previous=np.full(samples.size, np.nan),
            round=played.number,
            validate=self.runner.validate,
        )


@dataclass
class Deviator:
    """Replaces what one client sends; remembers what it needs of the round before."""

    deviation: UpdateDeviation
    client: int
    seed: int
    received: Params | None = None
    move: Floats | None = None

    def __call__(self, played: PlayedRound) -> Sequence[Report]:
        """Return the reports of the round, one of them made up."""
        received = played.before
        honest = [report.params for report in played.reports if report.params is not None]
        own = honest[self.client].astype(np.float64) - received
        now = RoundKnowledge(
            seed=self.seed,
            round=played.number,
            client=self.client,
            received=received,
            last_received=received if self.received is None else self.received,
            honest=honest,
            last_move=own if self.move is None else self.move,
        )
        self.move, self.received = self.deviation(now), received
        sent = (received + self.move).astype(np.float32)
        return [
            replace(report, params=sent) if report.client == self.client else report
            for report in played.reports
        ]
