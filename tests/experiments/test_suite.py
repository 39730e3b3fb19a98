"""Suites: what they may be called, and what they must say."""

from __future__ import annotations

import json
import tomllib

import pytest

from flamma.cli import main
from flamma.errors import ConfigError
from flamma.experiments.comparison import compare
from flamma.experiments.suite import (
    narrowed,
    origin_notes,
    read_suite,
    suite_as_json,
    suite_as_lines,
    suite_names,
)
from flamma.strategies import FAMILIES, in_family

SUITE = {"seeds": 1, "strategies": ["fedavg"], "splits": ["iid"], "run": {"rounds": 1}}


@pytest.mark.parametrize("kind", ["strategies", "datasets", "splits"])
@pytest.mark.parametrize("name", ["/elsewhere", "..", "a/b", "x\n", "x" * 300])
def test_names_in_a_suite_do_not_lead_out_of_its_directory(kind, name, tmp_path):
    out = tmp_path / "out"
    if name == "/elsewhere":
        name = str(tmp_path / "elsewhere")
    override = {name: {"strategy": {"name": "fedavg"}}}
    with pytest.raises(ConfigError, match="cannot be the name of a folder"):
        compare({**SUITE, kind: [name], "overrides": override}, out=out)
    with pytest.raises(ConfigError, match="cannot be the name of a folder"):
        narrowed(read_suite(SUITE), **{kind: [name]})
    assert not list(tmp_path.iterdir())


def test_the_name_of_a_suite_does_not_lead_elsewhere():
    with pytest.raises(ConfigError, match="cannot be the name of a folder"):
        read_suite(SUITE | {"name": "../elsewhere"})


@pytest.mark.parametrize("text", ["", "# nothing", "seeds = 2", "[run]\nrounds = 3"])
def test_a_suite_that_names_nothing_to_compare_is_refused(text, tmp_path):
    path = tmp_path / "suite.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match="what it compares"):
        read_suite(path)


def test_a_suite_of_too_many_runs_is_refused_at_once():
    with pytest.raises(ConfigError, match="runs"):
        read_suite(SUITE | {"seeds": 2**62})


def test_seeds_follow_the_first_one():
    suite = read_suite(SUITE | {"first_seed": 1000, "seeds": 2})
    assert [(cell.seed, cell.config.seed) for cell in suite.cells()] == [(1000, 1000), (1001, 1001)]
    assert read_suite(tomllib.loads(suite.as_toml())) == suite
    assert list(narrowed(suite, 1).all_seeds()) == [1000]
    assert list(narrowed(suite, first_seed=7).all_seeds()) == [7, 8]
    assert suite_as_json(suite)["seeds"] == [1000, 1001]
    assert len(suite_as_json(suite)["cells"]) == 1


def test_the_text_of_a_suite_from_seed_0_does_not_name_it():
    assert "first_seed" not in read_suite(SUITE).as_toml()  # published tables have such texts


def test_a_negative_first_seed_is_refused():
    with pytest.raises(ConfigError, match="first_seed must be at least 0, not -1"):
        read_suite(SUITE | {"first_seed": -1})


def test_a_suite_whose_name_is_too_long_for_a_file_is_unknown():
    with pytest.raises(ConfigError, match="unknown suite"):
        read_suite("x" * 5000)


def test_a_family_in_a_suite_stands_for_its_members():
    suite = read_suite(SUITE | {"strategies": ["fedavg", "selection"]})
    assert suite.strategies == ("fedavg", *in_family("selection"))
    assert {cell.strategy for cell in suite.cells()} == set(suite.strategies)
    assert read_suite(tomllib.loads(suite.as_toml())) == suite


def test_a_suite_can_be_narrowed_to_a_family_with_its_overrides():
    overrides = {name: {"training": {"learning_rate": 0.3}} for name in ("qffl", "fedavg")}
    suite = read_suite(SUITE | {"strategies": ["fedavg", "qffl"], "overrides": overrides})
    narrow = narrowed(suite, strategies=["fairness"])
    assert narrow.strategies == tuple(in_family("fairness"))
    assert list(narrow.overrides) == ["qffl"]
    [config] = [cell.config for cell in narrow.cells() if cell.strategy == "qffl"]
    assert config.training.learning_rate == 0.3


