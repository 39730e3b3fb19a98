"""Configurations: complete, re-readable, and frank about what is wrong."""

from __future__ import annotations

import subprocess
import sys
import tomllib

import pytest

from flamma.clients.costs import COSTS
from flamma.contributions import CONTRIBUTIONS
from flamma.data.splits import SPLITS
from flamma.errors import ConfigError
from flamma.experiments.config import make_config, read_config, with_settings
from flamma.experiments.engine import ENGINES
from flamma.models import MODELS
from flamma.registry import Choice, options_of, parse_value, to_toml
from flamma.strategies import STRATEGIES


@pytest.mark.parametrize("name", list(STRATEGIES))
def test_a_written_configuration_reads_back_the_same(tmp_path, name):
    model = {"name": "resnet18", "width": 0.5}
    tables = {"rounds": 7, "strategy": {"name": name}, "model": model}
    config = make_config(tables)
    file = tmp_path / "config.toml"
    file.write_text(config.as_toml(), encoding="utf-8")
    again = make_config(read_config(file))
    assert again == config


def test_it_is_complete():
    tables = tomllib.loads(make_config({}).as_toml())
    assert tables["strategy"]["decay_start"] == 0.3
    assert tables["strategy"]["epoch_bounds"] == [1, 10]
    assert set(tables) == {
        *("rounds", "per_round", "seed", "data", "model", "training", "strategy"),
        *("costs", "engine", "faults", "evaluation", "behaviours"),
    }


def test_text_survives_toml():
    text = 'quote " backslash \\ tab \t newline \n umlaut ü emoji 🙂'
    assert tomllib.loads(to_toml({"t": {"x": text}}))["t"]["x"] == text


