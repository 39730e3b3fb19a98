"""``ledger.csv``: what every selected client is owed in every round, with a running hash.

A line is a pure function of the run's id, its ``[ledger]`` table and its records, so a run that was
killed and resumed has the same ledger as one that was not. Every line ends with a hash of itself
and of the hash before it, so a line cannot be changed, removed, moved or put in without all hashes
after it; and the lines must say what the records say, so writing those anew shows too.
"""

from __future__ import annotations

import csv
import hashlib
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NoReturn

from flamma.errors import ConfigError, Key, RunError
from flamma.experiments.population import read_names
from flamma.io import Extent, GrowingFile, printable, quoted
from flamma.records import RoundRecord
from flamma.registry import CheckedOptions, above, at_least

if TYPE_CHECKING:
    from flamma.experiments.folder import RunFolder


LEDGER = "ledger.csv"
_LEDGER_HASH_DIGITS = 16
_MOST_CURRENCY = 20
"""The most characters of the name of a currency."""

_MOST_PAYMENT_REASON = 200
"""The most characters of what is said about a payment."""

_FIRST_LINE = 2
"""The number of the first line after the header, as editors count."""

FLAGGED = "flagged: "
"""How the reason of a payment begins that was flagged."""


@dataclass(frozen=True)
class LedgerConfig(CheckedOptions, within="ledger."):
    """In what clients are paid, and how much at most.

    Parameters
    ----------
    currency : str
        What amounts are counted in, such as ``EUR``.
    factor : float
        The currency that one unit of utility is worth.
    budget : float, optional
        The most that is paid in the whole run, in that currency; no limit if left out. Every
        selected client's share of it is fixed before the first round.
    """

    currency: str = "units"
    factor: Annotated[float, above(0)] = 1.0
    budget: Annotated[float | None, at_least(0)] = None

    def __post_init__(self) -> None:
        if not self.currency.strip() or self.currency != printable(self.currency, _MOST_CURRENCY):
            raise ConfigError(
                Key("ledger.currency"),
                f" must be a short word such as EUR, not {quoted(self.currency)}.",
            )

    @property
    def utility_budget(self) -> float | None:
        """The budget in units of utility, as a strategy counts; None without one."""
        return None if self.budget is None else self.budget / self.factor


class LedgerLine(NamedTuple):
    """One line: what a client was offered in a round, what it did, and what it is owed.

    Amounts are in the ledger's currency. ``client_total`` and ``run_total`` are the net amounts
    of the client and of all clients up to and including this line. The contribution is NaN where
    clients are paid an amount for the round rather than for a contribution.
    """

    round: int
    client: int
    name: str
    decay_factor: float
    contribution: float
    epochs_claimed: int
    epochs_credited: float
    currency: str
    gross: float
    fine: float
    net: float
    reason: str
    client_total: float
    run_total: float
    hash: str


_LEDGER_HEADER = ",".join(LedgerLine._fields)
_PARSERS: tuple[Callable[[str], Any], ...] = (
    *(int, int, str, float, float, int, float, str, float, float, float, str, float, float, str),
)


class LedgerWriter:
    """Makes the lines of a ledger, round by round, and keeps its totals and its last hash.

    Parameters
    ----------
    config : LedgerConfig
    run_id : str
        The run's id, whose hash is the one before the first line.
    names : sequence of str
        The clients' names by number; empty where they have none.
    """

    def __init__(self, config: LedgerConfig, run_id: str, names: Sequence[str] = ()) -> None:
        self.config = config
        self.names = names
        self.last_hash = _digest(run_id)
        self.run_total = 0.0
        self.client_totals: dict[int, float] = {}

    def lines(self, record: RoundRecord) -> list[str]:
        """Return the lines of a round, none where nothing is paid."""
        places = range(len(record.selected)) if pays(record) else ()
        return [self._line(record, place) for place in places]

    def accepts(self, line: str) -> bool:
        """Go on after a line that was written before and whose record is lost, if it is a line."""
        try:
            [known] = _parse_lines([line])
        except (ValueError, csv.Error):
            return False
        self.client_totals[known.client] = known.client_total
        self.run_total, self.last_hash = known.run_total, known.hash
        return True

    def _line(self, record: RoundRecord, place: int) -> str:
        client, factor = record.selected[place], self.config.factor
        offer, outcome = record.offer, record.outcome
        gamma = offer.decay_factor_of(place)
        omega = math.nan if offer.contributions is None else offer.contributions[place]
        claimed = outcome.local_epochs[place]
        credited = float(claimed) if outcome.credited is None else outcome.credited[place]
        amount = gamma * omega * credited if outcome.payments is None else outcome.payments[place]
        gross = factor * amount
        fine = factor * outcome.fines.get(client, 0.0)
        net = gross - fine
        self.client_totals[client] = self.client_totals.get(client, 0.0) + net
        self.run_total += net
        cells = (
            str(record.round),
            str(client),
            _cell(self.names[client] if client < len(self.names) else ""),
            repr(float(gamma)),
            repr(float(omega)),
            str(claimed),
            repr(float(credited)),
            _cell(self.config.currency),
            repr(float(gross)),
            repr(float(fine)),
            repr(float(net)),
            _cell(_reason(record, client)),
            repr(float(self.client_totals[client])),
            repr(float(self.run_total)),
        )
        content = ",".join(cells)
        self.last_hash = _digest(self.last_hash + content)
        return f"{content},{self.last_hash}"


