"""Configurations: complete, re-readable, and frank about what is wrong."""

from __future__ import annotations

import inspect
import subprocess
import sys
import tomllib

import numpy as np
import pytest

import flamma
from flamma.clients.costs import COSTS
from flamma.contributions import CONTRIBUTIONS
from flamma.data.federated import from_arrays
from flamma.data.splits import SPLITS
from flamma.errors import ConfigError, RunError, naming_settings
from flamma.experiments.config import (
    ConfigTables,
    keys_of_tables,
    make_config,
    read_config,
    with_settings,
)
from flamma.experiments.engine import ENGINES
from flamma.experiments.run import resume, run
from flamma.experiments.settings import CONFIG_TABLES, SETTINGS, flag_of, keyword_of
from flamma.experiments.user_objects import Asked
from flamma.models import MODELS
from flamma.registry import Choice, options_of, parse_value, to_toml
from flamma.strategies import STRATEGIES
from flamma.strategies.base import Offer
from flamma.strategies.drift import Scaffold
from flamma.strategies.fedavg import FedAvg
from flamma.strategies.flamma import Flamma
from flamma.strategies.loss_weights import QFFL
from flamma.strategies.markets import Pricing
from flamma.training.optimisers import SCHEDULES
from flamma.types import Plan, Population, Profile, Terms, Update


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
    "negative step": ({"training": {"learning_rate": -0.1}}, "learning_rate must be above 0"),
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


# Optimisers, schedules, clipping and augmentation in configurations and in whole runs.

TRAINING = {"learning_rate": 0.05, "epochs": 1}
SMALL = {
    "rounds": 3,
    "per_round": 2,
    "data": {"clients": 4, "train_samples": 120, "validation_samples": 20},
    "model": "mlp",
    "strategy": "fedavg",
}
ALL = {
    "optimiser": {"name": "adam", "betas": [0.8, 0.99]},
    "weight_decay": 0.01,
    "clip": 2,
    "schedule": {"name": "cosine", "warm_up": 1},
    "augmentation": ["flip", {"name": "crop", "padding": 1}],
}


def small(**training):
    return {**SMALL, "training": {**TRAINING, **training}}


def test_options_at_their_defaults_are_not_written_so_ids_stay():
    table = tomllib.loads(make_config({}).as_toml())["training"]
    assert list(table) == [
        *("epochs", "batch_size", "learning_rate", "momentum", "trainer", "device", "precision"),
    ]
    spelled_out = {
        "optimiser": {"name": "sgd"},
        "weight_decay": 0,
        "schedule": "constant",
        "augmentation": [],
    }
    assert make_config({"training": spelled_out}) == make_config({})


def test_options_read_back_the_same():
    config = make_config({"training": ALL})
    assert make_config(tomllib.loads(config.as_toml())) == config
    assert config.training.as_table()["optimiser"]["betas"] == (0.8, 0.99)
    assert config.with_settings({"training.clip": 3.0}).training.clip == 3.0


def test_both_spellings_are_understood():
    assert make_config(small(optimizer="adam")) == make_config(small(optimiser="adam"))
    with pytest.raises(ConfigError, match="leave one of them out"):
        make_config(small(optimizer="adam", optimiser="sgd"))


@pytest.mark.parametrize(
    ("training", "words"),
    [
        ({"optimiser": "adam2"}, "did you mean adam"),
        ({"optimiser": {"name": "adam", "beta": 1}}, "did you mean betas"),
        ({"optimiser": "adamw"}, "without weight decay is adam"),
        ({"optimiser": "adam", "momentum": 0.9}, "momentum is that of the optimiser sgd"),
        ({"clip": -1}, "clip must be above 0"),
        ({"weight_decay": -1}, "weight_decay must lie in"),
        ({"schedule": "cosin"}, "did you mean cosine"),
        ({"schedule": {"name": "step", "ratio": 2}}, "schedule.ratio must lie in"),
        ({"augmentation": {"name": "flip", "chance": -1}}, "augmentation.chance must lie in"),
        ({"trainer": "lans"}, "did you mean lanes"),
    ],
)
def test_what_cannot_work_is_said_in_one_sentence_training_options(training, words):
    with pytest.raises(ConfigError, match=words) as caught:
        make_config({"training": training})
    assert "\n" not in str(caught.value)


def test_strategies_that_read_gradients_need_sgd():
    with pytest.raises(ConfigError, match=r"use training\.optimiser sgd"):
        make_config({**small(optimiser="adam"), "strategy": "scaffold"})


