"""Gains as shares of the honest utility, as people read them."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np

import flamma
from flamma.clients.truth import profile_of
from flamma.errors import RunError
from flamma.experiments.config import Config
from flamma.experiments.folder import CLIENTS, POPULATION, RunFolder, signed, verified
from flamma.experiments.loop import read_population
from flamma.experiments.result import PresentedResult, ScratchFolder
from flamma.experiments.run import Run
from flamma.game.model import LARGEST_COST, SMALLEST_COST
from flamma.io import JsonTable, TableView, read_text, write_atomically
from flamma.metrics import LAST_ROUNDS
from flamma.metrics.functions import lowest, mean, variance
from flamma.records import RoundRecord
from flamma.seeding import stream
from flamma.strategies import label_of
from flamma.strategies.flamma import FlammaState
from flamma.types import Floats, Params, Population

_NO_GAIN = 5e-4
"""A relative gain up to which people are told that there is none."""

_LARGE_SHARE = 2.0
"""From here on a share is written as a multiple rather than in percent."""


def percent(share: float) -> str:
    """Return a share as people read it; a large one as a multiple.

    Examples
    --------
    >>> percent(0.0312), percent(0.831), percent(-0.5), percent(0.0), percent(8.31)
    ('3.1%', '83%', '-50%', '0%', '8.3x')
    """
    value = 100 * share
    if abs(value) < 100 * _NO_GAIN:
        return "0%"
    if abs(share) >= _LARGE_SHARE:
        return f"{share:.1f}x" if abs(share) < 100 else f"{share:.0f}x"
    return f"{value:.0f}%" if abs(value) >= 9.95 else f"{value:.1f}%"


def mean_share(shares: Sequence[float]) -> str:
    """Return the mean of shares as people read it, with the spread of several.

    Examples
    --------
    >>> mean_share([0.01, 0.03]), mean_share([8.0, 9.0]), mean_share([0.25])
    ('2.0% ± 1.4%', '8.5x ± 0.7x', '25%')
    """
    middle, spread = _mean_or_zero(shares), deviation_of(shares)
    if len(shares) < 2 or (abs(middle) < _NO_GAIN and spread < _NO_GAIN):
        return percent(middle)
    if abs(middle) >= _LARGE_SHARE:
        return f"{percent(middle)} ± {spread:.1f}x"
    return f"{percent(middle)} ± {100 * spread:.1f}%"


def deviation_of(values: Sequence[float]) -> float:
    """Return the standard deviation of a sample, 0 of a single value."""
    if len(values) < 2:
        return 0.0
    middle = _mean_or_zero(values)
    return math.sqrt(math.fsum((v - middle) ** 2 for v in values) / (len(values) - 1))


def _mean_or_zero(values: Sequence[float]) -> float:
    """Return the mean of values, 0 of none."""
    return math.fsum(values) / len(values) if values else 0.0


# What a run's files say of its clients: utilities at true costs, accuracies, suspicions.

_SIMULATED = "(simulated)"
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
        fines = (record.outcome.fines.items() for record in self.history)
        return math.fsum(fine for own in fines for client, fine in own if client in clients)

    def suspicions(self, clients: Collection[int]) -> list[tuple[int, str]]:
        """Return the rounds in which the server noticed something about these clients, and what."""
        found = []
        for record in self.history:
            outcome = record.outcome
            refused = {c: why for c, why in outcome.failed.items() if why.startswith("refused")}
            fined = {c: "fined" for c, fine in outcome.fines.items() if fine > 0}
            told = fined | refused | dict(outcome.flags)
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
    if record.outcome.failed.get(record.selected[place], "").endswith(_SIMULATED):
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


# The cost report that would have paid a client most in the games of an honest run.

_COARSE_DECADES = 3
"""How many powers of ten above and below the truth reports are tried."""

COARSE_STEPS, FINE_STEPS = 24, 12
"""Steps over all of these decades, and between the neighbours of the best of them."""

_BELOW_ENTRY = 1 - 1e-6
"""A report of its contribution times this: a client that only just works at a decay factor of 1."""


def best_cost_factor(config: Config, honest: Evidence, client: int) -> float:
    """Return what a client best multiplies its cost with, by the recorded games of an honest run.

    Every round in which the client was selected is offered anew for each candidate, with the
    strategy's own rules, all contributions and the other clients' reports as they were; the client
    answers as is best at its true cost. The truth, 1, is returned where no other report does
    better, as for a strategy that does not use reports.

    Candidates are a grid, the reports at which the client's own participation bound is at a decay
    factor of 1, and a finer grid around the best of these. The others' play does not change in
    what is tried here, while in a run it does, so that another report may do better there.
    """
    costs = honest.population.costs
    assert costs is not None
    rounds = [
        r for r in honest.history if client in r.selected and r.offer.contributions is not None
    ]
    if not rounds:
        return 1.0
    contributions = _contributions(honest.history, honest.population.clients)
    true = float(costs[client])

    def utility(factor: float) -> float:
        reported = float(np.clip(true * factor, SMALLEST_COST, LARGEST_COST))
        return math.fsum(_utilities(config, honest, client, reported, rounds, contributions))

    coarse = np.logspace(-_COARSE_DECADES, _COARSE_DECADES, COARSE_STEPS + 1).tolist()
    entry = {_own_contribution(r, client) * _BELOW_ENTRY / true for r in rounds}
    bounds = sorted(factor for factor in entry if factor > 0)
    candidates = {1.0: utility(1.0)}
    candidates |= {factor: utility(factor) for factor in (*coarse, *bounds)}
    leader = _best(candidates)
    step = 10 ** (2 * _COARSE_DECADES / COARSE_STEPS)
    fine = leader * np.geomspace(1 / step, step, FINE_STEPS + 1)
    candidates |= {factor: utility(factor) for factor in fine.tolist()}
    return _best(candidates)


def _best(candidates: dict[float, float]) -> float:
    """Return the factor of the largest utility; of equal ones that nearest to the truth."""
    return max(candidates, key=lambda factor: (candidates[factor], -abs(math.log(factor))))


def _utilities(
    config: Config,
    honest: Evidence,
    client: int,
    reported: float,
    rounds: Sequence[RoundRecord],
    contributions: Floats,
) -> Iterator[float]:
    """Yield what the client's best play of each round is worth to it if it reports a cost."""
    strategy, population = config.strategy, honest.population
    assert population.costs is not None
    told = population.costs.copy()
    told[client] = reported
    nothing: Params = np.zeros(1, dtype=np.float32)
    begun: Any = strategy.init(nothing, replace(population, costs=told))
    if not isinstance(begun, FlammaState):
        return
    profile = profile_of(population, client)
    for record in rounds:
        known = contributions[record.round - 1]
        state = replace(
            begun, round=record.round - 1, contributions=known, effective=np.ones(known.size)
        )
        rng = stream(config.seed, "select", record.round)
        offer = strategy.offer(state, np.array(record.selected, dtype=np.int64), rng)
        [terms] = [terms for terms in offer.terms if terms.client == client]
        epochs = strategy.respond(terms, profile).epochs
        yield terms.decay_factor * terms.contribution * epochs - profile.cost * epochs**2


