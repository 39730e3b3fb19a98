"""The ledger: what is owed, to the last bit; tampering; killed and resumed; budget; inspections."""

from __future__ import annotations

import csv
import hashlib
import json
import shutil
from dataclasses import fields, replace

import numpy as np
import pytest

from flamma.cli import main
from flamma.errors import ConfigError, RunError
from flamma.experiments.accounts import accounts_of, deterrence, run_ledger, true_costs_of
from flamma.experiments.config import make_config
from flamma.experiments.ledger import (
    _LEDGER_HEADER,
    Ledger,
    LedgerConfig,
    LedgerFile,
    LedgerWriter,
    _check_ledger,
    _parse_lines,
)
from flamma.experiments.run import Run, resume, run
from flamma.game import Game
from flamma.game.costs import free_riding
from flamma.game.pricing import affordable
from flamma.records import GameRecord, OfferRecord, Outcomes, RoundRecord
from made_runs import made_config, made_run

SMALL = {
    "rounds": 4,
    "per_round": 2,
    "data": {"clients": 4, "train_samples": 120, "validation_samples": 0},
    "model": {"name": "logistic"},
    "strategy": {"name": "flamma", "warmup_iterations": 2},
}


OFFER, OUTCOME = OfferRecord(0.7, (0.1, 1 / 3)), Outcomes((), {}, (3, 5), 8)


def a_record(number=1, **changes):
    """A round in which two clients train; each change is of a field of any part of it."""
    changed = {}
    for name, part in (("offer", OFFER), ("outcome", OUTCOME)):
        own = {f.name: changes.pop(f.name) for f in fields(part) if f.name in changes}
        changed[name] = replace(part, **own)
    return replace(RoundRecord(number, (0, 2), OFFER, OUTCOME), **changed, **changes)


def chain(run_id, lines):
    """The hashes that lines must have, in the words of the documentation."""
    last, found = hashlib.sha256(run_id.encode()).hexdigest()[:16], []
    for line in lines:
        content = line.rsplit(",", 1)[0]
        last = hashlib.sha256((last + content).encode()).hexdigest()[:16]
        found.append(last)
    return found


def rehashed(run_id, lines):
    """Lines whose hashes a careful forger has computed anew."""
    bare = [line.rsplit(",", 1)[0] for line in lines]
    ends = chain(run_id, [f"{content},x" for content in bare])
    return [f"{content},{end}" for content, end in zip(bare, ends, strict=True)]


@pytest.fixture
def made(tmp_path):
    return made_run(tmp_path / "made")


# What is owed


def test_a_line_tells_the_offer_the_work_and_the_amount():
    record = a_record(
        decay_factors=(0.9, 0.7),
        credited=(2.5, 5.0),
        fines={2: 0.4},
        flags={2: "moved too little, or so"},
        failed={0: 'said "no"'},
    )
    writer = LedgerWriter(LedgerConfig("EUR", 1.3), "run", ("a, b", "c", "d"))
    lines = writer.lines(record)
    first, second = _parse_lines(lines)
    assert first.name == "a, b"
    assert first.reason == 'failed: said "no"'
    assert second.reason == "flagged: moved too little, or so"
    assert (first.decay_factor, first.contribution) == (0.9, 0.1)
    assert (first.epochs_claimed, first.epochs_credited) == (3, 2.5)
    assert first.gross == 1.3 * (0.9 * 0.1 * 2.5)
    assert (second.fine, second.net) == (1.3 * 0.4, second.gross - 1.3 * 0.4)
    assert (first.client_total, first.run_total) == (first.net, first.net)
    assert (second.client_total, second.run_total) == (second.net, first.net + second.net)
    assert {first.currency, second.currency} == {"EUR"}
    assert [first.hash, second.hash] == chain("run", lines)


def test_at_a_factor_of_one_the_net_amount_is_the_records_payment():
    record = a_record(decay_factors=(0.9, 0.7), credited=(2.5, 5.0), fines={2: 0.4})
    lines = _parse_lines(LedgerWriter(LedgerConfig(), "run").lines(record))
    assert [line.net for line in lines] == [record.payment(0), record.payment(1)]


