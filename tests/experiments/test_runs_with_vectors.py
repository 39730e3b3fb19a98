"""Whole runs of strategies whose clients keep or correct something."""

from __future__ import annotations

import numpy as np
import pytest

from flamma.experiments.comparison import compare
from flamma.experiments.run import resume, run

SMALL = {
    "rounds": 4,
    "per_round": 2,
    "data": {"clients": 4, "train_samples": 160, "validation_samples": 40, "split": "shards"},
    "model": {"name": "logistic"},
}


def done(tmp_path, strategy, **settings):
    name = "-".join([strategy, *(str(value) for value in settings.values())])
    return run({**SMALL, "strategy": strategy}, out=tmp_path / name, **settings)


def test_the_global_model_of_ditto_is_that_of_fedavg_to_the_bit(tmp_path):
    ditto, plain = done(tmp_path, "ditto"), done(tmp_path, "fedavg")
    assert ditto.params_sha256 == plain.params_sha256
    assert all(record.evaluation.personal for record in ditto.history)
    assert ditto.summary()["epochs_total"] == 2 * plain.summary()["epochs_total"]
    assert ditto.summary()["accuracy"] != plain.summary()["accuracy"]


@pytest.mark.parametrize("strategy", ["scaffold", "fednova", "fedvarp"])
def test_a_first_round_with_equal_data_is_fedavg_to_the_bit(tmp_path, strategy):
    settings = {"rounds": 1, "per_round": 4, "data__split": "iid"}
    found = [done(tmp_path, name, **settings) for name in (strategy, "fedavg")]
    assert found[0].params_sha256 == found[1].params_sha256


def test_controls_change_what_clients_do_from_the_second_round(tmp_path):
    found = [done(tmp_path, name, per_round=4) for name in ("scaffold", "feddyn", "fedavg")]
    assert len({one.params_sha256 for one in found}) == 3


@pytest.mark.parametrize("strategy", ["scaffold", "feddyn", "ditto", "local"])
def test_what_clients_keep_survives_an_interruption(tmp_path, strategy):
    whole = done(tmp_path, strategy)

    def stop(record):
        if record.round == 3:
            raise KeyboardInterrupt

    part = tmp_path / "part"
    with pytest.raises(KeyboardInterrupt):
        run({**SMALL, "strategy": strategy}, out=part, on_round=stop)
    again = resume(part)
    assert again.params_sha256 == whole.params_sha256
    last = [one.history[-1].evaluation.metrics for one in (again, whole)]
    assert last[0] == last[1]
    assert not any(record.flags for record in again.history)


def test_alone_the_model_stays_and_nothing_travels(tmp_path):
    alone = done(tmp_path, "local")
    once = done(tmp_path, "local", rounds=1)
    assert alone.params_sha256 == once.params_sha256
    summary = alone.summary()
    assert (summary["bytes_up"], summary["bytes_down"]) == (0, 0)
    # One or two digits each: whoever has trained alone knows them.
    trained = sorted({client for record in alone.history for client in record.selected})
    assert np.mean(alone.scores.rounds[4][trained]) > 80


def test_a_comparison_with_local_tells_who_is_better_off(tmp_path):
    suite = {
        "name": "joining",
        "seeds": 2,
        "splits": ["iid"],
        "strategies": ["fedavg", "local"],
        "run": {key: value for key, value in SMALL.items() if key != "data"}
        | {"data": {"clients": 4, "train_samples": 80, "validation_samples": 40}},
    }
    comparison = compare(suite, out=tmp_path / "joining", processes=1)
    shares = comparison.row("digits", "iid", "fedavg").values["better_off"]
    assert len(shares) == 2
    assert min(shares) >= 50  # with 20 alike samples each, joining pays
    assert "better_off" not in comparison.row("digits", "iid", "local").values
