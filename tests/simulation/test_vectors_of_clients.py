"""Surveys, vectors beside the model, own downloads and kept vectors, the same on every engine."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

import vector_strategies
from engines.flower.loopback import OVER_MESSAGES, LoopGrid, partitions
from flamma.clients.truth import KEPT, NotesInFiles
from flamma.data import sites as site_data
from flamma.engines.flower import codec, keeping
from flamma.engines.flower.environment import KEPT_VARIABLE
from flamma.engines.flower.final_model import _RUNS_AT_SITE
from flamma.experiments import checkpoint
from flamma.experiments.run import resume, run
from flamma.seeding import stream
from flamma.strategies import STRATEGIES
from flamma.strategies.base import Strategy
from simulation.test_behaviours_of_clients import SITES, assert_same, served
from vector_strategies import VECTOR_STRATEGIES

NAMES = [strategy.name for strategy in VECTOR_STRATEGIES]
KEEPING = [strategy.name for strategy in VECTOR_STRATEGIES if strategy.needs.client_memory]
SMALL = {
    "rounds": 4,
    "per_round": 3,
    "data": {"clients": 8, "train_samples": 160, "validation_samples": 0},
    "model": {"name": "mlp"},
    "training": {"epochs": 2, "batch_size": 8},
}


@pytest.fixture(autouse=True, scope="module")
def registered():
    with vector_strategies.registered():
        yield


@pytest.fixture
def every_round(monkeypatch):
    """Let there be a checkpoint after every round."""
    monkeypatch.setattr(checkpoint, "SHARE_OF_TIME", 1e9)


def tables(name, **more):
    return {**SMALL, "strategy": {"name": name}, **more}


def in_files(monkeypatch, place):
    monkeypatch.setenv(KEPT_VARIABLE, str(place / KEPT))


@pytest.mark.parametrize("trainer", ["auto", "torch"])
@pytest.mark.parametrize("name", NAMES)
def test_messages_and_processes_change_nothing(tmp_path, monkeypatch, name, trainer):
    config = tables(name, faults={"stragglers": 0.1})
    config["training"] = {**SMALL["training"], "trainer": trainer}
    local = run(config, out=tmp_path / "local")
    assert_same(run(config, out=tmp_path / "two", engine__processes=2), local)
    in_files(monkeypatch, tmp_path / "flower")
    assert_same(served(tmp_path / "flower", config), local)
    monkeypatch.delenv(KEPT_VARIABLE)  # a simulation by flwr run: in Flower's context
    assert_same(served(tmp_path / "context", config), local)
    scores = {(tmp_path / kind / "clients.csv").read_text() for kind in ("local", "flower")}
    assert len(scores) == 1
    plain = run(config, out=tmp_path / "plain", strategy__name="fedavg")
    assert (local.params_sha256 == plain.params_sha256) == (name == "own-models")
    assert [r.evaluation.personal for r in local.history] == [name.startswith("own")] * 4
    assert not any(record.outcome.flags for record in local.history)


def uses_more_than_terms(strategy):
    methods = ("survey", "broadcast", "prepare", "personal_work", "keep")
    return any(getattr(strategy, name) is not getattr(Strategy, name) for name in methods)


@pytest.mark.parametrize("name", [n for n in OVER_MESSAGES if uses_more_than_terms(STRATEGIES[n])])
def test_strategies_of_the_registry_are_the_same_on_every_engine(tmp_path, monkeypatch, name):
    config = tables(name, faults={"stragglers": 0.1})
    config["data"] = {**SMALL["data"], "validation_samples": 40}
    local = run(config, out=tmp_path / "local")
    in_files(monkeypatch, tmp_path / "flower")
    assert_same(served(tmp_path / "flower", config), local)


def test_a_survey_is_recorded_with_its_traffic(tmp_path):
    local = run(tables("surveying", faults={"failures": 0.3}), out=tmp_path / "run")
    for record in local.history:
        weights = (record.cost.bytes_down - record.survey.bytes_down) // len(record.selected)
        assert record.survey.asked == 6
        assert record.survey.bytes_down == 6 * weights
        assert set(record.selected) & set(record.survey.failed) <= set(record.outcome.failed)
    assert any(record.survey.failed for record in local.history)
    assert local.summary().bytes_surveys == sum(r.survey.bytes_down for r in local.history)


def test_own_models_are_scored_as_they_were_before_the_training_of_the_same_message(
    tmp_path, monkeypatch
):
    config = tables("own-models", per_round=8, rounds=3)
    in_files(monkeypatch, tmp_path / "flower")
    grid = LoopGrid(partitions(8))
    served(tmp_path / "flower", config, grid)
    kinds = [kind for _, kind in grid.sent]
    # A query each, a training in each round, and only the last evaluation goes by itself.
    assert [kinds.count(kind) for kind in ("query", "train", "evaluate")] == [8, 24, 8]
    assert_same(
        run(config, out=tmp_path / "local", engine__processes=2),
        run(config, out=tmp_path / "again"),
    )


class StopError(Exception):
    pass


def interrupt(record):
    if record.round == 2:
        raise StopError


@pytest.mark.parametrize("name", KEEPING)
def test_a_run_that_was_interrupted_goes_on_to_the_same_bits(
    tmp_path, monkeypatch, every_round, name
):
    config = tables(name, rounds=6)
    whole = run(config, out=tmp_path / "whole")
    with pytest.raises(StopError):
        run(config, out=tmp_path / "cut", on_round=interrupt)
    assert_same(resume(tmp_path / "cut"), whole)
    place = tmp_path / "flower"
    in_files(monkeypatch, place)
    with pytest.raises(StopError):
        served(place, config, on_round=interrupt)
    assert_same(served(place, config), whole)  # with clients that are new


@pytest.mark.parametrize("damaged", ["newest", "none recorded"])
def test_a_run_that_goes_back_further_reads_what_it_read_the_first_time(
    tmp_path, every_round, damaged
):
    config = tables("controlled", rounds=8, per_round=4)
    whole, place = run(config, out=tmp_path / "whole"), tmp_path / "cut"

    def late(record):
        if record.round == 5:
            raise StopError

    with pytest.raises(StopError):
        run(config, out=place, on_round=late)
    if damaged == "newest":  # the one before it is taken
        newest = max((place / "checkpoint").glob("round-*"))
        newest.write_bytes(b"damaged")
    else:  # no checkpoint is one of a recorded round: from the beginning
        (place / "rounds.jsonl").write_text("")
    assert_same(resume(place), whole)


def test_what_clients_kept_is_pruned_as_checkpoints_are_durable(tmp_path, every_round):
    seen = []

    def count(record):
        kept = NotesInFiles(tmp_path / "run" / KEPT)
        seen.append(max(len(kept.rounds(client)) for client in range(8)))

    run(tables("controlled", rounds=12, per_round=8), out=tmp_path / "run", on_round=count)
    assert max(seen) <= 4  # of two checkpoints, of the round that ended, and of one being written
    kept = NotesInFiles(tmp_path / "run" / KEPT)
    assert [kept.rounds(client) for client in range(8)] == [[11, 12]] * 8


def test_clients_of_a_simulation_prune_what_they_kept(tmp_path, monkeypatch, every_round):
    place = tmp_path / "flower"
    in_files(monkeypatch, place)
    served(place, tables("controlled", rounds=8, per_round=8))
    kept = NotesInFiles(place / KEPT)
    assert max(len(kept.rounds(client)) for client in range(8)) <= 5


@pytest.fixture
def sites(tmp_path, monkeypatch):
    """Three sites, each with a folder of its own."""
    held = {}
    for number, name in enumerate("abc"):
        rng = stream(number, "place")
        y = rng.integers(0, 3, 40)
        x = (rng.normal(size=(40, 4)) + 2 * np.eye(3, 4)[y]).astype(np.float32)
        data = site_data.SiteData(
            name, 0.1, x[:30], y[:30], x[30:], y[30:], site_data.SiteClasses(3)
        )
        held[str(tmp_path / name / "site.toml")] = data
    monkeypatch.setattr(site_data, "load_site", lambda where: held[str(where)])
    return [tmp_path / name / "state" / KEPT for name in "abc"]


def deployed(place, folders, name="controlled", on_round=None, **more):
    nodes = {90 - 11 * k: {"site": str(f.parents[1] / "site.toml")} for k, f in enumerate(folders)}
    config = {**SITES, "strategy": {"name": name}, **more}
    return served(place, config, LoopGrid(nodes), names=["a", "b", "c"], on_round=on_round)


def test_a_site_that_has_lost_what_it_kept_says_so(tmp_path, sites):
    def lose(record):
        if record.round == 2:
            shutil.rmtree(sites[1])

    done = deployed(tmp_path / "run", sites, on_round=lose, rounds=5)
    # The records are one round behind: with that of round 2, round 3 is done already.
    lost = {1: "it lost its local state and restarted"}
    assert [dict(record.outcome.flags) for record in done.history] == [{}, {}, {}, lost, {}]


def test_a_damaged_vector_counts_as_lost(tmp_path, sites):
    def damage(record):
        for file in sites[2].glob("*/2/*.note"):
            file.write_bytes(file.read_bytes()[:-4] + b"\0\0\0\1")

    done = deployed(tmp_path / "run", sites, on_round=damage)
    assert 2 in done.history[2].outcome.flags


def test_two_runs_of_one_configuration_do_not_mix_at_a_site(tmp_path, sites):
    first = deployed(tmp_path / "first", sites)
    runs = {path.name for path in sites[0].iterdir()}
    assert runs == {first.about["instance"]}
    assert_same(deployed(tmp_path / "second", sites), first)
    assert len(list(sites[0].iterdir())) == 2


def test_a_run_that_goes_on_finds_what_its_sites_kept(tmp_path, sites, every_round):
    whole = deployed(tmp_path / "whole", sites, rounds=5)
    with pytest.raises(StopError):
        deployed(tmp_path / "cut", sites, rounds=5, on_round=interrupt)
    assert_same(deployed(tmp_path / "cut", sites, rounds=5), whole)


def test_a_site_keeps_a_few_rounds_of_a_few_runs(tmp_path, sites, every_round, monkeypatch):
    monkeypatch.setattr(keeping, "_VERSIONS_AT_SITE", 3)
    for number in range(6):
        deployed(tmp_path / f"run-{number}", sites, rounds=6)
    runs = list(sites[0].iterdir())
    assert len(runs) == _RUNS_AT_SITE
    latest = (tmp_path / "run-5" / "run.json").read_text()
    assert any(path.name in latest for path in runs)
    monkeypatch.setattr(checkpoint, "SHARE_OF_TIME", 1e-9)  # the server would go back to round 1
    done = deployed(tmp_path / "long", sites, rounds=6)
    own = NotesInFiles(sites[0] / done.about["instance"])
    assert own.rounds(0) == [4, 5, 6]


def test_orders_without_a_run_are_refused_where_clients_keep_something(
    tmp_path, sites, monkeypatch
):
    monkeypatch.setattr("flamma.engines.flower.server_app.secrets.token_hex", lambda size: "")
    done = deployed(tmp_path / "run", sites, rounds=1)
    [reason] = set(done.history[0].outcome.failed.values())
    assert "of which run" in reason
    assert not sites[0].exists()


def test_who_is_asked_for_a_loss_cannot_send_weights(tmp_path, sites, monkeypatch):
    real = codec.pack_answer

    def with_weights(name, report=None, *rest):
        content = real(name, report, *rest)
        if report is not None and np.isfinite(report.loss):
            content[codec._WEIGHTS_RECORD] = codec._pack_params(np.zeros(15, dtype=np.float32))
        return content

    monkeypatch.setattr("flamma.engines.flower.client_app.pack_answer", with_weights)
    done = deployed(tmp_path / "run", sites, name="surveying", rounds=1)
    assert set(done.history[0].survey.failed.values()) == {
        "refused: it was asked for a loss, and sent weights"
    }