def _own_contribution(record: RoundRecord, client: int) -> float:
    assert record.offer.contributions is not None
    return record.offer.contributions[record.selected.index(client)]


def _contributions(history: Sequence[RoundRecord], clients: int) -> Floats:
    """Return every client's contribution in every round, as of when it was last selected.

    Before its first selection it has the one of that, and 1 if it was never selected.
    """
    table = np.full((max(r.round for r in history), clients), np.nan)
    for record in history:
        if record.offer.contributions is not None:
            table[record.round - 1, list(record.selected)] = record.offer.contributions
    for order in (table, table[::-1]):
        for before, own in pairwise(order):
            own[np.isnan(own)] = before[np.isnan(own)]
    table[np.isnan(table)] = 1.0
    return table


# What an audit found: the gain of every client by every deviation, and the largest of all.

_AUDIT_VERSION = 1


@dataclass(frozen=True)
class Finding:
    """What one client gained by one deviation with one seed.

    Utilities are at true costs and over all rounds; accuracies are in percent, over the last ten
    evaluated rounds. What ends in ``_change`` is the run in which the client deviates less the
    honest one. Where several clients deviate together, utilities are theirs together.

    Attributes
    ----------
    subject : str
        What the client is called: its number, or its role among the clients of this seed.
    deviation : str
        What it did.
    seed, client : int
        The seed and the client's number.
    group : tuple of int
        All clients that deviated.
    honest_utility, utility : float
        In the honest run, and in the one with the deviation.
    accuracy_change : float or None
        Of the clients that deviate; None if they were not scored.
    others_accuracy_change, others_variance_change, others_worst_change : float or None
        Of the mean, the variance and the lowest accuracy of all other clients.
    selections, honest_selections : int
        How often the clients that deviate were selected.
    flagged : int
        In how many rounds the server noticed something: a flag, a fine or a refused answer.
    flag : str
        What it noticed first.
    fines : float
        What they paid in all.
    options : mapping
        The behaviour's options in this run.
    folder : str
        The run directory, under the audit's.
    """

    subject: str
    deviation: str
    seed: int
    client: int
    group: tuple[int, ...]
    honest_utility: float
    utility: float
    accuracy_change: float | None
    others_accuracy_change: float | None
    others_variance_change: float | None
    others_worst_change: float | None
    selections: int
    honest_selections: int
    flagged: int
    flag: str
    fines: float
    options: TableView
    folder: str

    @property
    def gain(self) -> float:
        """What deviating brought, in units of utility."""
        return self.utility - self.honest_utility

    @property
    def relative_gain(self) -> float | None:
        """The gain as a share of the size of the honest utility; None if that is 0.

        A client that gains nothing has 0 in any case.
        """
        if self.gain == 0:
            return 0.0
        return self.gain / abs(self.honest_utility) if self.honest_utility else None

    def as_json(self) -> JsonTable:
        """Return the finding with its gains."""
        return asdict(self) | {"gain": self.gain, "relative_gain": self.relative_gain}


