"""Which sites a run has and what it waits for: written where its rounds happen, shown elsewhere."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from flamma.errors import InputFileError
from flamma.files import read_text, write_atomically

SITES = "sites.json"
"""The file of a run directory that tells which sites are there at the moment."""

MOST_STATES_BYTES = 2**20
MOST_TOLD_SITES = 5
"""Sites that a sentence names; of more it tells how many there are."""


@dataclass(frozen=True)
class SiteStates:
    """The sites of a run at one time.

    Attributes
    ----------
    round : int
        The round that is carried out or waited for; 0 before the first.
    sites, needed : int
        How many sites the run has, and how many must be connected for it to go on.
    missing : mapping
        Why sites are not there, by name.
    waiting_since : float
        Since when the run waits for sites, in seconds of the time of day; 0 if it does not.
    """

    round: int
    sites: int
    needed: int
    missing: Mapping[str, str] = field(default_factory=dict)
    waiting_since: float = 0.0

    @classmethod
    def read(cls, folder: Path) -> SiteStates | None:
        """Return what a run directory tells; None if it tells nothing, or it cannot be read."""
        try:
            return cls.parse(read_text(folder / SITES, MOST_STATES_BYTES, regular=True))
        except InputFileError:
            return None

    @classmethod
    def parse(cls, text: str) -> SiteStates | None:
        """Return what the text of such a file tells; None if it cannot be read."""
        try:
            table: Any = json.loads(text)
            missing = {str(name): str(why) for name, why in dict(table["missing"]).items()}
            number, sites, needed = (int(table[key]) for key in ("round", "sites", "needed"))
            return cls(number, sites, needed, missing, float(table["waiting_since"]))
        except (ValueError, KeyError, TypeError):
            return None

    def write(self, folder: Path) -> None:
        """Write it into a run directory."""
        write_atomically(folder / SITES, json.dumps(asdict(self), indent=1).encode(), durable=False)

    def tells_the_same_as(self, other: SiteStates) -> bool:
        """Return whether nothing has changed but the round."""
        own = (self.missing, bool(self.waiting_since))
        return own == (other.missing, bool(other.waiting_since))

    def sentence(self, reasons: Mapping[str, str] | None = None) -> str:
        """Return it as one sentence; ``reasons`` is what else is known of sites, by name.

        Examples
        --------
        >>> print(SiteStates(4, 3, 2, {"a": "not connected", "b": "refused"}, 1e9).sentence())
        round 4 waits: 1 of 3 sites is connected, 2 are needed; a: not connected; b: refused
        >>> print(SiteStates(4, 3, 2, {"a": "not connected"}).sentence({"a": "its clock is wrong"}))
        round 4 goes on without a: its clock is wrong
        >>> print(SiteStates(5, 3, 2).sentence())
        round 5: all 3 sites are connected
        """
        number = f"round {self.round}" if self.round else "the run"
        known = {**self.missing, **{k: v for k, v in (reasons or {}).items() if k in self.missing}}
        parts = [f"{name}: {why}" for name, why in list(known.items())[:MOST_TOLD_SITES]]
        if len(known) > len(parts):
            parts.append(f"{len(known) - len(parts)} more")
        told = "; ".join(parts)
        if self.waiting_since:
            here = self.sites - len(self.missing)
            verb = "is" if here == 1 else "are"
            needs = f"{self.needed} {'is' if self.needed == 1 else 'are'} needed"
            return f"{number} waits: {here} of {self.sites} sites {verb} connected, {needs}; {told}"
        if told:
            return f"{number} goes on without {told}"
        return f"{number}: all {self.sites} sites are connected"