def test_a_variant_may_be_called_like_a_family(tmp_path):
    label = {"selection": {"strategy": {"name": "fedavg"}}}
    suite = read_suite(SUITE | {"strategies": ["selection"], "overrides": label})
    assert suite.strategies == ("selection",)
    assert suite.cells()[0].config.strategy.name == "fedavg"
    extending = {"extends": "quick", "strategies": ["selection"], "overrides": label}
    assert read_suite(extending).strategies == ("selection",)


@pytest.mark.parametrize(
    ("name", "guess"), [("fairnes", "the family fairness"), ("flama", "flamma")]
)
def test_an_unknown_strategy_of_a_suite_suggests_the_nearest_of_both(name, guess):
    with pytest.raises(ConfigError, match=rf"unknown strategy '{name}': did you mean {guess}\?"):
        read_suite(SUITE | {"strategies": [name]}).cells()


def test_a_family_and_one_of_its_members_twice_are_refused():
    with pytest.raises(ConfigError, match="each once"):
        read_suite(SUITE | {"strategies": ["fairness", "fedavg", "fedavg"]})


PAIRED = {
    "seeds": 1,
    "strategies": ["fedavg"],
    "pairs": [["digits", "shards"], ["mnist", "dirichlet"]],
    "overrides": {"mnist": {"per_round": 7}, "dirichlet": {"data": {"alpha": 0.3}}},
}


def places(suite):
    return [(cell.dataset, cell.split) for cell in suite.cells()]


def test_pairs_of_a_suite_say_which_dataset_has_which_split():
    suite = read_suite(PAIRED)
    assert places(suite) == [("digits", "shards"), ("mnist", "dirichlet")]
    assert (suite.datasets, suite.splits) == (("digits", "mnist"), ("shards", "dirichlet"))
    digits, mnist = (cell.config for cell in suite.cells())
    assert (digits.per_round, mnist.per_round) == (3, 7)
    assert mnist.data.split.options["alpha"] == 0.3
    assert read_suite(tomllib.loads(suite.as_toml())) == suite


def test_a_suite_of_pairs_is_narrowed_by_either_and_takes_others_with_all():
    suite = read_suite(PAIRED)
    assert places(narrowed(suite, datasets=["mnist"])) == [("mnist", "dirichlet")]
    assert places(narrowed(suite, splits=["shards"])) == [("digits", "shards")]
    assert places(narrowed(suite, splits=["iid"])) == [("digits", "iid"), ("mnist", "iid")]
    assert places(narrowed(suite, datasets=["digits"], splits=["iid"])) == [("digits", "iid")]
    with pytest.raises(ConfigError, match="none of the pairs"):
        narrowed(suite, datasets=["digits"], splits=["dirichlet"])


@pytest.mark.parametrize("pairs", [[["digits"]], [["digits", "iid", "mnist"]], ["digits"], 3])
def test_pairs_that_are_none_are_refused(pairs):
    with pytest.raises(ConfigError, match=r"suite\.pairs must"):
        read_suite(PAIRED | {"pairs": pairs})


def test_the_suite_of_families_has_every_strategy_on_both_settings():
    suite = read_suite("family")
    # Asynchronous ones are compared by time, not by rounds.
    families = [family for family in FAMILIES if family not in ("other", "asynchronous")]
    assert set(suite.strategies) == {name for family in families for name in in_family(family)}
    assert suite.compared_pairs() == [("digits", "shards"), ("mnist", "dirichlet")]
    digits, mnist = (
        next(cell.config for cell in suite.cells() if cell.dataset == name)
        for name in ("digits", "mnist")
    )
    assert (digits.data.clients, digits.per_round, digits.rounds) == (10, 3, 30)
    assert (mnist.data.clients, mnist.per_round, mnist.rounds) == (100, 10, 60)
    assert mnist.data.train_samples == 6000
    assert len({cell.config.data.validation_samples for cell in suite.cells()}) == 1


OF_SETTINGS = {
    "seeds": 2,
    "strategies": ["fedavg", "flamma"],
    "run": {"rounds": 9, "data": {"dataset": "digits"}},
    "settings": {
        "few": {"per_round": 2, "data": {"split": "iid", "clients": 4}},
        "skewed.1": {"data": {"dataset": "mnist", "split": "dirichlet", "alpha": 0.1}},
    },
    "overrides": {
        "few": {"rounds": 5},
        "few/flamma": {"training": {"learning_rate": 0.4}},
        "flamma": {"per_round": 1},
    },
}


