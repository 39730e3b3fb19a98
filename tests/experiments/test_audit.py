"""Audits: the honest run is the plain one, gains are what the records say, whatever happens."""

from __future__ import annotations

import csv
import json
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

import flamma.experiments.jobs
from flamma.clients.behaviours import BEHAVIOURS
from flamma.errors import ConfigError, DataError, FlammaError, RunError
from flamma.experiments.audit import ATTACKS, DEVIATIONS, audit, choose_deviations, read_source
from flamma.experiments.config import make_config
from flamma.experiments.findings import (
    Audit,
    best_cost_factor,
    read_audit,
    read_evidence,
    write_audit,
)
from flamma.experiments.run import Run, run
from flamma.experiments.suite import read_suite
from flamma.strategies import in_family
from run_hashes import hashes

TABLES = {
    "rounds": 5,
    "per_round": 2,
    "data": {"clients": 4, "train_samples": 160, "validation_samples": 20},
    "model": {"name": "logistic"},
    "costs": {"kind": "lognormal", "value": 0.1, "spread": 0.5},
}
TRIED = ["free-ride", "free-ride-repeat", "claim-most", "sybil"]
OPTIONS = {"deviations": TRIED, "clients": ["cheapest", "dearest"], "seeds": 2}
PLACE = "counterfactuals/digits/shards/flamma"


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return run(TABLES, out=tmp_path_factory.mktemp("plain") / "run")


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    out = tmp_path_factory.mktemp("audit")
    return audit(TABLES, out=out, **OPTIONS, processes=2), out


def test_the_honest_run_is_the_plain_run(done, plain):
    found, out = done
    assert hashes(Run.load(out / PLACE / "seed-0" / "honest")) == hashes(plain)
    assert found.cases[0].baselines[0].params_sha256 == plain.params_sha256


def test_gains_are_those_of_the_records(done):
    """One deviation by hand: what is paid by the record less true cost times epochs squared."""
    found, out = done
    [case] = found.cases
    finding = next(f for f in case.findings if f.deviation == "claim-most" and f.seed == 1)
    place = out / PLACE / "seed-1"
    with open(place / "honest" / "population.csv", newline="") as file:
        cost = float(list(csv.DictReader(file))[finding.client]["cost"])

    def rounds(path):
        lines = (path / "rounds.jsonl").read_text().splitlines()
        for record in map(json.loads, lines):
            if finding.client in record["selected"]:
                k = record["selected"].index(finding.client)
                offer, outcome = record["offer"], record["outcome"]
                rate = offer["decay_factor"] * offer["contributions"][k]
                yield rate, outcome["local_epochs"][k], outcome["efforts"]

    honest = sum(rate * t - cost * t * t for rate, t, _ in rounds(place / "honest"))
    # It works as before and claims ten epochs; what it works is no longer in local_epochs.
    lied = list(rounds(out / finding.folder))
    assert {t for _, t, _ in lied} == {10}
    worked = [t for _, t, _ in rounds(place / "honest")]
    earned = sum(rate * 10 - cost * t * t for (rate, _, _), t in zip(lied, worked, strict=True))
    assert finding.honest_utility == pytest.approx(honest, rel=1e-12)
    assert finding.utility == pytest.approx(earned, rel=1e-12)
    assert finding.gain > 0
    assert finding.relative_gain == pytest.approx((earned - honest) / abs(honest), rel=1e-12)


def test_changes_are_those_of_the_scores(done):
    found, out = done
    finding = next(f for f in found.cases[0].findings if f.deviation == "free-ride")

    def scores(path):
        with open(path / "clients.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        table = np.array([float(row["accuracy"]) for row in rows]).reshape(5, 4)
        others = np.delete(table, finding.client, axis=1)
        own = table[:, finding.client].mean()
        return own, others.mean(), others.var(axis=1).mean(), others.min(axis=1).mean()

    before = scores(out / PLACE / f"seed-{finding.seed}" / "honest")
    changes = np.subtract(scores(out / finding.folder), before)
    told = (
        finding.accuracy_change,
        finding.others_accuracy_change,
        finding.others_variance_change,
        finding.others_worst_change,
    )
    assert told == pytest.approx(tuple(changes), abs=1e-9)


def test_epsilon_is_the_largest_gain(done):
    [case] = done[0].cases
    for seed in (0, 1):
        own = [f for f in case.findings if f.seed == seed and f.honest_utility]
        gains = [f.gain / abs(f.honest_utility) for f in own]
        assert case.epsilons[seed] == max(gains)
    assert case.epsilon == max(case.epsilons.values()) > 0
    assert case.most.deviation in case.sentence
    assert len(case.findings) == 2 * 2 * len(TRIED)
    assert all(len(f.group) == (2 if f.deviation == "sybil" else 1) for f in case.findings)


def test_processes_do_not_matter_and_finished_runs_are_kept(done, tmp_path, monkeypatch):
    found, out = done
    again = audit(TABLES, out=tmp_path, **OPTIONS, processes=1)
    assert again == found
    assert (tmp_path / "audit.json").read_bytes() == (out / "audit.json").read_bytes()
    assert (tmp_path / "audit.csv").read_bytes() == (out / "audit.csv").read_bytes()
    monkeypatch.setattr(flamma.experiments.jobs, "run_config", None)  # nothing is run any more
    monkeypatch.setattr(flamma.experiments.jobs, "go_on", None)
    assert audit(TABLES, out=tmp_path, **OPTIONS) == found


def test_a_killed_audit_goes_on(done, tmp_path):
    found, _ = done
    program = (
        "import json, sys; from flamma.experiments.audit import audit\n"
        "audit(json.loads(sys.argv[1]), out=sys.argv[2], processes=2, **json.loads(sys.argv[3]))"
    )
    arguments = [json.dumps(TABLES), str(tmp_path), json.dumps(OPTIONS)]
    process = subprocess.Popen([sys.executable, "-c", program, *arguments])
    begun = tmp_path / PLACE / "seed-0" / "free-ride"
    while not list(begun.glob("*/rounds.jsonl")) and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "audit.json").exists()
    end = time.monotonic() + 60
    while True:
        try:
            again = audit(TABLES, out=tmp_path, **OPTIONS, processes=2)
            break
        except RunError:  # its workers end with it, a moment later
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
    assert again == found