@pytest.mark.parametrize(
    ("training", "trainer"),
    [
        ({"weight_decay": 0.1}, "lanes"),
        ({"clip": 0.1}, "lanes"),
        ({"schedule": "cosine"}, "lanes"),
        ({"optimiser": "adam"}, "torch"),
        ({"augmentation": "crop"}, "lanes"),
    ],
)
def test_every_option_changes_the_run_and_processes_do_not(tmp_path, training, trainer):
    plain = run(small(trainer=trainer), out=tmp_path / "plain")
    changed = run(small(**training), out=tmp_path / "changed")
    assert changed.about["trainer"] == trainer
    assert not any(record.outcome.failed for record in changed.history)
    assert changed.params_sha256 != plain.params_sha256
    again = run(small(**training), out=tmp_path / "again", engine__processes=2)
    assert again.params_sha256 == changed.params_sha256


def noisy(samples, rng):
    return samples + 0.1 * rng.standard_normal(samples.shape)


def test_a_function_augments_and_is_needed_again(tmp_path):
    done = run(small(), out=tmp_path / "run", augment=noisy)
    assert done.config.training.has_own_augmentation
    assert done.params_sha256 != run(small(trainer="torch"), out=tmp_path / "x").params_sha256

    def stop(record):
        if record.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(small(), out=tmp_path / "cut", augment=noisy, on_round=stop)
    with pytest.raises(RunError, match="augment="):
        resume(tmp_path / "cut")
    assert resume(tmp_path / "cut", augment=noisy).params_sha256 == done.params_sha256


def test_one_that_does_not_fit_the_samples_is_refused_before_the_first_round(tmp_path):
    one = np.zeros((8, 3)), np.arange(8) % 2
    data = from_arrays(clients=[one, one], held_out=[one, one])
    with pytest.raises(ConfigError, match="is for pictures"):
        run(small(augmentation="flip"), out=tmp_path / "run", data=data)


def test_clients_in_other_processes_need_a_name_for_it():
    with pytest.raises(ConfigError, match="entry point"):
        make_config({**small(augmentation="own"), "engine": "flower"})


def test_a_schedule_multiplies_what_a_strategy_offers():
    plan = Plan(9, 1, learning_rate=0.4, schedule=SCHEDULES["step"](every=2))
    profile = Profile(0, 0.1, 10)
    terms = [Terms(0, number, 0.9, 0.8, step_scale=0.5) for number in (0, 1, 2, 3, 5)]
    for strategy in (FedAvg(plan), Flamma(plan)):
        rates = [strategy.respond(own, profile).learning_rate for own in terms]
        assert rates == [0.2, 0.2, 0.2, 0.1, 0.05]


@pytest.mark.parametrize("strategy", [Scaffold, QFFL, Pricing])
def test_strategies_that_divide_by_the_step_size_divide_by_that_of_the_round(strategy):
    """A first round at half of 0.2 is one at 0.1."""
    halved = Plan(4, 2, epochs=1, learning_rate=0.2, schedule=SCHEDULES["warm-up"](1))
    states = []
    for plan in (halved, Plan(4, 2, epochs=1, learning_rate=0.1)):
        own = strategy(plan)
        samples = np.array([4, 4])
        state = own.init(np.ones(2, np.float32), Population(samples, np.array([0.1, 0.1]), 2))
        offer = Offer(1, (Terms(0, 1), Terms(1, 1)), probabilities=(0.5, 0.5))
        reports = [
            Update(client, np.array([0.5, client], np.float32), 4, 1, loss=1.0 + client)
            for client in range(2)
        ]
        states.append(own.aggregate(state, offer, reports)[0])
    for name, value in vars(states[0]).items():
        np.testing.assert_array_equal(value, getattr(states[1], name), err_msg=name)


# Keyword arguments from Python: what they stand for, and errors that name them.


def asked(**settings):
    return Asked.of({"settings": settings}).settings


@pytest.mark.parametrize("function", [flamma.run, flamma.tune, flamma.audit, flamma.compare])
def test_functions_have_one_shape_with_types_and_documentation(function):
    *named, settings = inspect.signature(function).parameters.values()
    assert len(named) <= 11
    assert settings.kind is settings.VAR_KEYWORD
    assert {"data", "model", "rounds", "out", "progress"} <= {p.name for p in named}
    documented = inspect.getdoc(function)
    assert all(p.name in documented and p.annotation is not p.empty for p in named)


@pytest.mark.parametrize(
    "name", sorted({*SETTINGS} - {"data", "loss", "freeze", "group", "target"})
)
def test_a_common_setting_is_one_of_the_configuration(name):
    values = {
        "strategy": "fedprox",
        "dataset": "mnist",
        "split": "iid",
        "task": "classification",
        "model": "mlp",
        "start": "/weights.npz",
        "augment": "flip",
        "engine": "local",
        "trainer": "torch",
        "metric": "auc",
        "learning_rate": 0.25,
        "momentum": 0.5,
        "device": "cpu",
        **dict.fromkeys(("dropout", "stragglers", "failures"), 0.25),
    }
    value = values.get(name, 2)
    config = make_config({"per_round": 1} | with_settings({}, asked(**{name: value})))
    found = config.as_tables()
    for part in SETTINGS[name].key.split("."):
        found = found[part]
    assert found == ([{"name": "flip", "chance": 0.5}] if name == "augment" else value)


