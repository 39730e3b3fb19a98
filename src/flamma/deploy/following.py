"""Following a deployed run to its end: what ends by itself is made to go on.

The rounds happen in a ServerApp of the federation. If that dies, the run is submitted again and
goes on from its last finished round. What the ServerApp tells of its sites is passed on.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from flamma.deploy.control import Control, FlowerRun
from flamma.deploy.denials import site_reasons
from flamma.deploy.hosts import ServerHost
from flamma.deploy.runs import flwr, submit, unfinished_run
from flamma.deploy.server_app_process import ServerAppProcess
from flamma.errors import DeployError, FlammaError, RunError
from flamma.experiments.callbacks import Callback, OnRound
from flamma.experiments.config import Config
from flamma.experiments.engine import GIVEN_UP
from flamma.experiments.folder import ABOUT, Follower, RunFolder, SiteStates
from flamma.io import write_atomically

_SERVER_LOG = "server.log"
"""What the ServerApp of a run that failed has logged."""
_ROUND_POLL_SECONDS = 0.2
"""Seconds between two checks for finished rounds."""
_STATUS_POLL_SECONDS = 1.0
"""Seconds between two questions to the server how a run is."""
_SILENCE_SECONDS = 10.0
"""Seconds after which it is told that the server does not answer; it may be restarting."""
_REMINDER_SECONDS = 60.0
"""Seconds after which it is told again what a run waits for."""
_FRUITLESS_ATTEMPTS = 3
"""How often a run is submitted again without one more finished round."""
_SUBMIT_RETRY_SECONDS = 2.0
"""Seconds before a run that could not be submitted again is tried once more."""

_Notice = Callable[[str], None]
"""Called with a sentence about what a run waits for, or does by itself."""


@dataclass(eq=False)
class Followed:
    """A run that is followed to its end.

    Parameters
    ----------
    server : ServerHost
        The server of the federation.
    folder : RunFolder
        The run directory.
    config : Config
        The configuration of the run.
    on_round : callable
        Called with every finished round.
    notice : callable
        Called with a sentence about what it waits for.
    longest_wait : float
        Seconds that the server may be unreachable; 0 for no end.
    """

    server: ServerHost
    folder: RunFolder
    config: Config
    on_round: OnRound
    notice: _Notice = lambda text: None
    longest_wait: float = 0.0
    _states: SiteStates | None = field(default=None, init=False)
    _reminded: float = field(default=0.0, init=False)

    def to_its_end(self, begins: bool = False, callbacks: Sequence[Callback] = ()) -> None:
        """Submit the run if Flower does not carry it out, as often as its ServerApp dies.

        An interrupt, or an error of ``on_round``, asks Flower to stop the run.

        Raises
        ------
        FlammaError
            If it cannot be submitted, its ServerApp gave up, or died too often without progress.
        """
        self._states = SiteStates.read(self.folder.path)
        follower, fruitless = Follower(self.folder.path), 0
        run_id = unfinished_run(self.server, self.folder)
        if run_id is None:
            run_id = submit(self.server, self.folder, self.config, begins, callbacks)
        while True:
            before = self._last_round()
            found = self._follow(run_id, follower)
            if found.completed and self.folder.read_json(ABOUT).get("params_sha256"):
                return
            last = self._last_round()
            fruitless = 0 if last > before else fruitless + 1
            if not _is_accident(found) or fruitless > _FRUITLESS_ATTEMPTS:
                raise RunError(self._failure(run_id, found))
            self.notice(f"{_why(found)}; the run goes on after round {last} by itself")
            run_id = self._submitted_again(callbacks)

    def _follow(self, run_id: int, follower: Follower) -> FlowerRun:
        """Report every finished round until Flower has finished the run, and return its state."""
        process = ServerAppProcess(self.server, self.folder.path)
        try:
            with Control(self.server) as control:
                found = self._until_finished(control, run_id, follower, process)
        except DeployError:
            raise
        except BaseException:
            with contextlib.suppress(DeployError), Control(self.server) as control:
                control.stop(run_id)
            raise
        process.end()  # one that Flower has given up may still be there, and keep the directory
        for record in follower.new():
            self.on_round(record)
        return found

    def _until_finished(
        self, control: Control, run_id: int, follower: Follower, process: ServerAppProcess
    ) -> FlowerRun:
        statuses = self._statuses(control, run_id)
        while True:
            found = next(statuses)
            for record in follower.new():
                self.on_round(record)
            if found is None:
                continue
            self._tell_states()
            if not found.finished and process.has_died():
                with contextlib.suppress(DeployError):  # the server is dying, too: see later
                    found = control.run(run_id)
                    if not found.finished:  # Flower itself would notice after a minute
                        control.stop(run_id)
                        found = FlowerRun(run_id, "finished", "failed", "its ServerApp died")
            if found.finished:
                return found

    def _statuses(self, control: Control, run_id: int) -> Iterator[FlowerRun | None]:
        """Yield the state of a run every ``_STATUS_POLL_SECONDS``, and None in between."""
        asked = answered = time.monotonic()
        silence = _Reminder(_SILENCE_SECONDS)
        while True:
            yield None
            time.sleep(_ROUND_POLL_SECONDS)
            now = time.monotonic()
            if now - asked < _STATUS_POLL_SECONDS:
                continue
            asked = now
            try:
                yield control.run(run_id)
                answered = time.monotonic()
                silence = _Reminder(_SILENCE_SECONDS)
            except DeployError as error:
                if self.longest_wait and now - answered > self.longest_wait:
                    raise
                if silence.is_due(now - answered):
                    self.notice(f"the run waits, since {error}")

    def _tell_states(self) -> None:
        """Pass on what the ServerApp tells of its sites, when it is news and now and then."""
        states, before = SiteStates.read(self.folder.path), self._states
        if states is None:
            return
        self._states, now = states, time.monotonic()
        news = before is None or not states.tells_the_same_as(before)
        if news and before is None and not states.missing:
            return
        if news or (states.waiting_since and now - self._reminded > _REMINDER_SECONDS):
            self._reminded = now
            reasons = site_reasons(self.server) if states.missing else {}
            self.notice(states.sentence(reasons))

    def _submitted_again(self, callbacks: Sequence[Callback]) -> int:
        """Submit the run again; the server, or the directory, may need a moment."""
        begun, reminder = time.monotonic(), _Reminder(_SILENCE_SECONDS)
        while True:
            try:
                return submit(self.server, self.folder, self.config, callbacks=callbacks)
            except FlammaError as error:
                waited = time.monotonic() - begun
                if self.longest_wait and waited > self.longest_wait:
                    raise
                if reminder.is_due(waited):
                    self.notice(f"the run cannot go on yet: {error}")
            time.sleep(_SUBMIT_RETRY_SECONDS)

    def _last_round(self) -> int:
        records = self.folder.rounds()
        return records[-1].round if records else 0

    def _failure(self, run_id: int, found: FlowerRun) -> str:
        path = self.folder.path
        with contextlib.suppress(FlammaError):
            log = flwr(self.server, "log", str(run_id), "--show").stdout
            write_atomically(path / _SERVER_LOG, log.encode())
        return (
            f"the run did not finish: {_why(found)}; see {path / _SERVER_LOG}; flamma resume "
            f"{path} goes on."
        )


@dataclass
class _Reminder:
    """Says when to tell of a wait: after some seconds, and then every ``_REMINDER_SECONDS``."""

    due: float

    def is_due(self, waited: float) -> bool:
        if waited < self.due:
            return False
        self.due = waited + _REMINDER_SECONDS
        return True


def _is_accident(found: FlowerRun) -> bool:
    """Return whether a run ended by itself: nobody stopped it, and its ServerApp did not give up.

    Examples
    --------
    >>> _is_accident(FlowerRun(1, "finished", "failed", "No heartbeat received from the task"))
    True
    >>> _is_accident(FlowerRun(1, "finished", "stopped", ""))
    False
    """
    return found.outcome == "failed" and GIVEN_UP not in found.details


def _why(found: FlowerRun) -> str:
    text = " ".join(found.details.split()).rstrip(".") or "its ServerApp ended"
    return text.rpartition(GIVEN_UP)[2]
