from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest

from flamma.cli import main
from flamma.contributions.shapley import exact_shapley, sampled_shapley
from flamma.errors import ConfigError, RunError
from flamma.experiments.config import make_config
from flamma.experiments.laboratory import (
    FINISHED_JOBS,
    UPDATE_DEVIATIONS,
    CoalitionBench,
    Deviator,
    compare_measures,
    read_measures,
    study_contributions,
)
from flamma.numerics import norm
from flamma.seeding import stream

SMALL = {
    "rounds": 2,
    "model": "logistic",
    "data": {"clients": 3, "train_samples": 150, "validation_samples": 40},
}


def by_definition(values, players):
    """Return Shapley values as the mean gain over all orders in which players join."""
    gains = np.zeros(players)
    orders = list(itertools.permutations(range(players)))
    for order in orders:
        coalition = 0
        for player in order:
            gains[player] += values[coalition | 1 << player] - values[coalition]
            coalition |= 1 << player
    return gains / len(orders)


@pytest.mark.parametrize("players", [1, 2, 3, 5])
def test_exact_shapley_values_are_mean_gains_over_all_orders(players):
    values = stream(players, "game").normal(size=1 << players)
    np.testing.assert_allclose(exact_shapley(values), by_definition(values, players), atol=1e-12)


def test_shapley_values_of_a_glove_game():
    """One left glove, two right ones, and a pair is worth 1: by hand 2/3, 1/6, 1/6."""
    values = np.array([0, 0, 0, 1, 0, 1, 0, 1.0])  # bit 0 is the left glove
    np.testing.assert_allclose(exact_shapley(values), [2 / 3, 1 / 6, 1 / 6])


def test_a_table_that_is_no_game_is_refused():
    with pytest.raises(ValueError, match="power of two"):
        exact_shapley(np.zeros(6))


def test_sampled_shapley_values_add_up_and_come_near_the_exact_ones():
    values = stream(1, "game").normal(size=64)
    found = sampled_shapley(lambda c: float(values[c]), 6, 3000, 0.0, key=0)
    assert math.isclose(found.sum(), values[-1] - values[0], abs_tol=1e-9)
    np.testing.assert_allclose(found, by_definition(values, 6), atol=0.1)


def test_groups_of_orders_give_an_additive_game_exactly():
    worth = np.array([3.0, 1.0, 0.0, 2.0])

    def value(coalition):
        return float(sum(w for i, w in enumerate(worth) if coalition >> i & 1))

    np.testing.assert_allclose(sampled_shapley(value, 4, 4, 0.0, key=7), worth)


def test_truncation_saves_scores():
    scored = set()

    def value(coalition):
        scored.add(coalition)
        return float(bool(coalition))  # the first to join brings everything

    found = sampled_shapley(value, 8, 8, 0.01, key=3)
    assert len(scored) <= 10
    np.testing.assert_allclose(found, np.full(8, 1 / 8))


def test_measures_are_read_with_their_options():
    read = read_measures(["cosine", "shapley  samples=5 tolerance=0.1"])
    assert list(read) == ["cosine", "shapley samples=5 tolerance=0.1"]
    assert read["shapley samples=5 tolerance=0.1"].options["samples"] == 5
    with pytest.raises(ConfigError, match="KEY=VALUE"):
        read_measures(["shapley samples"])
    with pytest.raises(ConfigError, match="cosine"):
        read_measures(["cosin"])


def test_correlations_and_shares_are_those_of_hand():
    exact = np.array([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])
    honest = np.array([[0.2, 0.4, 0.6], [0.5, 0.5, 0.5]])
    found = compare_measures(exact, honest, {"idle": np.array([[0.0, 0.2, 0.1], [1.0] * 3])}, 0, 0)
    assert found.spearman[0] == pytest.approx(1)
    assert found.kendall[0] == pytest.approx(1)
    assert math.isnan(found.spearman[1])  # all clients the same
    assert found.earned["idle"] == pytest.approx((0 + 0.5 + 0.25 + 2 + 2 + 2) / 6)
    assert found.most_earned["idle"] == pytest.approx(2)
    assert found.as_json()["spearman"][1] is None


@pytest.fixture(scope="module")
def bench():
    return CoalitionBench.build(make_config(SMALL | {"strategy": "fedavg", "per_round": 3}))


def test_deviators_send_what_they_are_said_to(bench):
    def sent(name, client=1):
        change = Deviator(UPDATE_DEVIATIONS[name], client, bench.seed)
        return list(bench.rounds(range(3), change))

    honest = list(bench.rounds(range(3)))
    for name in UPDATE_DEVIATIONS:
        first = sent(name)[0]
        for client in (0, 2):  # the others are honest
            np.testing.assert_array_equal(
                first.reports[client].params, honest[0].reports[client].params
            )
    one, two = sent("free-rider")
    assert norm(two.reports[1].params - two.before) < 0.01 * norm(two.before)
    one, two = sent("duplicate")
    np.testing.assert_allclose(two.reports[1].params, two.reports[2].params, atol=1e-6)
    one, two = sent("repeater")
    moves = [played.reports[1].params - played.before for played in (one, two)]
    np.testing.assert_allclose(moves[0], moves[1], atol=1e-6)
    np.testing.assert_allclose(one.reports[1].params, honest[0].reports[1].params, atol=1e-6)
    one, two = sent("step-rider")
    np.testing.assert_allclose(
        two.reports[1].params - two.before, two.before - one.before, atol=1e-6
    )
    one, two = sent("noise")
    lengths = [norm(report.params - two.before) for report in two.reports]
    assert lengths[1] == pytest.approx((lengths[0] + lengths[2]) / 2, rel=0.2)


