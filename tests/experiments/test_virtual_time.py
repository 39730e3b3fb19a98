"""Runs in virtual time: by hand, late clients, interrupted and resumed, over processes."""

from __future__ import annotations

import json

import numpy as np
import pytest

from flamma.cli import main
from flamma.errors import ConfigError
from flamma.experiments import checkpoint
from flamma.experiments.config import make_config
from flamma.experiments.run import Run, resume, run
from flamma.reports.document import read_document

LISTED = {"name": "list", "seconds_per_sample": [0.5, 1.0, 2.0, 4.0, 8.0, 16.0]}
SMALL = {
    "rounds": 6,
    "per_round": 3,
    "data": {"dataset": "digits", "clients": 6, "train_samples": 200, "validation_samples": 60},
    "model": {"name": "mlp"},
    "training": {"learning_rate": 0.1, "epochs": 2},
    "clock": {"speeds": LISTED},
}


def small(strategy="fedavg", **more):
    return {**SMALL, "strategy": {"name": strategy}, **more}


def seconds_of(done):
    """Each client's seconds for two epochs, without its messages."""
    samples = np.loadtxt(done.path / "population.csv", delimiter=",", skiprows=1)[:, 1]
    return 2 * samples * np.array(LISTED["seconds_per_sample"])


def test_a_synchronous_round_waits_for_its_slowest_client(tmp_path):
    done = run(small(clock={"speeds": LISTED, "bandwidth": 1000.0}), out=tmp_path / "run")
    own, time = seconds_of(done), 0.0
    for record in done.history:
        exchanged = (record.cost.bytes_up + record.cost.bytes_down) / 3 / 1000.0
        time += own[list(record.selected)].max() + exchanged
        assert record.cost.virtual_seconds == pytest.approx(time, rel=1e-12)


def test_a_clock_changes_no_weights(tmp_path):
    without = {key: table for key, table in small().items() if key != "clock"}
    plain = run(without, out=tmp_path / "plain")
    timed = run(small(), out=tmp_path / "timed")
    assert timed.params_sha256 == plain.params_sha256
    assert plain.history[-1].cost.virtual_seconds is None
    assert plain.summary()["virtual_seconds"] is None
    assert "clock" not in (tmp_path / "plain" / "config.toml").read_text()
    assert "seconds_per_sample" not in (tmp_path / "plain" / "population.csv").read_text()


def test_a_client_that_misses_the_deadline_is_late_as_a_straggler_is(tmp_path):
    whole = run(small(), out=tmp_path / "whole")
    deadline = float(np.sort(seconds_of(whole))[3])  # the two slowest are late
    done = run(small(clock={"speeds": LISTED, "deadline": deadline}), out=tmp_path / "run")
    late = set(np.flatnonzero(seconds_of(done) > deadline).tolist())
    assert len(late) == 2
    seen, time = set(), 0.0
    for record in done.history:
        expected = late & set(record.selected)
        assert dict(record.outcome.failed) == dict.fromkeys(sorted(expected), "late (simulated)")
        seen |= expected
        time += deadline if expected else seconds_of(done)[list(record.selected)].max()
        assert record.cost.virtual_seconds == pytest.approx(time, rel=1e-12)
    assert seen == late


def interrupted(place, tables, stop, monkeypatch):
    """A run that was stopped after a round, with a checkpoint after each."""
    monkeypatch.setattr(checkpoint, "SHARE_OF_TIME", 1e9)

    def interrupt(record):
        if record.round == stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tables, out=place, on_round=interrupt)
    return place


@pytest.mark.parametrize("name", ["fedbuff", "flamma"])
def test_interrupted_in_the_middle_of_the_queue_it_goes_on_to_the_same_bits(
    tmp_path, monkeypatch, name
):
    tables = small(name, faults={"dropout": 0.2, "failures": 0.2})
    whole = run(tables, out=tmp_path / "whole")
    place = interrupted(tmp_path / "cut", tables, 3, monkeypatch)
    again = resume(place)
    assert again.params_sha256 == whole.params_sha256
    for one, other in zip(again.history, whole.history, strict=True):
        assert one.selected == other.selected
        assert one.cost.virtual_seconds == other.cost.virtual_seconds
        assert one.evaluation == other.evaluation


def test_the_checkpoint_has_clients_at_work(tmp_path, monkeypatch):
    from safetensors.numpy import load_file

    place = interrupted(tmp_path / "cut", small("fedbuff"), 3, monkeypatch)
    newest = max((place / "checkpoint").glob("*.safetensors"))
    state = load_file(newest)
    assert np.count_nonzero(state["began"]) == 2  # of three, one of which has just answered
    assert state["received.clients"].tolist() == np.flatnonzero(state["began"]).tolist()


def test_processes_change_nothing(tmp_path):
    tables = small("fedbuff", rounds=4)
    one = run(tables, out=tmp_path / "one")
    two = run(tables, out=tmp_path / "two", processes=2)
    assert one.params_sha256 == two.params_sha256
    assert [r.cost.virtual_seconds for r in one.history] == [
        r.cost.virtual_seconds for r in two.history
    ]


