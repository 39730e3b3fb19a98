"""What a run's files say of its clients: utilities at true costs, accuracies, suspicions."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from flamma.errors import RunError
from flamma.experiments.folder import CLIENTS, POPULATION, RunFolder
from flamma.experiments.run import Run
from flamma.experiments.world import read_population
from flamma.metrics.functions import lowest, mean, variance
from flamma.metrics.kinds import LAST_ROUNDS
from flamma.records import RoundRecord
from flamma.types import Floats, Population

SIMULATED = "(simulated)"
"""How the reason of a simulated fault ends."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """The files of a finished run, as an audit needs them.

    Attributes
    ----------
    path : Path
        The run directory.
    history : sequence of RoundRecord
        All rounds.
    population : Population
        The true one.
    accuracies : sequence of ndarray
        Of the last evaluated rounds, each client's accuracy in percent; NaN if it was not scored.
    params_sha256 : str
        Of the final weights.
    trainer : str
        What the clients trained with.
    """

    path: Path
    history: Sequence[RoundRecord]
    population: Population
    accuracies: Sequence[Floats]
    params_sha256: str
    trainer: str

    @cached_property
    def is_paid(self) -> bool:
        """Whether clients are paid."""
        return any(record.is_paid for record in self.history)

    def utility(self, clients: Collection[int]) -> float:
        """Return what these clients earn less what their work costs them, over all rounds."""
        costs = self.population.costs
        assert costs is not None
        return math.fsum(
            record.payment(k) - float(costs[client]) * _effort(record, k)
            for record in self.history
            for k, client in enumerate(record.selected)
            if client in clients
        )

    def selections(self, clients: Collection[int]) -> int:
        """Return how often these clients were selected."""
        return sum(client in clients for record in self.history for client in record.selected)

    def accuracy(self, clients: Collection[int]) -> float | None:
        """Return the mean accuracy of these clients over the last evaluated rounds."""
        return _over_rounds([mean(own[sorted(clients)]) for own in self.accuracies])

    def others(self, clients: Collection[int]) -> dict[str, float | None]:
        """Return mean, variance and lowest accuracy of all other clients, over the same rounds."""
        rest = [np.delete(own, sorted(clients)) for own in self.accuracies]
        return {
            name: _over_rounds([of(own) for own in rest])
            for name, of in (("accuracy", mean), ("variance", variance), ("worst", lowest))
        }

    def fines(self, clients: Collection[int]) -> float:
        """Return what these clients had to pay in all."""
        fines = (record.fines.items() for record in self.history)
        return math.fsum(fine for own in fines for client, fine in own if client in clients)

    def suspicions(self, clients: Collection[int]) -> list[tuple[int, str]]:
        """Return the rounds in which the server noticed something about these clients, and what."""
        found = []
        for record in self.history:
            refused = {c: why for c, why in record.failed.items() if why.startswith("refused")}
            fined = {c: "fined" for c, fine in record.fines.items() if fine > 0}
            told = fined | refused | dict(record.flags)
            why = next((told[client] for client in sorted(told) if client in clients), None)
            if why is not None:
                found.append((record.round, why))
        return found


def read_evidence(path: Path) -> Evidence:
    """Return what an audit needs of a run directory.

    Raises
    ------
    RunError
        If the run is not finished, or one of its files is missing or damaged.
    """
    run = Run.load(path)
    if not run.finished or run.params_sha256 is None:
        raise RunError(f"{path} is not finished, so it cannot be audited: flamma resume {path}.")
    if run.problems:
        raise RunError(f"{path} is damaged, so it cannot be audited: {run.problems[0]}.")
    folder = RunFolder(path)
    known = read_population(folder)
    if known is None or np.isnan(known[2]).any():
        raise RunError(f"{path / POPULATION} does not tell every client's cost, which audits need.")
    samples, held, costs = known
    return Evidence(
        path,
        run.history,
        Population(samples, costs, 1, held),
        _accuracies(folder, costs.size),
        run.params_sha256,
        str(run.about.get("trainer", "")),
    )


def _effort(record: RoundRecord, place: int) -> float:
    """Return a client's effort; a simulated fault costs honest clients and others the same: 0."""
    if record.failed.get(record.selected[place], "").endswith(SIMULATED):
        return 0.0
    return record.effort(place)


def _accuracies(folder: RunFolder, clients: int) -> list[Floats]:
    rounds: dict[str, Floats] = {}
    try:
        for line in folder.text(CLIENTS).splitlines()[1:]:
            number, client, accuracy, *_ = line.split(",")
            own = rounds.setdefault(number, np.full(clients, np.nan))
            own[int(client)] = float(accuracy)
    except (ValueError, IndexError) as error:
        raise RunError(f"{folder.path / CLIENTS} is damaged, so it cannot be audited.") from error
    return list(rounds.values())[-LAST_ROUNDS:]


def _over_rounds(values: Sequence[float]) -> float | None:
    known = [value for value in values if not math.isnan(value)]
    return math.fsum(known) / len(known) if known else None