def pays(record: RoundRecord) -> bool:
    """Return whether clients are paid in a round."""
    return record.is_paid


def _check_ledger(
    text: str,
    writer: LedgerWriter,
    records: Iterable[RoundRecord],
    last_round: int,
    *,
    ended: bool,
    where: str = LEDGER,
) -> list[str]:
    """Return the lines up to a round, without the header, if they are as they were written.

    Parameters
    ----------
    text : str
        The file.
    writer : LedgerWriter
        A new one, which has made the returned lines afterwards.
    records : iterable of RoundRecord
        Those that can be read, up to that round; lines of rounds without one are checked by their
        hashes alone.
    last_round : int
        The last round that counts.
    ended : bool
        Whether there must be nothing more. While a run goes on, or after it was killed, what
        stands behind its last record is left out.
    where : str
        What the file is called in messages.

    Raises
    ------
    RunError
        If a line is not as it was written; the first one is named.
    """
    known = list(records)
    recorded = {record.round for record in known}
    waiting = deque(record for record in known if pays(record) and record.selected)
    *rows, torn = text.split("\n")
    if rows[:1] != [_LEDGER_HEADER]:
        _refuse(where, 1, "it is not the header of a ledger")
    expected: deque[str] = deque()
    kept: list[str] = []
    before, current = writer.last_hash, 0
    for number, row in enumerate(rows[1:], start=_FIRST_LINE):
        content, _, own_hash = row.rpartition(",")
        digits = row[:10].partition(",")[0]  # longer ones are damage
        told = int(digits) if digits.isascii() and digits.isdigit() else -1
        follows = own_hash == _digest(before + content)
        settled = not expected and not waiting
        if settled and not ended and not (follows and told <= last_round):
            break
        if waiting and not expected and told == waiting[0].round:
            current = told
            expected.extend(writer.lines(waiting.popleft()))
        if not follows:
            _refuse(where, number, "its hash does not follow from the lines before it")
        if expected:
            if row != expected.popleft():
                _refuse(where, number, f"the record of round {current} says something else")
        elif told in recorded or not current <= told <= (
            waiting[0].round if waiting else last_round
        ):
            _refuse(where, number, "no record of a round has it at this place")
        elif not writer.accepts(row):
            _refuse(where, number, "it is not a line of a ledger")
        kept.append(row)
        before, current = own_hash, told
    if expected or waiting:
        missing = current if expected else waiting[0].round
        _refuse(where, len(kept) + _FIRST_LINE, f"a payment of round {missing} is missing")
    if torn and ended:
        _refuse(where, len(rows) + 1, "it is cut off")
    return kept


def _parse_lines(rows: Iterable[str]) -> list[LedgerLine]:
    """Return the cells of lines that were checked before."""
    return [
        LedgerLine(*(parse(cell) for parse, cell in zip(_PARSERS, cells, strict=True)))
        for cells in csv.reader(rows)
    ]


def _refuse(where: str, number: int, why: str) -> NoReturn:
    raise RunError(f"{where}, line {number}, is not as it was written: {why}; restore the file.")