@dataclass(frozen=True)
class Baseline:
    """The honest run of a seed: where it is, its final weights, and who was flagged in it."""

    seed: int
    folder: str
    params_sha256: str
    flagged: tuple[int, ...] = ()


@dataclass(frozen=True)
class AuditedCase:
    """All findings on one strategy, dataset and split.

    ``is_paid`` is whether clients are paid; without a game the utility is minus the cost of work.
    """

    dataset: str
    split: str
    strategy: str
    rounds: int
    clients: int
    is_paid: bool
    baselines: tuple[Baseline, ...]
    findings: tuple[Finding, ...]

    @property
    def title(self) -> str:
        """What was audited, and how gains are told."""
        seeds = len(self.baselines)
        return (
            f"{label_of(self.strategy)} on {self.dataset} ({self.split}), {self.clients} clients, "
            f"{self.rounds} rounds, {seeds} seed{'s' * (seeds != 1)}: gain in utility, as a share "
            f"of the honest one"
        )

    @property
    def subjects(self) -> list[str]:
        """The audited clients, in order."""
        return list(dict.fromkeys(finding.subject for finding in self.findings))

    @property
    def deviations(self) -> list[str]:
        """What they did, in order."""
        return list(dict.fromkeys(finding.deviation for finding in self.findings))

    def of(self, subject: str, deviation: str) -> list[Finding]:
        """Return the findings of one client and deviation, one for each seed."""
        return [f for f in self.findings if (f.subject, f.deviation) == (subject, deviation)]

    @property
    def most(self) -> Finding | None:
        """The finding with the largest relative gain; None if no relative gain is known."""
        known = [f for f in self.findings if f.relative_gain is not None]
        return max(known, key=_relative, default=None)

    @property
    def epsilons(self) -> dict[int, float]:
        """The largest relative gain of each seed, at least that of honesty, which is 0."""
        found: dict[int, float] = {}
        for finding in self.findings:
            gain = finding.relative_gain
            found[finding.seed] = max(found.get(finding.seed, 0.0), gain or 0.0)
        return found

    @property
    def epsilon(self) -> float:
        """The largest relative gain of any client by any deviation with any seed, at least 0."""
        return max(self.epsilons.values(), default=0.0)

    @property
    def sentence(self) -> str:
        """What was found, for people to repeat; a second one if a client had nothing to lose."""
        unpaid = [f for f in self.findings if f.relative_gain is None and f.gain > 0]
        if not unpaid:
            return self._main_sentence
        most = max(unpaid, key=lambda finding: finding.gain)
        more = (
            f"A client whose honest utility is 0 gains up to {most.gain:.3g} by {most.deviation}."
        )
        return f"{self._main_sentence} {more}"

    @property
    def _main_sentence(self) -> str:
        what = f"{len(self.deviations)} deviation{'s' * (len(self.deviations) != 1)}"
        values = list(self.epsilons.values())
        spread = f" (over {len(values)} seeds {mean_share(values)})" if len(values) > 1 else ""
        most = self.most
        if most is None:
            return f"No audited client took part, so nothing is known of {what}."
        if not self.is_paid:
            start = f"Under {label_of(self.strategy)} nobody is paid, so working less is a gain: "
            if self.epsilon <= _NO_GAIN:
                return f"{start}but no audited client gains by any of {what}."
            return (
                f"{start}the most that a client saves of the cost of its work by any of {what} is "
                f"{percent(self.epsilon)}, {_by(most)}{spread}."
            )
        under = f"Under {label_of(self.strategy)} "
        if self.epsilon <= _NO_GAIN:
            return f"{under}no audited client gains by any of {what}."
        if self.epsilon > 1:
            return (
                f"{under}a client gains up to {self.epsilon:.3g} times its honest utility by one "
                f"of {what}: the most is {_by(most)}{spread}."
            )
        return (
            f"{under}no audited client gains more than {percent(self.epsilon)} of its honest "
            f"utility by any of {what}; the most is {_by(most)}{spread}."
        )

    def as_json(self) -> JsonTable:
        """Return the case with what follows from its findings."""
        values = list(self.epsilons.values())
        return asdict(self) | {
            "findings": [finding.as_json() for finding in self.findings],
            "epsilon": self.epsilon,
            "epsilon_mean": _mean_or_zero(values),
            "epsilon_std": deviation_of(values),
            "epsilons": {str(seed): value for seed, value in self.epsilons.items()},
            "sentence": self.sentence,
        }


