"""Searching for options: on data of its own, resumable, and told honestly."""

from __future__ import annotations

import json

import numpy as np
import pytest

from flamma.cli import main
from flamma.data.federated import from_arrays, without_held_out
from flamma.errors import ConfigError, FlammaError, RunError
from flamma.experiments.config import make_config, read_config
from flamma.experiments.run import Run
from flamma.experiments.tune import tune

SMALL = {
    "rounds": 3,
    "per_round": 2,
    "seed": 1000,
    "data": {"dataset": "digits", "clients": 4, "train_samples": 200, "validation_samples": 0},
    "model": "logistic",
    "strategy": {"name": "flamma", "warmup_iterations": 1},
}


def numbered(clients=3, each=20):
    """Clients whose every sample is a number of its own."""
    total = clients * each
    parts = np.split(np.arange(2.0 * total).reshape(total, 2), clients)
    held = [(np.full((5, 2), -1.0 - k), np.zeros(5)) for k in range(clients)]
    return from_arrays([(x, np.arange(each) % 2) for x in parts], held)


def test_the_view_holds_nothing_of_the_held_out_data_and_loses_nothing_of_the_rest():
    data = numbered()
    view = without_held_out(data, 0.25, seed=3)
    assert view.samples.tolist() == [15, 15, 15]
    assert np.diff(view.held_offsets).tolist() == [5, 5, 5]
    assert view.held_x.min() >= 0  # the held-out data are negative
    for client in range(3):
        train = view.train_x[view.train_offsets[client] : view.train_offsets[client + 1]]
        held = view.held_x[view.held_offsets[client] : view.held_offsets[client + 1]]
        own = data.train_x[data.train_offsets[client] : data.train_offsets[client + 1]]
        together = np.concatenate((train, held))
        np.testing.assert_array_equal(together[np.argsort(together[:, 0])], own)
    other = without_held_out(data, 0.25, seed=4)
    assert not np.array_equal(view.held_x, other.held_x)


@pytest.mark.parametrize("objective", ["fair", "mean"])
def test_a_loss_is_made_small_and_the_score_says_so(tmp_path, objective):
    config = make_config(SMALL | {"evaluation": {"metric": "loss"}})
    grid = {"training.learning_rate": [1e-6, 0.02]}
    found = tune(config, out=tmp_path, grid=grid, objective=objective)
    losses = {}
    for trial in found.trials:
        rounds = Run.load(tmp_path / "trials" / f"{trial['number']:04d}").history
        means = [record.metric("accuracy") for record in rounds]
        spreads = [record.metric("accuracy_std") * (objective == "fair") for record in rounds]
        losses[trial["number"]] = np.mean(means) + np.mean(spreads)
        assert trial["score"] == pytest.approx(-losses[trial["number"]])
    assert found.score == pytest.approx(-min(losses.values()))
    assert max(losses.values()) > min(losses.values())
    told = {"mean": "negative mean loss", "fair": "negative sum of mean loss and its standard"}
    assert found.scored_by.startswith(told[objective])


def test_a_grid_is_tried_out_and_the_best_kept(tmp_path):
    seen = []
    grid = {"training.learning_rate": [1e-6, 0.1], "strategy.decay_start": [0.5, 1.0]}
    found = tune(
        make_config(SMALL),
        out=tmp_path,
        grid=grid,
        on_trial=lambda number, options, score: seen.append((options, score)),
    )
    assert len(seen) == len(found.trials) == 4
    assert found.score == max(score for _, score in seen)
    assert found.options["training.learning_rate"] == 0.1  # the other one learns nothing
    best = make_config(read_config(tmp_path / "best.toml"))
    assert best.as_toml() == found.config.as_toml()
    assert best.data.dataset == "digits"
    assert json.loads((tmp_path / "trials.json").read_text()) == found.trials


def test_it_goes_on_where_it_stopped_and_refuses_another_search(tmp_path):
    def stop(number, options, score):
        raise KeyboardInterrupt

    grid = {"training.learning_rate": [0.02, 0.1, 0.2]}
    with pytest.raises(KeyboardInterrupt):
        tune(make_config(SMALL), out=tmp_path, grid=grid, on_trial=stop)
    later = []
    found = tune(
        make_config(SMALL), out=tmp_path, grid=grid, on_trial=lambda *trial: later.append(trial)
    )
    assert len(later) == 2
    tried = [trial["options"]["training.learning_rate"] for trial in found.trials]
    assert sorted(tried) == [0.02, 0.1, 0.2]
    with pytest.raises(RunError, match="another search"):
        tune(make_config(SMALL | {"rounds": 4}), out=tmp_path, grid=grid)


def test_what_cannot_be_set_is_said_before_the_first_trial(tmp_path):
    with pytest.raises(ConfigError, match="did you mean learning_rate"):
        tune(make_config(SMALL), out=tmp_path, grid={"training.learning_rat": [1]})
    assert not (tmp_path / "trials").exists()


def test_the_command_searches_what_the_strategy_has(tmp_path, capsys):
    flags = "--model logistic --rounds 3 --clients 4 --per-round 2 --train-samples 200"
    command = ["tune", *flags.split(), "--trials", "3", "--json"]
    assert main([*command, "--strategy", "fedavg", "--out", str(tmp_path / "a")]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["options"].keys() == {"training.learning_rate"}
    assert main([*command, "--strategy", "flamma", "--out", str(tmp_path / "b")]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["options"].keys() == {
        "training.learning_rate",
        "strategy.decay_start",
        "costs.value",
    }
    assert make_config(read_config(tmp_path / "b" / "best.toml")).seed == 1000


def test_every_point_of_a_grid_is_checked_before_the_first_trial(tmp_path):
    with pytest.raises(FlammaError, match=r"decay_start=? must lie in \(0, 1\], not 7"):
        tune(grid={"strategy__decay_start": [0.1, 7.0]}, rounds=1, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