def test_fedbuff_of_equally_fast_clients_is_fedavg(tmp_path):
    equal = {"data": {**SMALL["data"], "train_samples": 240, "split": "shards"}}
    without = {key: table for key, table in (SMALL | equal).items() if key != "clock"}
    runs = [run(without, strategy=name, out=tmp_path / name) for name in ("fedavg", "fedbuff")]
    samples = np.loadtxt(tmp_path / "fedavg" / "population.csv", delimiter=",", skiprows=1)[:, 1]
    assert len({*samples.tolist()}) == 1
    assert runs[0].params_sha256 == runs[1].params_sha256
    assert runs[1].history[-1].cost.virtual_seconds == pytest.approx(6 * 2 * samples[0] * 0.001)


def test_costs_by_the_clock_are_those_of_its_seconds(tmp_path):
    tables = small("flamma", rounds=1, costs={"kind": "clock", "value": 0.002})
    done = run(tables, out=tmp_path / "run")
    table = np.loadtxt(tmp_path / "run" / "population.csv", delimiter=",", skiprows=1)
    np.testing.assert_allclose(table[:, 3], 0.002 * seconds_of(done) / 2)


def test_measured_speeds_are_those_of_the_beginning(tmp_path, monkeypatch):
    tables = small("fedavg", clock={"speeds": "measured"})
    place = interrupted(tmp_path / "cut", tables, 2, monkeypatch)
    before = (place / "population.csv").read_bytes()
    done = resume(place)
    assert (place / "population.csv").read_bytes() == before
    times = [record.cost.virtual_seconds for record in done.history]
    speed = np.loadtxt(place / "population.csv", delimiter=",", skiprows=1)[0, 4]
    assert times[-1] > 0 < speed
    assert times == sorted(times)


def test_the_times_to_targets_are_of_the_first_round_that_reaches_them(tmp_path, capsys):
    done = run(small("fedbuff"), out=tmp_path / "run")
    accuracies = [record.metric("accuracy") for record in done.history]
    variances = [record.metric("accuracy_variance") for record in done.history]
    target, bound = max(accuracies), max(variances)
    clock = {"speeds": LISTED, "target_accuracy": target, "target_variance": bound}
    again = run(small("fedbuff", clock=clock), out=tmp_path / "again")
    when = again.history[accuracies.index(target)].cost.virtual_seconds
    assert again.summary()["seconds_to_accuracy"] == when
    assert again.summary()["seconds_to_fairness"] == when
    assert main(["show", str(again.path)]) == 0
    assert f"accuracy {target:g} reached at {when:.4g} s" in capsys.readouterr().out
    hard = {"speeds": LISTED, "target_accuracy": target, "target_variance": 1e-9}
    never = run(small("fedbuff", clock=hard), out=tmp_path / "never").summary()
    assert never["seconds_to_accuracy"] == when
    assert never["seconds_to_fairness"] is None


def test_the_page_has_both_axes(tmp_path):
    done = run(small("fedbuff"), out=tmp_path / "run")
    [charts, *_] = read_document(done.path).sections[0].items
    by_round, by_time = charts.charts[0].views
    assert (by_round.label, by_time.label) == ("by round", "by virtual time")
    assert by_round.traces[2]["x"] == [1, 2, 3, 4, 5, 6]
    times = [record.cost.virtual_seconds for record in done.history]
    assert by_time.traces[2]["x"] == pytest.approx(times, rel=1e-6)


def test_a_comparison_has_the_times_in_its_tables(tmp_path, capsys):
    arguments = ["compare", "--strategies", "fedavg,fedbuff", "--out", str(tmp_path / "out")]
    arguments += ["--splits", "iid", "--model", "logistic", "--rounds", "2", "--seeds", "1"]
    arguments += ["--set", "clock.speeds.name=lognormal", "--set", "clock.target_accuracy=1"]
    assert main([*arguments, "--processes", "1", "--quiet"]) == 0
    assert "Time to accuracy (iid)" in capsys.readouterr().out
    table = json.loads((tmp_path / "out" / "table.json").read_text())
    for row in table["rows"]:
        assert 0 < row["mean"]["seconds_to_accuracy"] <= row["mean"]["virtual_seconds"]
        assert "seconds_to_fairness" not in row["mean"]
    page = read_document(tmp_path / "out")
    [work] = [section for section in page.sections if section.name == "work"]
    labels = [view.label for view in work.items[0].charts[0].views]
    assert "accuracy by virtual time" in labels


@pytest.mark.parametrize(
    ("tables", "told"),
    [
        (small("fedbuff", engine={"name": "flower"}), "fedbuff is asynchronous"),
        (small("fedavg", engine={"name": "flower"}), "has no virtual clock"),
        (small("fedbuff", privacy={"clip": 1.0}), "cannot work with noisy updates"),
        (small(clock={"speed": "constant"}), "did you mean speeds"),
        (small(clock={"speeds": "lognormall"}), "did you mean lognormal"),
        (small(clock={"deadline": 3}), r"clock\.speeds is missing"),
    ],
)
def test_what_cannot_be_timed_is_refused(tables, told):
    with pytest.raises(ConfigError, match=told):
        make_config(tables)


def test_a_configuration_with_a_clock_is_read_back(tmp_path):
    done = run(small("fedbuff", rounds=1), out=tmp_path / "run")
    assert Run.load(done.path).config == done.config
    assert done.config.clock.speeds.name == "list"