@dataclass(frozen=True, repr=False)
class Audit(PresentedResult):
    """A whole audit: a case for each strategy, dataset and split; and the runs that failed.

    ``path`` is its directory where that is known, which ``scratch`` keeps if it is to be nowhere
    else.
    """

    name: str
    cases: tuple[AuditedCase, ...]
    failed: Mapping[str, str] = field(default_factory=dict)
    flamma: str = flamma.__version__
    path: Path | None = field(default=None, compare=False)
    scratch: ScratchFolder | None = field(default=None, compare=False)

    def _headline(self) -> str:
        return " ".join(case.sentence for case in self.cases)

    def _tables(self) -> list[tuple[str, list[str], list[list[str]]]]:

        return [
            (case.title, audit_header(case), [audit_line(case, name) for name in case.deviations])
            for case in self.cases
        ]

    def _records(self) -> list[JsonTable]:
        return [
            {"dataset": case.dataset, "split": case.split, "strategy": case.strategy}
            | {k: v for k, v in finding.as_json().items() if k not in ("group", "options")}
            for case in self.cases
            for finding in case.findings
        ]

    @property
    def history(self) -> list[JsonTable]:
        """All findings, one for each client, deviation and seed."""
        return self._records()

    def as_json(self) -> JsonTable:
        """Return the audit as ``audit.json`` has it."""
        return {
            "version": _AUDIT_VERSION,
            "name": self.name,
            "flamma": self.flamma,
            "cases": [case.as_json() for case in self.cases],
            "failed": dict(self.failed),
        }

    @classmethod
    def from_json(cls, table: TableView) -> Self:
        """Return the audit that a table describes."""
        cases = tuple(
            AuditedCase(
                **_own(AuditedCase, case)
                | {
                    "baselines": tuple(
                        Baseline(**_own(Baseline, b) | {"flagged": tuple(b["flagged"])})
                        for b in case["baselines"]
                    ),
                    "findings": tuple(
                        Finding(**_own(Finding, f) | {"group": tuple(f["group"])})
                        for f in case["findings"]
                    ),
                }
            )
            for case in table["cases"]
        )
        return cls(str(table["name"]), cases, dict(table["failed"]), str(table["flamma"]))