def test_numbers_read_back_exactly():
    rng = np.random.default_rng(0)
    writer = LedgerWriter(LedgerConfig(factor=np.pi), "run")
    client_totals, total = {0: 0.0, 2: 0.0}, 0.0
    for number in range(1, 200):
        omega, gamma = tuple(rng.uniform(0, 1, 2).tolist()), float(rng.uniform())
        record = a_record(number, contributions=omega, decay_factor=gamma)
        for line, w, tau in zip(_parse_lines(writer.lines(record)), omega, (3, 5), strict=True):
            assert (line.decay_factor, line.contribution) == (gamma, w)
            assert line.net == np.pi * (gamma * w * tau)
            client_totals[line.client] += line.net
            total += line.net
            assert (line.client_total, line.run_total) == (client_totals[line.client], total)


def test_a_flag_that_is_also_the_failure_is_told_once():
    record = a_record(flags={0: "caught", 2: "slow"}, failed={0: "caught", 2: "late"})
    reasons = [line.reason for line in _parse_lines(LedgerWriter(LedgerConfig(), "").lines(record))]
    assert reasons == ["flagged: caught", "flagged: slow; failed: late"]


def test_a_reason_of_many_lines_stays_on_one():
    lines = LedgerWriter(LedgerConfig(), "run").lines(a_record(failed={0: "a\nb\x1b[2J\u2028c"}))
    assert len("".join(lines).splitlines()) == 1
    assert _parse_lines(lines)[0].reason.startswith("failed: a b")


def test_a_run_pays_what_its_records_say(tmp_path):
    done = run(SMALL, out=tmp_path / "run", ledger__currency="EUR", ledger__factor=2.0)
    lines = run_ledger(done).lines
    owed = [
        (record.round, client, 2.0 * record.payment(place))
        for record in done.history
        for place, client in enumerate(record.selected)
    ]
    assert [(line.round, line.client, line.net) for line in lines] == owed
    assert sum(net for *_, net in owed) > 0
    written = (tmp_path / "run" / "ledger.csv").read_text().splitlines()
    run_id = hashlib.sha256((tmp_path / "run" / "config.toml").read_bytes()).hexdigest()[:16]
    assert [line.hash for line in lines] == chain(run_id, written[1:])