def test_a_setting_is_in_the_place_of_a_dataset_and_its_split():
    suite = read_suite(OF_SETTINGS)
    assert suite.compared_pairs() == [("few", "iid"), ("skewed.1", "dirichlet")]
    cells = {(c.dataset, c.strategy, c.seed): c for c in suite.cells()}
    assert len(cells) == 8
    few, skewed = cells["few", "flamma", 1], cells["skewed.1", "fedavg", 0]
    assert few.folder.as_posix() == "runs/few/iid/flamma/seed-1"
    assert (few.config.data.dataset, few.config.data.clients, few.config.seed) == ("digits", 4, 1)
    # The setting is put over what all share, and overrides over the setting.
    assert (few.config.rounds, few.config.per_round) == (5, 1)
    assert few.config.training.learning_rate == 0.4
    assert (skewed.config.data.dataset, skewed.config.rounds) == ("mnist", 9)
    assert skewed.config.data.split.options == {"alpha": 0.1}
    assert read_suite(tomllib.loads(suite.as_toml())) == suite


def test_settings_are_chosen_by_name_dataset_or_split():
    suite = read_suite(OF_SETTINGS)
    for only in ({"datasets": ["skewed.1"]}, {"datasets": ["mnist"]}, {"splits": ["dirichlet"]}):
        narrow = narrowed(suite, 1, **only)
        assert list(narrow.settings) == ["skewed.1"]
        assert list(narrow.overrides) == ["flamma"]
        assert places(narrow) == [("skewed.1", "dirichlet")] * 2
    with pytest.raises(ConfigError, match=r"unknown setting 'fwe': did you mean few\?"):
        narrowed(suite, datasets=["fwe"])
    with pytest.raises(ConfigError, match="no setting"):
        narrowed(suite, datasets=["few"], splits=["dirichlet"])


def test_a_suite_adds_settings_to_those_it_extends_or_takes_some(tmp_path):
    (tmp_path / "base.toml").write_text(read_suite(OF_SETTINGS).as_toml())
    more = tmp_path / "more.toml"
    more.write_text('extends = "base.toml"\n[settings.many]\ndata = {clients = 30}\n')
    suite = read_suite(more)
    assert list(suite.settings) == ["few", "skewed.1", "many"]
    assert set(suite.overrides) == {"few", "few/flamma", "flamma"}
    more.write_text('extends = "base.toml"\nsettings = ["few"]\n')
    assert places(read_suite(more)) == [("few", "iid")] * 4
    more.write_text('extends = "quick"\n[settings.many]\ndata = {split = "iid"}\n')
    assert {cell.dataset for cell in read_suite(more).cells()} == {"many"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"splits": ["iid"]}, "settings or splits, not both"),
        ({"settings": {"few": 3}}, r"suite\.settings\.few must be a table"),
        ({"settings": ["few"]}, "unless the suite extends another"),
        ({"settings": {"../few": {"rounds": 3}}}, "cannot be the name of a folder"),
    ],
)
def test_settings_that_cannot_be_are_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        read_suite(OF_SETTINGS | {"overrides": {}} | change)


def test_the_grid_is_divided_into_two_parts():
    grid = set(read_suite("grid").settings)
    development, held_back = (
        set(read_suite(f"grid-{part}").settings) for part in ("development", "held-back")
    )
    assert len(held_back) == 8
    assert len(development) >= 16
    assert not development & held_back
    assert development | held_back == grid


# Settings in layers: a flag beats an override, an override beats the suite, and it is told.

SUITE_LAYERS = {
    "seeds": 2,
    "strategies": ["fedavg", "fedprox"],
    "splits": ["iid"],
    "run": {"rounds": 4, "training": {"learning_rate": 0.3, "epochs": 2}, "model": "logistic"},
    "overrides": {
        "fedavg": {"training": {"learning_rate": 0.2}},
        "fedprox": {"strategy": {"mu": 0.5}, "model": {"name": "mlp", "hidden": [7]}},
    },
}


def origins(suite, strategy):
    [cell] = [c for c in suite.cells() if c.strategy == strategy and c.seed == 0]
    return {s.name: (s.value, s.origin, s.part) for s in suite.traced(cell)}