BAD = {
    "unknown key": ({"ruonds": 5}, "did you mean rounds?"),
    "unknown key in a table": ({"data": {"clinets": 5}}, "did you mean clients?"),
    "unknown option": ({"strategy": {"name": "flamma", "decay_strat": 1}}, "decay_start?"),
    "option of another": ({"strategy": {"name": "fedavg", "mu": 1}}, "unknown key in strategy"),
    "unknown strategy": ({"strategy": {"name": "flama"}}, "did you mean flamma?"),
    "text for a number": ({"rounds": "many"}, "rounds must be a whole number"),
    "fraction for a count": ({"rounds": 2.5}, "rounds must be a whole number"),
    "truth for a count": ({"rounds": True}, "rounds must be a whole number"),
    "number for a text": ({"data": {"dataset": 3}}, "data.dataset must be a text"),
    "value for a table": ({"data": 3}, "data must be a table"),
    "not finite": ({"training": {"learning_rate": float("nan")}}, "finite"),
    "no rounds": ({"rounds": 0}, "rounds must be at least 1"),
    "more selected than there are": ({"per_round": 11}, "there are only 10 clients"),
    "negative seed": ({"seed": -1}, "seed"),
    "negative step": ({"training": {"learning_rate": -0.1}}, "learning_rate must be positive"),
    "momentum": ({"training": {"momentum": 1.0}}, "momentum"),
    "no processes": ({"engine": {"processes": 0}}, "engine.processes"),
    "engine": ({"engine": {"name": "flwer"}}, "unknown engine 'flwer': did you mean flower?"),
    "choice": ({"strategy": {"selection": "best"}}, "top, sample or uniform, not 'best'"),
    "two kinds": ({"strategy": {"rotation": "half"}}, "a number or gamma, not 'half'"),
    "pair": ({"strategy": {"epoch_bounds": [1, 2, 3]}}, "2 entries"),
    "split": ({"data": {"split": "shard"}}, "unknown split 'shard': did you mean shards?"),
    "option of a split": ({"data": {"shards_per_clients": 3}}, "did you mean shards_per_client?"),
    "option of a model": ({"model": {"name": "mlp", "width": 2.0}}, "unknown key in model 'width'"),
    "cost": ({"costs": {"kind": "lognorm"}}, "did you mean lognormal?"),
    "option of costs": ({"costs": {"kind": "lognormal", "spred": 1}}, "did you mean spread?"),
    "contribution": ({"strategy": {"contribution": "cosin"}}, "did you mean cosine?"),
    "aggregator": ({"strategy": {"aggregator": {"name": "mean", "x": 1}}}, "aggregator 'x'"),
    "wait": ({"engine": {"name": "flower", "wait": 0}}, "engine.wait"),
    "dropout": ({"faults": {"dropout": 1.5}}, "dropout"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_work_is_said_in_one_sentence(case):
    tables, expected = BAD[case]
    with pytest.raises(ConfigError) as caught:
        make_config(tables)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_settings_win_over_tables_and_do_not_change_them():
    tables = {"data": {"clients": 4}}
    merged = with_settings(tables, {"data.clients": 5, "strategy.name": "qffl"})
    assert merged == {"data": {"clients": 5}, "strategy": {"name": "qffl"}}
    assert tables == {"data": {"clients": 4}}
    with pytest.raises(ConfigError, match="not a table"):
        with_settings({"rounds": 5}, {"rounds.deep": 1})


def test_values_on_the_command_line():
    assert [parse_value(t) for t in ("1", "1.5", "true", "[1, 5]", "top", '"3"', "a=b")] == [
        *(1, 1.5, True, [1, 5], "top", "3", "a=b"),
    ]


def test_broken_toml_names_the_file(tmp_path):
    file = tmp_path / "broken.toml"
    file.write_text("rounds = = 3")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        read_config(file)


def test_a_table_may_have_options_of_other_splits_and_costs():
    # As in a suite that compares splits.
    tables = {
        "data": {"split": "iid", "shards_per_client": 3, "classes_per_client": 4, "alpha": 0.1},
        "costs": {"kind": "constant", "value": 0.2, "spread": 0.5, "file": ""},
        "engine": {"name": "local", "processes": 2, "time_limit": 0.0, "wait": 3600.0},
    }
    config = make_config(tables)
    assert config.data.split == Choice("iid", {"uneven": 0.0})
    assert config.costs == Choice("constant", {"value": 0.2})
    assert config.as_tables()["engine"] == {"name": "local", "processes": 2, "time_limit": 0.0}


def test_a_choice_inside_a_strategy_is_a_name_or_a_table(tmp_path):
    def closeness(update, *, power: float = 1.0):
        """Return one thing or another.

        Parameters
        ----------
        power : float
            How much.
        """
        return 1.0

    CONTRIBUTIONS.add("closeness", closeness)
    try:
        assert options_of(closeness)["power"].help == "How much."
        config = make_config({"strategy": {"contribution": {"name": "closeness", "power": 2}}})
        assert config.strategy.contribution == Choice("closeness", {"power": 2.0})
        (tmp_path / "c.toml").write_text(config.as_toml(), encoding="utf-8")
        assert make_config(read_config(tmp_path / "c.toml")) == config
        assert make_config({"strategy": {"contribution": "closeness"}}).strategy.contribution == (
            Choice("closeness", {"power": 1.0})
        )
    finally:
        CONTRIBUTIONS.discard("closeness")


def test_reading_a_configuration_does_not_import_torch():
    script = (
        "import sys; from flamma.experiments.config import make_config\n"
        "make_config({'model': {'name': 'resnet18', 'width': 0.5}}); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


TABLES = {
    "data": SPLITS,
    "model": MODELS,
    "strategy": STRATEGIES,
    "costs": COSTS,
    "engine": ENGINES,
}
OPTIONS = [
    (table, key, option)
    for table, registry in TABLES.items()
    for key in ["split" if table == "data" else "kind" if table == "costs" else "name"]
    for option in registry.option_owners()
]


def misspelt(option: str) -> str:
    """Return the option with its last two different neighbours swapped, or a letter too many."""
    for at in range(len(option) - 1, 0, -1):
        if option[at] != option[at - 1]:
            return option[: at - 1] + option[at] + option[at - 1] + option[at + 1 :]
    return option * 2


@pytest.mark.parametrize(("table", "key", "option"), OPTIONS, ids=lambda text: text)
def test_a_misspelt_option_is_suggested_whichever_entry_has_it_and_which_is_chosen(
    table, key, option
):
    for chosen in TABLES[table]:
        for tables in (
            {table: {key: chosen, misspelt(option): 1}},
            with_settings({table: {key: chosen}}, {f"{table}.{misspelt(option)}": 1}),
        ):
            with pytest.raises(ConfigError, match=rf"key in {table} .*did you mean {option}\b"):
                make_config(tables)


@pytest.mark.parametrize(("table", "key", "option"), OPTIONS, ids=lambda text: text)
def test_an_option_outside_its_table_is_told_which_table_is_meant(table, key, option):
    with pytest.raises(ConfigError, match=rf"did you mean \w+\.{option}\?"):
        make_config({option: 1})


def test_an_option_of_another_strategy_is_said_to_be_one():
    with pytest.raises(ConfigError, match=r"in strategy 'mu': .*an option of fedprox"):
        make_config({"strategy": {"name": "fedavg", "mu": 1}})


@pytest.mark.parametrize("table", TABLES)
def test_the_key_that_names_an_entry_is_suggested_too(table):
    key = {"data": "split", "costs": "kind"}.get(table, "name")
    with pytest.raises(ConfigError, match=rf"did you mean {key}\?"):
        make_config({table: {misspelt(key): "x"}})
