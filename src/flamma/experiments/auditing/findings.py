"""What an audit found: the gain of every client by every deviation, and the largest of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

import flamma
from flamma.experiments.auditing.shares import (
    NO_GAIN,
    deviation_of,
    mean_or_zero,
    mean_share,
    percent,
)
from flamma.experiments.presented import PresentedResult
from flamma.experiments.scratch import ScratchFolder
from flamma.strategies import label_of

AUDIT_VERSION = 1


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
    options: Mapping[str, Any]
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

    def as_json(self) -> dict[str, Any]:
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
        spread = _spread_text(list(self.epsilons.values()))
        most = self.most
        if most is None:
            return f"No audited client took part, so nothing is known of {what}."
        if not self.is_paid:
            start = f"Under {label_of(self.strategy)} nobody is paid, so working less is a gain: "
            if self.epsilon <= NO_GAIN:
                return f"{start}but no audited client gains by any of {what}."
            return (
                f"{start}the most that a client saves of the cost of its work by any of {what} is "
                f"{percent(self.epsilon)}, {_by(most)}{spread}."
            )
        under = f"Under {label_of(self.strategy)} "
        if self.epsilon <= NO_GAIN:
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

    def as_json(self) -> dict[str, Any]:
        """Return the case with what follows from its findings."""
        values = list(self.epsilons.values())
        return asdict(self) | {
            "findings": [finding.as_json() for finding in self.findings],
            "epsilon": self.epsilon,
            "epsilon_mean": mean_or_zero(values),
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
        from flamma.experiments.auditing.audit_table import audit_header, audit_line

        return [
            (case.title, audit_header(case), [audit_line(case, name) for name in case.deviations])
            for case in self.cases
        ]

    def _records(self) -> list[dict[str, Any]]:
        return [
            {"dataset": case.dataset, "split": case.split, "strategy": case.strategy}
            | {k: v for k, v in finding.as_json().items() if k not in ("group", "options")}
            for case in self.cases
            for finding in case.findings
        ]

    @property
    def history(self) -> list[dict[str, Any]]:
        """All findings, one for each client, deviation and seed."""
        return self._records()

    def as_json(self) -> dict[str, Any]:
        """Return the audit as ``audit.json`` has it."""
        return {
            "version": AUDIT_VERSION,
            "name": self.name,
            "flamma": self.flamma,
            "cases": [case.as_json() for case in self.cases],
            "failed": dict(self.failed),
        }

    @classmethod
    def from_json(cls, table: Mapping[str, Any]) -> Self:
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


def _spread_text(values: Sequence[float]) -> str:
    return f" (over {len(values)} seeds {mean_share(values)})" if len(values) > 1 else ""


def _own(kind: Any, table: Mapping[str, Any]) -> dict[str, Any]:
    return {f.name: table[f.name] for f in fields(kind)}
