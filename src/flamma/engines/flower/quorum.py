"""A run goes on only while enough of its sites are connected.

An outage of the network is no reason to do rounds that nobody answers. Below the quorum the run
waits. A round that lost so many sites that fewer than the quorum were left is not counted: its
model is not stepped, and who was lost is asked once more, with the same order, when enough are
back. What others had answered is kept. A client's training depends on the seed, the round and the
client alone, so a round that was interrupted gives the same weights as one that was not.

A round that no site has answered is asked once more in any case.

A site that is connected and refuses an order, or whose process dies, has answered: asking it again
would give the same refusal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from flwr.app import Message

from flamma.engines.flower.payload import NODE_IS_GONE, NODE_UNAVAILABLE
from flamma.engines.flower.roster import NODE_CHECK_SECONDS, Roster
from flamma.engines.flower.told_events import tell_waiting
from flamma.errors import RunError
from flamma.experiments.folder import ABOUT, RunFolder, SiteStates

NOT_CONNECTED, _NEVER_CONNECTED = "not connected", "it has not connected yet"
_MAX_RECORDED_WAITS = 100
"""The waits of a run that its record tells; the last ones."""

_Wait = dict[str, float | Mapping[str, str]]
"""The round, the seconds and the missing sites of a wait."""

AnswerOrReason = Message | str | None
"""What a client answered: text is a reason why it was not asked, None no answer in time."""


class Quorum:
    """How many sites a run needs, and the waiting for them.

    Parameters
    ----------
    roster : Roster
        Who is connected.
    needed : int
        How many sites must be; 0 never waits.
    longest_wait : float
        Seconds after which waiting is an error; 0 for no end.
    folder : Path, optional
        The run directory, in which it is told who is there and what is waited for.

    Attributes
    ----------
    waits : list of dict
        The round, the seconds and the missing sites of every wait.
    """

    def __init__(
        self,
        roster: Roster,
        needed: int = 0,
        longest_wait: float = 0.0,
        folder: Path | None = None,
    ) -> None:
        self.roster = roster
        self.needed = needed
        self.longest_wait = longest_wait
        self.folder = folder
        self.waits: list[_Wait] = []
        self.on_wait_end: Callable[[], None] = lambda: None
        self._told: SiteStates | None = None

    def gather(self, extra_seconds: float) -> None:
        """Wait for the quorum before the first round, and a little for the rest.

        It does not wait for sites that are connected and refuse.
        """
        self.wait(0)
        end = time.monotonic() + extra_seconds
        while self.missing().keys() - self.roster.refusing().keys() and time.monotonic() < end:
            time.sleep(NODE_CHECK_SECONDS)
            self.roster.refresh()
        self._tell(0)

    def wait(self, number: int) -> None:
        """See who is connected, and wait until enough sites are.

        Raises
        ------
        RunError
            If too many of the connected sites refuse to take part, or it takes too long.
        """
        begun, since = time.monotonic(), time.time()
        self.roster.refresh()
        waited = 0.0
        while sum(self.roster.node(c) is not None for c in self._everybody()) < self.needed:
            self._check_refusing()
            self._tell(number, since)
            waited = time.monotonic() - begun
            if self.longest_wait and waited > self.longest_wait:
                raise RunError(
                    f"not enough sites in {self.longest_wait:g} s (engine.longest_wait): "
                    f"{self._states(number, since).sentence()}."
                )
            time.sleep(NODE_CHECK_SECONDS)
            self.roster.refresh()
        if waited and self._told is not None:
            missing = self._told.missing
            wait: _Wait = {"round": number, "seconds": round(waited, 1), "missing": missing}
            self.waits = [*self.waits, wait][-_MAX_RECORDED_WAITS:]
            self.on_wait_end()
        self._tell(number)

    def lost(self, answers: Mapping[int, AnswerOrReason]) -> list[int]:
        """Return the clients that an outage has kept from answering, if too few sites are left.

        Parameters
        ----------
        answers : mapping
            The answers of a round so far, by client.
        """
        if not self.needed or not any(_is_outage(answer) for answer in answers.values()):
            return []
        self.roster.refresh()
        lost = [
            client
            for client, answer in answers.items()
            if _is_outage(answer) and (_is_certain(answer) or self.roster.node(client) is None)
        ]
        away = set(lost) | {c for c in self._everybody() if self.roster.node(c) is None}
        return lost if len(self.roster.names) - len(away) < self.needed else []

    def silent(self, answers: Mapping[int, AnswerOrReason]) -> bool:
        """Return whether nobody has answered, though enough sites are there; all are asked again.

        Answers can be lost with a connection though their sites are back by the end of the round.
        """
        return self.needed > 0 and all(_is_outage(answer) for answer in answers.values())

    def missing(self) -> dict[str, str]:
        """Return why sites are not there, by name."""
        refusing, roster = self.roster.refusing(), self.roster
        return {
            name: refusing.get(name, NOT_CONNECTED if k in roster.profiles else _NEVER_CONNECTED)
            for k, name in enumerate(roster.names)
            if roster.node(k) is None
        }

    def _everybody(self) -> Iterable[int]:
        return range(len(self.roster.names))

    def _check_refusing(self) -> None:
        refusing = self.roster.refusing()
        if len(self.roster.names) - len(refusing) < self.needed:
            reasons = "; ".join(f"{name}: {why}" for name, why in list(refusing.items())[:5])
            raise RunError(
                f"{len(refusing)} of {len(self.roster.names)} sites cannot take part, and "
                f"{self.needed} are needed (engine.min_sites): {reasons}."
            )

    def _states(self, number: int, since: float = 0.0) -> SiteStates:
        return SiteStates(number, len(self.roster.names), self.needed, self.missing(), since)

    def _tell(self, number: int, since: float = 0.0) -> None:
        """Tell who is there, if that is news."""
        if not self.needed or self.folder is None:
            return
        states, before = self._states(number, since), self._told
        if before is None or not states.tells_the_same_as(before):
            if states.missing or before is not None:
                print(states.sentence(), flush=True)
                run = str(RunFolder(self.folder).read_json(ABOUT).get("instance") or "")
                tell_waiting(states.sentence(), number, bool(states.waiting_since), run)
            states.write(self.folder)
        self._told = states


def _is_outage(answer: AnswerOrReason) -> bool:
    """Return whether nobody was there to answer, as far as the answer itself tells."""
    if answer is None or isinstance(answer, str):
        return True
    return answer.has_error() and answer.error.code in NODE_UNAVAILABLE


def _is_certain(answer: AnswerOrReason) -> bool:
    """Whether its node was away; a message that expired may have been one to a busy node."""
    if isinstance(answer, Message):
        return answer.error.code == NODE_IS_GONE
    return answer is not None