def test_a_flag_beats_what_a_suite_overrides_for_a_strategy():
    flagged = narrowed(read_suite(SUITE_LAYERS), settings={"training.learning_rate": 0.01})
    assert {cell.config.training.learning_rate for cell in flagged.cells()} == {0.01}
    assert {c.config.training.learning_rate for c in read_suite(SUITE_LAYERS).cells()} == {0.2, 0.3}


def test_every_setting_tells_where_it_comes_from():
    suite = narrowed(read_suite(SUITE_LAYERS), settings={"training.batch_size": 8})
    fedavg, fedprox = origins(suite, "fedavg"), origins(suite, "fedprox")
    assert fedavg["training.learning_rate"] == (0.2, "override", "fedavg")
    assert fedprox["training.learning_rate"] == (0.3, "suite", "")
    assert fedavg["training.batch_size"] == (8, "flag", "")
    assert fedavg["training.momentum"] == (0.0, "default", "")
    assert fedprox["strategy.mu"] == (0.5, "override", "fedprox")
    assert fedprox["model.hidden"][1:] == ("override", "fedprox")
    assert fedavg["data.dataset"] == ("digits", "suite", "")


def test_a_flag_that_names_another_model_takes_no_options_of_the_override():
    flagged = narrowed(read_suite(SUITE_LAYERS), settings={"model.name": "lenet5"})
    assert {cell.config.model.name for cell in flagged.cells()} == {"lenet5"}
    assert origins(flagged, "fedprox")["strategy.mu"][0] == 0.5


def test_flags_are_kept_in_the_text_of_a_suite_and_a_suite_without_has_none():
    flagged = narrowed(read_suite(SUITE_LAYERS), settings={"training.learning_rate": 0.01})
    assert read_suite(tomllib.loads(flagged.as_toml())) == flagged
    assert "flags" not in read_suite(SUITE_LAYERS).as_toml()


def test_steps_that_were_tuned_for_digits_stay_with_digits():
    quick = read_suite("quick")
    steps = {c.strategy: c.config.training.learning_rate for c in quick.cells()}
    assert steps["fedavg"] == steps["fedprox"] == 0.1
    assert steps["flamma"] == 0.05
    elsewhere = narrowed(quick, datasets=["mnist"])
    assert {c.config.training.learning_rate for c in elsewhere.cells()} == {0.05}
    assert {"q": 0.1} not in [s.get("strategy") for s in elsewhere.overrides.values()]


@pytest.mark.parametrize("name", suite_names())
def test_no_suite_of_ours_has_steps_for_datasets_it_does_not_name(name):
    suite = read_suite(name)
    own = {n for n, o in suite.overrides.items() if "learning_rate" in o.get("training", {})}
    assert {n.partition("/")[0] for n in own} <= set(suite.datasets)


def test_what_would_run_is_told_with_what_a_flag_beats():
    suite = narrowed(read_suite(SUITE_LAYERS), settings={"training.learning_rate": 0.01})
    lines = suite_as_lines(suite)
    assert lines[0].startswith("4 runs")
    assert "  training.learning_rate = 0.01  (flag instead of 0.2 for fedavg)" in lines
    assert "  strategy.mu = 0.5  (override fedprox)" in lines
    flags, overrides = origin_notes(suite)
    assert flags == (
        "From flags, for all runs, over what the suite has for fedavg: training.learning_rate 0.01."
    )
    assert "strategy.mu 0.5 for fedprox" in overrides
    assert "learning_rate" not in overrides
    cells = suite_as_json(suite)["cells"]
    assert [cell["strategy"] for cell in cells] == ["fedavg", "fedprox"]
    [mu] = [s for s in cells[1]["settings"] if s["name"] == "strategy.mu"]
    assert mu == {"name": "strategy.mu", "value": 0.5, "origin": "override", "for": "fedprox"}


def test_show_suite_prints_a_suite_that_can_be_read_back(capsys):
    arguments = ["compare", "--show-suite", "--learning-rate", "0.01", "--strategies", "fedavg"]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    asked = narrowed(
        read_suite("quick"), settings={"training.learning_rate": 0.01}, strategies=["fedavg"]
    )
    assert read_suite(tomllib.loads(text)) == asked
    assert "(flag instead of 0.1 for digits/fedavg)" in text
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"] == 6
