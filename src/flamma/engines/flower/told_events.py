"""The events of a deployed run, at the server and at its sites.

A process that belongs to no host, as in a simulation, writes none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flamma.engines.flower.messages import OrderContent
from flamma.events import EVENT_LEVELS, journal
from flamma.experiments.callbacks import Callback, RunStart
from flamma.experiments.folder import ABOUT, RunFolder
from flamma.records import RoundRecord
from flamma.simulation.client_side import one_line
from flamma.types import Terms, Update

if TYPE_CHECKING:
    from flamma.engines.flower.roster import Roster
    from flamma.experiments.run import Run

_SERVER_PART, _CLIENT_PART = "server app", "client app"


class RunEvents(Callback):
    """Writes down the beginning of a run, every finished round, and the end."""

    essential = False

    def __init__(self) -> None:
        self.journal = journal(_SERVER_PART)
        self.run = ""

    def on_start(self, start: RunStart) -> None:
        """Tell that a run begins or goes on."""
        about = RunFolder(start.path).read_json(ABOUT)
        self.run = str(about.get("instance") or "")
        done, all_rounds = len(start.history), start.config.rounds
        event = "run resumed" if done else "run began"
        message = f"{start.path}: {all_rounds - done} of {all_rounds} rounds to do"
        self.journal.tell(
            event, message, run=self.run, path=str(start.path), strategy=start.config.strategy.name
        )

    def on_round(self, record: RoundRecord) -> None:
        """Tell of a round: what it took, and who failed."""
        outcome, cost = record.outcome, record.cost
        failed = {str(client): reason for client, reason in outcome.failed.items()}
        message = (
            f"{len(record.selected)} selected, {len(outcome.abstained)} abstained, {len(failed)} "
            f"failed, in {cost.seconds:.1f} s"
        )
        self.journal.tell(
            "round ended",
            message,
            "warning" if failed else "info",
            self.run,
            record.round,
            gamma=record.offer.decay_factor,
            epochs=outcome.epochs_total,
            accuracy=record.metric("accuracy"),
            accuracy_variance=record.metric("accuracy_variance"),
            seconds=cost.seconds,
            seconds_train=cost.seconds_train,
            seconds_evaluate=cost.seconds_evaluate,
            bytes_up=cost.bytes_up,
            bytes_down=cost.bytes_down,
            failed=failed,
        )

    def on_end(self, run: Run) -> None:
        """Tell that a run is over, or was interrupted."""
        last = run.history[-1].round if run.history else 0
        if run.finished:
            self.journal.tell("run finished", f"{run.path}", "info", self.run, last)
        else:
            self.journal.tell("run interrupted", f"{run.path}", "error", self.run, last)


@contextmanager
def telling_failure(path: str) -> Iterator[None]:
    """Tell why the ServerApp of a run ended, if it ends with an error."""
    try:
        yield
    except Exception as error:
        journal(_SERVER_PART).tell("run failed", f"{path}: {one_line(error)}", "error")
        raise


@dataclass(frozen=True)
class Attendance:
    """Who was connected and who was refused when the server looked last."""

    connected: frozenset[str] = frozenset()
    refused: Mapping[str, str] = field(default_factory=dict)

    def updated(self, roster: Roster) -> Attendance:
        """Return who is connected and refused now, and tell what has changed."""
        names = roster.names
        now = frozenset(n for k, n in enumerate(names) if roster.node(k) is not None)
        told = journal(_SERVER_PART)
        for name in sorted(now - self.connected):
            told.tell("site joined", f"{name} takes part", site=name)
        for name in sorted(self.connected - now):
            told.tell("site left", f"{name} is not connected any more", "warning", site=name)
        for name, reason in roster.refused.items():
            if self.refused.get(name) != reason:
                message = f"{name}: {reason}"
                told.tell("site refused", message, "warning", site=name, reason=reason)
        return Attendance(now, dict(roster.refused))


def tell_orders(run: str, terms: Sequence[Terms]) -> None:
    """Tell that a round begins, as its orders are sent."""
    asked = [offer for offer in terms if offer.train]
    if asked:
        number, kind = asked[0].round, "warm-up began" if asked[0].round == 0 else "round began"
        journal(_SERVER_PART).tell(kind, f"{len(asked)} clients are asked", run=run, round=number)


def tell_waiting(sentence: str, number: int, waits: bool, run: str = "") -> None:
    """Tell that a run waits for sites, or goes on, with a sentence on who is there."""
    event, level = ("run waits", EVENT_LEVELS[1]) if waits else ("run goes on", EVENT_LEVELS[0])
    journal(_SERVER_PART).tell(event, sentence, level, run, number)


def tell_order(asked: OrderContent, report: Update | None, seconds: float) -> None:
    """Tell, at a client, what an order came to."""
    order, failure = asked.order, "" if report is None else report.failure
    epochs = 0 if report is None else report.epochs
    what = "evaluated" if report is None else "abstained" if report.abstained else "trained"
    message = failure or (f"trained {epochs} epochs" if epochs else what)
    journal(_CLIENT_PART).tell(
        "order failed" if failure else "order done",
        f"{message} in {seconds:.1f} s",
        "warning" if failure else "info",
        order.run,
        order.round,
        epochs=epochs,
        evaluated=order.evaluate,
        seconds=seconds,
        bytes=sum(part.nbytes for part in asked.vectors),
    )


def tell_refusal(error: Exception) -> None:
    """Tell, at a client, why an order was not carried out."""
    journal(_CLIENT_PART).tell("order refused", one_line(error), "warning")