def test_without_pay_there_is_no_ledger(tmp_path, capsys):
    done = run(SMALL | {"strategy": "fedavg"}, out=tmp_path / "run")
    assert not (tmp_path / "run" / "ledger.csv").exists()
    with pytest.raises(RunError, match=r"has no ledger\.csv"):
        run_ledger(done)
    assert main(["ledger", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


# Tampering


def changed_digit(lines):
    cells = lines[4].split(",")
    cells[8] = cells[8].replace(cells[8][-1], str((int(cells[8][-1]) + 1) % 10))
    return [*lines[:4], ",".join(cells), *lines[5:]], 5


def removed(lines):
    return [*lines[:6], *lines[7:]], 7


def removed_at_the_end(lines):
    return lines[:-1], len(lines)


def removed_last_round(lines):
    return lines[:-3], len(lines) - 2


def removed_first(lines):
    return [lines[0], *lines[2:]], 2


def swapped(lines):
    return [*lines[:3], lines[4], lines[3], *lines[5:]], 4


def appended(lines):
    return [*lines, lines[-1]], len(lines) + 1


def other_header(lines):
    return [lines[0].replace("gross", "paid"), *lines[1:]], 1


def empty_line(lines):
    return [*lines[:3], "", *lines[3:]], 4


def emptied(lines):
    return [], 1


TAMPERED = [
    changed_digit,
    removed,
    removed_at_the_end,
    removed_last_round,
    removed_first,
    swapped,
    appended,
    other_header,
    empty_line,
    emptied,
]


@pytest.mark.parametrize("tamper", TAMPERED)
@pytest.mark.parametrize("careful", [False, True], ids=["plainly", "with hashes anew"])
def test_a_ledger_that_was_changed_is_refused_and_the_first_bad_line_named(
    tamper, careful, made, capsys
):
    path = made / "ledger.csv"
    lines, bad = tamper(path.read_text().splitlines())
    if careful and lines and "" not in lines:
        lines = [lines[0], *rehashed("", lines[1:])]
    path.write_text("".join(f"{line}\n" for line in lines))
    assert main(["ledger", str(made)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert f"ledger.csv, line {bad}, is not as it was written" in said.err
    assert said.err.count("\n") == 1


def test_a_ledger_of_another_run_is_refused(tmp_path):
    writer = LedgerWriter(LedgerConfig(), "mine")
    text = "\n".join([_LEDGER_HEADER, *writer.lines(a_record())]) + "\n"
    other = LedgerWriter(LedgerConfig(), "other")
    with pytest.raises(RunError, match=r"line 2, .* its hash does not follow"):
        _check_ledger(text, other, [a_record()], 1, ended=True)


def test_lines_whose_record_is_damaged_are_checked_by_their_hashes():
    records = [a_record(number) for number in (1, 2, 3)]
    writer = LedgerWriter(LedgerConfig(), "run")
    rows = [row for record in records for row in writer.lines(record)]
    text = "".join(f"{row}\n" for row in (_LEDGER_HEADER, *rows))
    known = [records[0], records[2]]
    kept = _check_ledger(text, LedgerWriter(LedgerConfig(), "run"), known, 3, ended=True)
    assert kept == rows
    changed = text.replace("2,0,,0.7", "2,0,,0.8")
    with pytest.raises(RunError, match="line 4, "):
        _check_ledger(changed, LedgerWriter(LedgerConfig(), "run"), known, 3, ended=True)


# Killed and resumed


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("ledger") / "whole"
    run(SMALL, out=path)
    return path


def interrupted(path, rounds):
    """Run until a round is recorded, then stop as an interrupted process does."""

    def stop(record):
        if record.round == rounds:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(SMALL, out=path, on_round=stop)
    return path


def test_a_resumed_run_has_the_same_ledger(whole, tmp_path):
    path = interrupted(tmp_path / "run", 2)
    before = (path / "ledger.csv").read_bytes()
    assert (whole / "ledger.csv").read_bytes().startswith(before)
    resume(path)
    assert (path / "ledger.csv").read_bytes() == (whole / "ledger.csv").read_bytes()


@pytest.mark.parametrize("tail", ["3,1,,0.", "3,1,,\n4,", "\0\0\0\n\0\0"])
def test_what_a_killed_process_left_half_written_is_dropped(tail, whole, tmp_path):
    path = interrupted(tmp_path / "run", 2)
    with open(path / "ledger.csv", "a") as file:
        file.write(tail)
    assert run_ledger(Run.load(path)).lines[-1].round == 2
    resume(path)
    assert (path / "ledger.csv").read_bytes() == (whole / "ledger.csv").read_bytes()


def test_a_run_begun_before_there_were_ledgers_gets_a_whole_one(whole, tmp_path):
    path = interrupted(tmp_path / "run", 3)
    (path / "ledger.csv").unlink()
    resume(path)
    assert (path / "ledger.csv").read_bytes() == (whole / "ledger.csv").read_bytes()


def test_a_run_with_a_changed_ledger_is_not_resumed(tmp_path):
    path = interrupted(tmp_path / "run", 2)
    lines = (path / "ledger.csv").read_text().splitlines()
    (path / "ledger.csv").write_text("\n".join([lines[0], *lines[2:], ""]))
    with pytest.raises(RunError, match=r"ledger\.csv, line 2, is not as it was written"):
        resume(path)


def test_what_is_not_synced_before_a_checkpoint_would_be_lost(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(LedgerFile, "sync", lambda self: synced.append(self.path.name))
    run(SMALL | {"rounds": 1}, out=tmp_path / "run")
    assert synced == ["ledger.csv"]


# The configuration


def test_the_defaults_leave_a_configuration_as_it_was():
    assert "ledger" not in make_config({}).as_tables()
    own = make_config({"ledger": {"currency": "EUR", "factor": 2, "budget": 10}})
    assert own.ledger == LedgerConfig("EUR", 2.0, 10.0)
    assert own.strategy.plan.budget == 5.0
    assert make_config(own.as_tables()) == own
    assert make_config({}).strategy.plan.budget is None


@pytest.mark.parametrize(
    ("table", "what"),
    [
        ({"currency": ""}, "ledger.currency must be a short word"),
        ({"currency": "a\nb"}, "ledger.currency must be a short word"),
        ({"currency": "E" * 100}, "ledger.currency must be a short word"),
        ({"currency": 3}, "ledger.currency"),
        ({"factor": 0}, "ledger.factor must be above 0"),
        ({"factor": float("inf")}, "ledger.factor"),
        ({"budget": -1}, "ledger.budget must be at least 0"),
        ({"bugdet": 1}, "did you mean budget"),
    ],
)
def test_an_impossible_ledger_is_one_sentence(table, what):
    with pytest.raises(ConfigError, match=what) as caught:
        make_config({"ledger": table})
    assert "\n" not in str(caught.value)


# Accounts, budget, inspections


def test_accounts_are_the_sums_of_the_lines(made, capsys):
    done = Run.load(made)
    with open(made / "ledger.csv") as file:
        lines = list(csv.DictReader(file))
    accounts = accounts_of(run_ledger(done), done.history, 36)
    assert len(lines) == accounts.lines == 36
    for own in accounts.clients:
        mine = [line for line in lines if int(line["client"]) == own.client]
        assert own.net == pytest.approx(sum(float(line["net"]) for line in mine))
        assert own.gross == pytest.approx(sum(float(line["gross"]) for line in mine))
        assert own.rounds_paid == sum(float(line["gross"]) > 0 for line in mine)
    assert sum(own.share for own in accounts.clients) == pytest.approx(1)
    assert (accounts.budget, accounts.left, accounts.capped) == (None, None, 0)
    assert main(["ledger", str(made), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["net"] == accounts.net
    assert told["clients"][0]["net"] == accounts.clients[0].net
    assert main(["ledger", str(made), "--csv"]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [float(row["net"]) for row in rows] == [own.net for own in accounts.clients]
    assert main(["ledger", str(made)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("ledger intact: 36 lines")
    assert "There is no budget." in said


def test_fines_and_flags_are_in_the_accounts():
    writer = LedgerWriter(LedgerConfig("EUR"), "")
    record = a_record(fines={2: 9.0}, flags={2: "did nothing"})
    ledger = Ledger(writer.config, tuple(_parse_lines(writer.lines(record))), writer.last_hash)
    honest, caught = accounts_of(ledger, [record], 2).clients
    assert (honest.flags, honest.fines, caught.flags, caught.fines) == (0, 0.0, 1, 9.0)
    assert caught.net == caught.gross - 9.0
    assert caught.share is None  # all payments come to less than nothing


def with_budget(path, budget):
    return made_run(path, made_config(ledger={"budget": budget, "currency": "EUR"}))


def test_a_budget_shows_what_is_left_or_by_how_much_it_is_exceeded(tmp_path, capsys):
    path = with_budget(tmp_path / "rich", 1e4)
    assert main(["ledger", str(path)]) == 0
    said = capsys.readouterr().out
    assert "Of the budget of 10000, " in said
    assert "it capped no offer." in said
    path = with_budget(tmp_path / "poor", 1.0)
    done = Run.load(path)
    net = accounts_of(run_ledger(done), done.history, 36).net
    assert main(["ledger", str(path)]) == 0
    assert f"The budget of 1 is exceeded by {net - 1:.6g}." in capsys.readouterr().out


def test_a_run_keeps_its_budget_and_says_that_it_binds(tmp_path, capsys):
    done = run(SMALL, out=tmp_path / "run", ledger__budget=36.0, ledger__factor=3.0)
    accounts = accounts_of(run_ledger(done), done.history, 8)
    assert 0 < accounts.net <= 36.0
    assert accounts.capped > 0
    assert main(["ledger", str(tmp_path / "run")]) == 0
    assert f"it capped {accounts.capped} of 8 offers" in capsys.readouterr().out


def test_offers_at_their_share_of_the_budget_are_counted():
    records, writer = [], LedgerWriter(LedgerConfig(budget=10.0, factor=2.0), "")
    rows = []
    for number in (1, 2):
        omega = (0.9, 0.01)
        scale = affordable(1.0, omega, 10, budget=5.0, rounds=2, per_round=2)
        record = a_record(
            number,
            contributions=omega,
            decay_factors=tuple(scale.tolist()),
            local_epochs=(10, 10),
            game=GameRecord(1.0, (0.0, 1.0), (1.0, 10.0), True, (0.1, 0.1)),
        )
        records.append(record)
        rows += writer.lines(record)
    ledger = Ledger(writer.config, tuple(_parse_lines(rows)), writer.last_hash)
    accounts = accounts_of(ledger, records, 4)
    assert accounts.capped == 2
    assert 0 < accounts.left < 5.0
    assert accounts.net <= 10.0


def test_inspections_deter_every_client_in_every_round_and_no_less_does(made, capsys):
    done = Run.load(made)
    costs = true_costs_of((made / "population.csv").read_text())
    found = {d.client: d for d in deterrence(run_ledger(done), done.history, costs, fine=2.0)}
    worst = dict.fromkeys(found, -np.inf)
    for record in done.history:
        for place, client in enumerate(record.selected):
            pull = record.offer.decay_factor * record.offer.contributions[place]
            honest = max(pull * t - costs[client] * t * t for t in range(11))
            rate = found[client].rate
            cheating = (1 - rate) * pull * 10 - rate * 2.0
            assert cheating <= honest + 1e-12
            worst[client] = max(worst[client], cheating - honest)
    assert max(worst.values()) == pytest.approx(0, abs=1e-12)
    assert np.allclose(list(worst.values()), 0, atol=1e-12)
    assert main(["ledger", str(made), "--fine", "2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["fine"] == 2.0
    assert told["rate"] == max(own.rate for own in found.values())
    assert main(["ledger", str(made), "--fine", "2"]) == 0
    assert f"with probability {told['rate']:.4g} deters every client" in capsys.readouterr().out


def test_rates_and_fines_of_a_run_belong_together(made, capsys):
    done = Run.load(made)
    ledger, costs = run_ledger(done), true_costs_of((made / "population.csv").read_text())
    fines = deterrence(ledger, done.history, costs, rate=0.3)
    most = max(own.fine for own in fines)
    rates = deterrence(ledger, done.history, costs, fine=most)
    assert max(own.rate for own in rates) == pytest.approx(0.3)
    assert main(["ledger", str(made), "--rate", "0.3"]) == 0
    assert f"a fine of {most:.6g} units deters" in capsys.readouterr().out


def test_the_gain_counts_true_costs_and_the_currency(tmp_path):
    path = made_run(tmp_path / "run", made_config(ledger={"factor": 100.0}))
    done = Run.load(path)
    costs = true_costs_of((path / "population.csv").read_text())
    found = deterrence(run_ledger(done), done.history, costs, fine=200.0)
    one = deterrence(run_ledger(Run.load(made_run(tmp_path / "one"))), done.history, costs, fine=2)
    assert [own.gain for own in found] == pytest.approx([100 * own.gain for own in one])
    assert [own.rate for own in found] == pytest.approx([own.rate for own in one])
    dear = deterrence(run_ledger(done), done.history, costs * 100, fine=200.0)
    assert all(more.gain > own.gain for more, own in zip(dear, found, strict=True))


@pytest.mark.parametrize(
    "options", [["--fine", "-1"], ["--fine", "nan"], ["--rate", "0"], ["--rate", "1.5"]]
)
def test_what_is_no_inspection_is_one_sentence(options, made, capsys):
    assert main(["ledger", str(made), *options]) == 2
    said = capsys.readouterr().err
    assert options[0] in said
    assert said.count("\n") == 1


def test_many_accounts_are_cut_short_on_a_terminal_but_not_as_csv(tmp_path, capsys):
    config = made_config(clients=120, per_round=60, rounds=4)
    path = made_run(tmp_path / "run", config, trouble=False)
    clients = len({c for record in Run.load(path).history for c in record.selected})
    assert main(["ledger", str(path)]) == 0
    said = capsys.readouterr().out
    assert f"These are the 40 best paid; --csv has the other {clients - 40} too." in said
    assert main(["ledger", str(path), "--csv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == clients + 1


def test_a_ledger_of_a_copied_run_is_still_intact(made, tmp_path):
    shutil.copytree(made, tmp_path / "copy")
    copy = run_ledger(Run.load(tmp_path / "copy"))
    assert copy.last_hash == run_ledger(Run.load(made)).last_hash


def test_free_riding_pays_more_than_honesty_in_a_real_run(whole):
    done = Run.load(whole)
    record = done.history[0]
    costs = np.array(record.game.costs)
    gain, honest = free_riding(
        Game(record.offer.contributions, costs, epoch_bounds=record.game.epoch_bounds),
        record.offer.decay_factor,
    )
    assert honest == pytest.approx(list(record.outcome.client_utilities))
    assert (gain > 0).all()