def test_a_finished_run_is_its_own_baseline(plain, done, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(plain.path, copy)
    found = audit(copy, deviations=TRIED, clients=["cheapest", "dearest"], processes=1)
    [case] = found.cases
    assert [b.seed for b in case.baselines] == [0]
    assert case.baselines[0].params_sha256 == plain.params_sha256
    assert not (copy / "audit" / PLACE / "seed-0" / "honest").exists()
    theirs = {(f.client, f.deviation, f.seed): f.gain for f in done[0].cases[0].findings}
    assert all(theirs[f.client, f.deviation, 0] == f.gain for f in case.findings)
    assert hashes(Run.load(copy)) == hashes(plain)


def test_runs_of_an_audit_keep_no_checkpoints(done):
    _, out = done
    left = {path.name for path in (out / PLACE / "seed-0" / "free-ride-repeat").glob("*/*")}
    assert "rounds.jsonl" in left
    assert not left & {"checkpoint", "notes", ".lock"}


def test_an_audit_can_be_read_again(done, tmp_path):
    found, out = done
    assert read_audit(out) == found
    write_audit(found, tmp_path)
    text = (tmp_path / "audit.json").read_text()
    (tmp_path / "audit.json").write_text(text.replace("free-ride", "honest-ride"))
    with pytest.raises(RunError, match="damaged"):
        read_audit(tmp_path)
    with pytest.raises(RunError, match="no finished audit"):
        read_audit(tmp_path / "nothing")


def test_measured_costs_are_those_of_the_honest_run(tmp_path):
    tables = {**TABLES, "rounds": 2, "costs": {"kind": "measured"}}
    audit(tables, out=tmp_path, deviations=["cost-x2"], clients=[0], seeds=1, processes=1)
    texts = {path.read_text() for path in (tmp_path / PLACE).rglob("population.csv")}
    assert len(list((tmp_path / PLACE).rglob("population.csv"))) == 2
    assert len(texts) == 1


def test_without_a_game_the_utility_is_minus_the_cost_of_work(tmp_path):
    tables = {**TABLES, "rounds": 3, "strategy": {"name": "fedavg"}}
    found = audit(
        tables, out=tmp_path, deviations=["free-ride", "cost-best"], clients=["all"], seeds=1
    )
    [case] = found.cases
    assert not case.is_paid
    for finding in case.findings:
        path = tmp_path / case.baselines[0].folder
        costs = read_evidence(path).population.costs
        times = finding.honest_selections
        assert finding.honest_utility == pytest.approx(-costs[finding.client] * 25 * times)
        lied = finding.deviation == "cost-best" or not times
        assert finding.relative_gain == (0.0 if lied else 1.0)
    assert "nobody is paid" in case.sentence


def test_the_best_report_beats_every_other_one_tried(plain):
    """Against brute force over reports, by the games of the honest run alone."""
    evidence = read_evidence(plain.path)
    config = plain.config
    client = int(np.argmax([evidence.selections([c]) for c in range(4)]))
    factor = best_cost_factor(config, evidence, client)
    true = evidence.population.costs[client]

    def worth(reported):
        earned = 0.0
        for record in evidence.history:
            if client in record.selected:
                k = record.selected.index(client)
                costs = np.array(record.game.costs)
                costs[k] = reported
                omega = np.array(record.offer.contributions)
                entry = costs / omega
                floor = float(np.max(entry[entry <= 1], initial=0.0))
                game = flamma.game.Game(omega, costs, record.round, decay_bounds=(floor, 1))
                price = 0.0 if floor == 1 else flamma.game.price_for(0.3, config.rounds, game)
                gamma = flamma.game.solve(game.replace(price=price)).decay_factor
                epochs = np.arange(11)
                earned += np.max(gamma * omega[k] * epochs - true * epochs**2)
        return earned

    best = worth(true * factor)
    assert best >= worth(true)
    assert best >= max(worth(true * f) for f in np.geomspace(0.01, 100, 60)) - 1e-9


def test_every_deviation_is_of_a_behaviour_and_changes_the_run(tmp_path):
    config = make_config(TABLES)
    for deviation in (*DEVIATIONS.values(), *ATTACKS.values()):
        assert deviation.behaviour in BEHAVIOURS
        own = deviation.applied(config, deviation.group(1, 4), 3.0)
        [assignment] = own.behaviours
        assert 1 in assignment.clients
        assert len(assignment.clients) == 1 + deviation.partners
        assert replace(own, behaviours=()) == config


def test_deviations_are_chosen_by_name_group_or_behaviour():
    assert [d.name for d in choose_deviations(["attacks"])] == list(ATTACKS)
    [own] = choose_deviations(["free-rider:sends=noise:noise=0.01"])
    assert own.options == {"sends": "noise", "noise": 0.01}
    assert len(choose_deviations(["all", "cost-best"])) == len(DEVIATIONS) + len(ATTACKS)


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (["cost-bset"], "did you mean cost-best"),
        (["free-rider:sends"], "written as free-rider:OPTION=VALUE"),
        (["free-rider:sends=nothing"], "sends"),
        (["cost-liar:factor=-1"], "above 0"),
        (["free-rider:sned=noise"], "sends"),
        ([], "at least one"),
    ],
)
def test_deviations_that_do_not_exist_are_refused(names, sentence):
    with pytest.raises(ConfigError, match=sentence) as caught:
        choose_deviations(names)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_audited_is_refused_in_a_sentence(plain, tmp_path, monkeypatch):
    unfinished = tmp_path / "unfinished"
    shutil.copytree(plain.path, unfinished)
    lines = (unfinished / "rounds.jsonl").read_text().splitlines(keepends=True)
    (unfinished / "rounds.jsonl").write_text("".join(lines[:2]))
    (unfinished / "run.json").unlink()
    behaved = run(TABLES, out=tmp_path / "b", behaviours={"dropper": {"clients": [1]}}, rounds=1)
    cases = [
        (unfinished, "is not finished"),
        (behaved.path, "behaviours already"),
        (tmp_path, "holds no run to audit"),
        ("quikc", "did you mean quick"),
        ({**TABLES, "engine": {"name": "flower"}}, "engine flower"),
        ({**TABLES, "data": {"dataset": "own"}}, "data of your own"),
    ]
    for source, sentence in cases:
        with pytest.raises(FlammaError, match=sentence) as caught:
            audit(source, out=tmp_path / "out")
        assert "\n" not in str(caught.value)
    for clients in (["4"], ["nobody"], [-1]):
        with pytest.raises(ConfigError, match="there is no client"):
            audit(TABLES, out=tmp_path / "out", clients=clients)
    with pytest.raises(ConfigError, match="seeds must be at least 1"):
        read_source(TABLES, seeds=0)
    assert not (tmp_path / "out").exists()

    def gone(*_, **__):
        raise DataError("digits is not there.")

    monkeypatch.setattr("flamma.experiments.run.build_data", gone)
    with pytest.raises(DataError, match="cannot be audited without its data"):
        audit(plain.path, out=tmp_path / "out")