def test_every_common_setting_has_a_key_of_the_configuration():
    known = {*keys_of_tables().values(), *CONFIG_TABLES, "rounds", "per_round", "seed"}
    named = {f"{table}.name" for table in ("strategy", "model", "engine")}
    assert {setting.key for setting in SETTINGS.values()} <= known | named
    assert {*CONFIG_TABLES, "rounds", "per_round", "seed"} == options_of(ConfigTables).keys()


def test_a_strategy_may_be_a_table_and_options_follow_a_name():
    table = {"name": "fedprox", "mu": 2}
    options = asked(strategy=table, strategy__mu=3)
    assert make_config(with_settings({}, options)).strategy.mu == 3
    assert table["mu"] == 2
    before = {"strategy": {"name": "flamma", "decay_start": 0.5}}
    assert make_config(with_settings(before, asked(strategy="fedavg"))).strategy.name == "fedavg"


@pytest.mark.parametrize(
    ("settings", "guess"),
    [
        ({"learning_rat": 0.1}, "argument learning_rat=: did you mean learning_rate=?"),
        ({"mu": 0.1}, "argument mu=: did you mean strategy__mu=?"),
        ({"alpha": 0.1}, "argument alpha=: did you mean data__alpha=?"),
        ({"per_rounds": 2}, "argument per_rounds=: did you mean per_round=?"),
        (
            {"training__learning_rat": 1},
            "key in training 'learning_rat': did you mean learning_rate=?",
        ),
    ],
)
def test_an_unknown_argument_is_answered_with_the_nearest_one(settings, guess):
    with pytest.raises(ConfigError) as caught:
        flamma.run(**settings)
    assert f"unknown {guess}" in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"per_round": 12}, "per_round= is 12, but there are only 10 clients: lower per_round="),
        ({"per_round": 12}, "raise clients=."),
        ({"rounds": 0}, "rounds= must be at least 1"),
        ({"learning_rate": -1.0}, "learning_rate= must be above 0"),
        ({"learning_rate": "fast"}, "learning_rate= must be a number, not 'fast'"),
        ({"processes": 0}, "processes= must lie in"),
        ({"evaluation__every": 0}, "evaluation__every="),
    ],
)
def test_errors_name_arguments_and_not_keys_or_flags(settings, text):
    with pytest.raises(ConfigError) as caught:
        flamma.run(**settings)
    assert text in str(caught.value)
    assert "--" not in str(caught.value)


def test_a_directory_that_is_taken_is_called_out(tmp_path):
    small = {"rounds": 1, "model": "logistic", "data__train_samples": 200}
    flamma.run(out=tmp_path / "one", **small)
    with pytest.raises(RunError) as caught:
        flamma.run(out=tmp_path / "one", **small)
    assert "--out" not in str(caught.value)


def test_an_audit_means_something_else_by_clients():
    with pytest.raises(ConfigError, match=r"how many there are is data__clients=\."):
        flamma.audit(clients=3)
    with pytest.raises(ConfigError, match="raise data__clients="):
        flamma.audit(per_round=30)
    with pytest.raises(ConfigError, match="by seeds=, and from which on by first_seed="):
        flamma.compare(seed=4)


def test_whoever_shows_an_error_names_its_settings():
    with pytest.raises(ConfigError) as caught:
        make_config({"per_round": 12})
    error = caught.value
    assert str(error) == (
        "per_round is 12, but there are only 10 clients: lower per_round or raise data.clients."
    )
    assert error.setting == "per_round"
    assert "lower --per-round or raise --clients." in error.sentence(flag_of)
    with pytest.raises(ConfigError, match="raise clients="), naming_settings(keyword_of):
        raise error
    with pytest.raises(KeyError, match=r"data\.clients"), naming_settings(keyword_of):
        raise KeyError("data.clients")


def test_an_unknown_key_has_its_nearest_one():
    with pytest.raises(ConfigError) as caught:
        make_config({"training": {"learning_rat": 1}})
    assert caught.value.nearest == "training.learning_rate"


def test_the_package_says_what_it_has():
    names = dir(flamma)
    assert {"run", "compare", "audit", "tune", "resume", "Run", "Comparison"} <= set(names)
    assert all(hasattr(flamma, name) for name in flamma.__all__)
    everything: dict[str, object] = {}
    exec("from flamma import *", everything)
    assert everything["compare"] is flamma.compare