def _relative(finding: Finding) -> float:
    return finding.relative_gain or 0.0


def _by(finding: Finding) -> str:
    name = finding.subject
    who = f"client {name}'s" if name.isdigit() else f"the {name} client's"
    return f"{who} by {finding.deviation}"


def _own(kind: Any, table: TableView) -> JsonTable:
    return {f.name: table[f.name] for f in fields(kind)}


# The table of an audited case: what each client gains by each deviation, and what else changes.


def audit_header(case: AuditedCase) -> list[str]:
    """Return the titles of the columns: the audited clients, then what changes for whom."""
    changes = ["own acc.", "others' acc.", "variance", "worst", "flagged"]
    return ["deviation", *case.subjects, *changes]


def audit_line(case: AuditedCase, deviation: str) -> list[str]:
    """Return a deviation's line: the gain of each client, and the changes in the mean over all."""
    found = [f for f in case.findings if f.deviation == deviation]
    gains = [_gain(case.of(subject, deviation)) for subject in case.subjects]
    changes = [
        _mean([getattr(f, name) for f in found])
        for name in (
            "accuracy_change",
            "others_accuracy_change",
            "others_variance_change",
            "others_worst_change",
        )
    ]
    flagged = sum(f.flagged > 0 for f in found)
    return [deviation, *gains, *changes, f"{flagged} of {len(found)}" if flagged else "-"]


def _gain(findings: list[Finding]) -> str:
    """Return the mean relative gain over seeds, in brackets if it is only known in utility."""
    known = [f.relative_gain for f in findings if f.relative_gain is not None]
    if known:
        return percent(sum(known) / len(known))
    return f"({sum(f.gain for f in findings) / len(findings):+.3g})" if findings else "-"


def _mean(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    mean = sum(known) / len(known)
    return "0" if abs(mean) < 0.05 else f"{mean:+.1f}"


# The files of an audit: what was found, as JSON and as a table.

AUDIT_FILE, FINDINGS_FILE = "audit.json", "audit.csv"


def write_audit(audit: Audit, folder: Path) -> None:
    """Write audit.json and audit.csv, each whole."""
    write_atomically(folder / FINDINGS_FILE, _as_csv(audit).encode())
    write_atomically(folder / AUDIT_FILE, signed(audit.as_json()).encode())


def read_audit(folder: Path) -> Audit:
    """Read an audit's directory.

    Raises
    ------
    RunError
        If there is no audit, or it is damaged.
    """
    file = folder / AUDIT_FILE
    if not file.exists():
        raise RunError(f"{folder} holds no finished audit: there is no {AUDIT_FILE} in it.")
    table = verified(read_text(file, regular=True))
    if table is not None and table.get("version") == _AUDIT_VERSION:
        try:
            return Audit.from_json(table)
        except (KeyError, TypeError, AttributeError):
            pass
    raise RunError(f"{file} is damaged or of another version: the same audit writes it again.")


def _as_csv(audit: Audit) -> str:
    buffer = io.StringIO()
    left_out = {"group", "options"}
    columns = [f.name for f in fields(Finding) if f.name not in left_out]
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["dataset", "split", "strategy", "gain", "relative_gain", *columns])
    for case in audit.cases:
        for finding in case.findings:
            table = finding.as_json()
            shown = [table[name] for name in ("gain", "relative_gain", *columns)]
            cells = ["" if value is None else value for value in shown]
            writer.writerow([case.dataset, case.split, case.strategy, *cells])
    return buffer.getvalue()