def test_a_suite_is_audited_case_by_case(tmp_path):
    suite = tmp_path / "suite.toml"
    suite.write_text(
        'name = "small"\nseeds = 1\nsplits = ["iid"]\nstrategies = ["fedavg", "flamma"]\n'
        "[run]\nrounds = 2\nper_round = 2\n[run.data]\nclients = 4\ntrain_samples = 80\n"
        'validation_samples = 20\n[run.model]\nname = "logistic"\n'
    )
    found = audit(suite, out=tmp_path / "out", deviations=["free-ride"], clients=[1])
    assert [(c.split, c.strategy, c.is_paid) for c in found.cases] == [
        ("iid", "fedavg", False),
        ("iid", "flamma", True),
    ]
    assert isinstance(found, Audit)
    assert found.name == "small"


def test_a_suite_is_audited_for_the_strategies_or_families_that_are_named():
    source = read_source("quick", seeds=1, strategies=["qffl", "reference"])
    assert {cell.strategy for cell in source.cells} == {"qffl", *in_family("reference")}
    assert {cell.strategy for cell in read_source("quick").cells} == set(
        read_suite("quick").strategies
    )


@pytest.mark.parametrize("metric", ["loss", "perplexity"])
def test_a_score_of_which_less_is_better_is_refused(metric):
    config = make_config({"evaluation": {"metric": metric}})
    with pytest.raises(ConfigError, match=f"of which more is better, which {metric} is not"):
        read_source(config)
