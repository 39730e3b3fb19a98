import json

import numpy as np
import pytest

import flamma
from flamma.cli import main
from flamma.clients.truth import TrueClients
from flamma.errors import ConfigError, StrategyError
from flamma.experiments.config import make_config
from flamma.experiments.folder import RunFolder
from flamma.experiments.private import REPEATED, check_private_model, private_rounds
from flamma.federation import Federation
from flamma.privacy import PrivacyConfig, PrivateRounds, epsilon_spent
from flamma.records import RoundRecord
from flamma.strategies import STRATEGIES
from flamma.strategies.base import State
from flamma.types import Plan, Population

TABLES = {
    "rounds": 3,
    "per_round": 3,
    "data": {"dataset": "digits", "clients": 6},
    "model": "logistic",
    "privacy": {"clip": 0.5, "noise_multiplier": 2.0},
}
REFUSED = {
    "losses": {"afl", "term", "qffl", "fedfv", "gifair", "adafed", "maxfl", "power-of-choice"}
    | {"oort", "fedfair3", "flamma-plus", "flamma-honest"},
    "noisy": {"cgsv", "cffl", "fedbuff", "central", "local"},
}
ONLY_THE_MEAN = {"fedavg", "fedprox", "propfair", "fedavgm", "fedadam", "fedyogi", "feddyn"} | {
    "ditto",
    "contract",
}


def tables(strategy="fedavg", **privacy):
    return TABLES | {"strategy": strategy, "privacy": TABLES["privacy"] | privacy}


def refusal(strategy, **privacy):
    try:
        make_config(tables(strategy, **privacy))
    except ConfigError as error:
        return str(error)
    return ""


def test_every_strategy_is_private_or_refused_in_a_sentence():
    refused = {name: refusal(name, noise_on="updates") for name in STRATEGIES}
    for word, names in REFUSED.items():
        assert {name for name, told in refused.items() if word in told} == names
    rest = {*STRATEGIES} - set.union(*REFUSED.values())
    assert {name for name in rest if refused[name]} == set()
    assert {name for name in STRATEGIES if not refusal(name)} == ONLY_THE_MEAN


def test_a_robust_aggregator_has_nothing_to_compare_in_a_mean():
    robust = {"name": "fedavg", "aggregator": "median"}
    assert "aggregator median compares" in refusal(robust)
    assert refusal(robust, noise_on="updates") == ""


def test_a_delta_that_allows_to_publish_a_client_is_refused():
    assert "set it below 0.166667" in refusal("fedavg", delta=0.2)


def test_a_run_tells_its_epsilon_and_repeats_itself(tmp_path, capsys):
    first = flamma.run(tables(), out=tmp_path / "first", progress=False)
    again = flamma.run(tables(), out=tmp_path / "again", progress=False)
    plain = flamma.run(tables() | {"privacy": {}}, out=tmp_path / "plain", progress=False)
    assert first.params_sha256 == again.params_sha256 != plain.params_sha256
    spent = [record.privacy for record in first.history]
    assert [own.releases for own in spent] == [1, 2, 3]
    assert spent[-1].epsilon == epsilon_spent(2.0, 3, 1e-5)
    assert plain.history[-1].privacy is None
    line = first.history[-1].to_json()
    assert RoundRecord.from_json(line) == first.history[-1]
    main(["show", str(first.path)])
    shown = capsys.readouterr().out
    assert f"differential privacy: epsilon {spent[-1].epsilon:.4g} at delta 1e-05 after 3 " in shown
    assert "noise on the mean (zero-out neighbours)" in shown
    main(["show", str(first.path), "--json"])
    assert json.loads(capsys.readouterr().out)["privacy"]["releases"] == 3
    assert "Privacy ε" in first.report(tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_game_counts_its_warm_up(tmp_path):
    private = tables("flamma", noise_on="updates", noise_multiplier=0.01)
    run = flamma.run(private, progress=False)
    assert [record.privacy.releases for record in run.history] == [2, 3, 4]


def test_weights_that_are_not_trained_are_refused():
    first = State(np.zeros(3, np.float32), 0, np.ones(6, np.int64))
    config, samples = make_config(tables()), np.ones(6, np.int64)
    check_private_model(config, first, Population(samples, None, trainable_size=3))
    with pytest.raises(ConfigError, match="batch norm"):
        check_private_model(config, first, Population(samples, None, trainable_size=2))


def test_the_table_is_left_out_where_it_says_nothing():
    assert "privacy" not in make_config({}).as_tables()
    config = make_config(tables())
    assert make_config(config.as_tables()) == config


def test_noise_of_sites_is_secret_and_rounds_done_again_are_counted(tmp_path, monkeypatch):
    config = make_config(tables())
    monkeypatch.setattr(type(config.engine), "clients_hold_data", True)
    folder = RunFolder(tmp_path)
    folder.write("run.json", "{}")
    first = State(np.zeros(3, np.float32), 0, np.ones(6, np.int64))
    made = [private_rounds(config, folder, first, undone) for undone in (None, 3, 0)]
    assert len({own.seed for own in made} | {config.seed}) == 4
    assert [own.releases_before for own in made] == [0, 5, 7]
    assert folder.read_json("run.json")[REPEATED] == 7


class Asking(STRATEGIES["fedavg"]):
    """Asks for losses without saying so beforehand."""

    @property
    def wants_losses(self):
        return False

    def survey(self, state, available, rng):
        return available


def test_a_strategy_that_asks_for_losses_all_the_same_is_stopped_before_it_hears_them():
    population = Population(np.ones(4, np.int64), None, 3)
    strategy = Asking(Plan(rounds=1, per_round=2))
    privacy = PrivateRounds(PrivacyConfig(clip=1.0), 0, float)
    nobody = None  # no client is reached
    federation = Federation(strategy, nobody, TrueClients(population), 0, privacy=privacy)
    with pytest.raises(StrategyError, match="losses, which no noise hides"):
        next(federation.rounds(strategy.init(np.zeros(3, np.float32), population)))