def _reason(record: RoundRecord, client: int) -> str:
    """Return what explains an amount: why a client was flagged, failed or did not work."""
    parts, outcome = [], record.outcome
    flag = outcome.flags.get(client)
    if flag is not None:
        parts.append(f"{FLAGGED}{flag}")
    if client in outcome.failed and outcome.failed[client] != flag:
        parts.append(f"failed: {outcome.failed[client]}")
    elif client in outcome.abstained:
        parts.append("abstained")
    return printable("; ".join(parts), _MOST_PAYMENT_REASON)


def _cell(text: str) -> str:
    """Return a text as a cell of a CSV file, on one line."""
    plain = printable(text, _MOST_PAYMENT_REASON)
    quote = '"'
    return f"{quote}{plain.replace(quote, 2 * quote)}{quote}" if set(plain) & {",", '"'} else plain


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_LEDGER_HASH_DIGITS]


# The file of a ledger: appended to while a run goes on, cut back when it resumes, and read.


@dataclass(frozen=True, eq=False)
class Ledger:
    """A ledger that was read and found intact.

    Attributes
    ----------
    config : LedgerConfig
        Its currency and budget.
    lines : tuple of LedgerLine
        All payments, in order.
    last_hash : str
        The hash of the last line, which stands for all of them; whoever has kept it can tell
        later whether a ledger is still the same.
    """

    config: LedgerConfig
    lines: tuple[LedgerLine, ...]
    last_hash: str


class LedgerFile:
    """The ledger of a run that goes on; the file is there from the first payment on."""

    def __init__(self, path: Path, writer: LedgerWriter) -> None:
        self.path = path
        self.writer = writer
        self._file: GrowingFile | None = None

    def open_at(self, text: str, records: Sequence[RoundRecord], last_round: int) -> None:
        """Cut the file back to a round, of which ``text`` is the content.

        A run that was begun before there were ledgers gets its earlier lines from its records.

        Raises
        ------
        RunError
            If a line up to that round is not as it was written.
        """
        earlier = [record for record in records if record.round <= last_round]
        if last_round < 1:
            rows = []
        elif text:
            where = str(self.path)
            rows = _check_ledger(text, self.writer, earlier, last_round, ended=False, where=where)
        else:
            rows = [row for record in earlier for row in self.writer.lines(record)]
        if rows:
            self._write(rows)
        else:
            self.path.unlink(missing_ok=True)

    def append(self, record: RoundRecord) -> None:
        """Add the payments of a round."""
        rows = self.writer.lines(record)
        if rows and self._file is None:
            self._write([])
        if rows and self._file is not None:
            self._file.append("".join(f"{row}\n" for row in rows))

    @property
    def extent(self) -> Extent | None:
        """Its length and checksum now; None before the first payment."""
        return None if self._file is None else self._file.extent

    def sync(self) -> None:
        """Make what was appended survive a power failure."""
        if self._file is not None:
            self._file.sync()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
        self._file = None

    def _write(self, rows: Sequence[str]) -> None:
        text = "".join(f"{row}\n" for row in (_LEDGER_HEADER, *rows))
        self._file = GrowingFile(self.path, text.encode())


def ledger_writer(config: LedgerConfig, run_id: str, population: str) -> LedgerWriter:
    """Return the writer of a run's ledger, given the text of its ``population.csv``."""
    try:
        names = read_names(population)
    except ValueError:  # a damaged file, which the manifest tells of
        names = ()
    return LedgerWriter(config, run_id, names)


def read_ledger(
    folder: RunFolder,
    config: LedgerConfig,
    population: str,
    records: Sequence[RoundRecord],
    *,
    ended: bool,
) -> Ledger | None:
    """Return the ledger of a run, None if it has none.

    The records are to be read before the ledger: a run that goes on writes payments first.

    Raises
    ------
    RunError
        If a line is not as it was written; the first one is named.
    """
    if not (folder.path / LEDGER).exists():
        return None
    writer = ledger_writer(config, folder.run_id, population)
    last_round = records[-1].round if records else 0
    where = str(folder.path / LEDGER)
    text = folder.text(LEDGER)
    rows = _check_ledger(text, writer, records, last_round, ended=ended, where=where)
    return Ledger(config, tuple(_parse_lines(rows)), writer.last_hash)