def test_all_clients_together_are_a_run_of_fedavg(bench, tmp_path):
    """The value of the coalition of all is that of the library's own run."""
    from flamma.experiments.run import run

    config = make_config(SMALL | {"strategy": "fedavg", "per_round": 3})
    done = run(config, out=tmp_path / "run")
    assert bench.value([0, 1, 2]).accuracy == done.history[-1].metric("test_accuracy")


def test_a_study_is_the_same_resumed_and_with_processes(tmp_path):
    config = make_config(SMALL)
    told = []
    first = study_contributions(
        config, out=tmp_path / "a", seeds=1, processes=1, on_job=lambda *at: told.append(at)
    )
    jobs = 8 + 1 + 3 * len(UPDATE_DEVIATIONS)
    assert told == [(k, jobs) for k in range(1, jobs + 1)]
    whole = (tmp_path / "a" / FINISHED_JOBS).read_text()
    folder = tmp_path / "b"
    folder.mkdir()
    (folder / FINISHED_JOBS).write_text(whole[: len(whole) // 2])  # killed in the middle of a line
    (folder / "config.toml").write_text((tmp_path / "a" / "config.toml").read_text())
    told.clear()
    second = study_contributions(
        config, out=folder, seeds=1, processes=2, on_job=lambda *at: told.append(at)
    )
    assert 0 < len(told) < jobs
    np.testing.assert_array_equal(first.exact, second.exact)
    for name, result in first.measures.items():
        np.testing.assert_array_equal(result.contributions, second.measures[name].contributions)
        assert result.earned == second.measures[name].earned
    np.testing.assert_allclose(first.exact.sum(), _gain(tmp_path / "a"))
    assert (folder / "contributions.csv").read_text().startswith("measure,needs_validation,")


def _gain(folder):
    """Return what all clients together gain over the initial model."""
    lines = [json.loads(line) for line in (folder / FINISHED_JOBS).read_text().split("\n") if line]
    values = {line["job"]: line["value"]["accuracy"] for line in lines if "value" in line}
    return values["seed 0: 7"] - values["seed 0: 0"]


def test_a_coalition_that_diverged_has_a_large_loss(tmp_path):
    config = make_config(SMALL)
    study_contributions(config, out=tmp_path, measures=["cosine"], seeds=1, processes=1)
    file = tmp_path / FINISHED_JOBS
    diverged = {"job": "seed 0: 1", "value": {"accuracy": 10.0, "loss": math.nan}}
    file.write_text(file.read_text() + json.dumps(diverged) + "\n")  # the last line counts
    found = study_contributions(
        config, out=tmp_path, measures=["cosine"], seeds=1, processes=1, utility="loss"
    )
    assert np.isfinite(found.exact).all()
    assert found.exact[0, 0] < -10


def test_a_measure_that_was_not_asked_for_before_is_measured_alone(tmp_path):
    config, told = make_config(SMALL), []
    study_contributions(config, out=tmp_path, measures=["cosine"], seeds=1, processes=1)
    found = study_contributions(
        config,
        out=tmp_path,
        measures=["cosine", "cgsv"],
        seeds=1,
        processes=1,
        on_job=lambda done, of: told.append(done),
    )
    assert len(told) == 1 + 3 * len(UPDATE_DEVIATIONS)  # no coalition is trained again
    assert list(found.measures) == ["cosine", "cgsv"]


def test_another_configuration_or_impossible_ones_are_refused_in_one_sentence(tmp_path):
    study_contributions(make_config(SMALL), out=tmp_path, measures=["cosine"], seeds=1, processes=1)
    other = make_config(SMALL | {"rounds": 3})
    with pytest.raises(RunError, match="another configuration"):
        study_contributions(other, out=tmp_path, measures=["cosine"], seeds=1)
    for data, word in ({"clients": 40}, "2 to 14"), ({"validation_samples": 0}, "validation"):
        config = make_config({"data": data})
        with pytest.raises(ConfigError, match=word):
            study_contributions(config, out=tmp_path / "no", seeds=1)
    by_loss = make_config({"data": {"clients": 3}, "evaluation": {"metric": "loss"}})
    with pytest.raises(ConfigError, match="which loss is not"):
        study_contributions(by_loss, out=tmp_path / "no")
    with pytest.raises(ConfigError, match="at least 1 seed"):
        study_contributions(make_config(SMALL), out=tmp_path / "no", seeds=0)


def test_the_command_prints_a_table_and_json(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["contributions", "--clients", "3", "--train-samples", "150", "--model", "logistic"]
    words += ["--set", "data.validation_samples=40", "--rounds", "2", "--seeds", "1"]
    words += ["--measure", "gradient-shapley", "--measure", "cosine-rescaled quantile=0.5"]
    assert main([*words, "--processes", "1"]) == 0
    printed = capsys.readouterr().out
    assert "cosine-rescaled quantile=0.5" in printed
    assert "free-rider" in printed
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == json.loads((tmp_path / "out/contributions/contributions.json").read_text())
    assert len(told["exact_shapley"][0]) == 3
    assert main([*words, "--seeds", "0"]) == 2
