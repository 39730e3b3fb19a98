"""Our strategies in a Flower app of somebody's own: the example app, and apps that know less."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod
from flwr.serverapp import strategy as flowers

import flamma.flower
import vector_strategies
from documented import ROOT
from engines.flower.loopback import LoopGrid, partitions
from flamma.engines.flower.environment import OFFLINE_ENVIRONMENT
from flamma.engines.flower.simulation import _end_session
from flamma.errors import EmptyRunError, FlammaError, MissingExtraError
from flamma.flower import FlammaStrategy, FlowerStrategy, MessageError, respond
from flamma.flower.client import EPOCHS_METRIC, LOSS_METRIC, SAMPLES_METRIC
from flamma.flower.refusals import _needs_our_clients
from flamma.flower.strategy import _NO_EPOCHS
from flamma.records import RoundRecord
from flamma.strategies import STRATEGIES
from flamma.types import Terms

APP = ROOT / "examples" / "flower-app"
CLIENTS = 4


@pytest.fixture
def app(monkeypatch):
    monkeypatch.syspath_prepend(str(APP))
    from digits_app import client_app, task

    return client_app.app, task


def started(app, strategy, rounds=3, **options):
    client, task = app
    grid = LoopGrid(partitions(CLIENTS), answer=client, **options)
    initial = ArrayRecord(task.make_model().state_dict())
    return strategy.start(grid=grid, initial_arrays=initial, num_rounds=rounds), initial


def fits(strategy):
    """Whether a strategy can do without clients of FLamma's own."""
    plain = not strategy.needs.pooled_data and not strategy.needs.clock
    return plain and not _needs_our_clients(strategy)


@pytest.mark.parametrize("name", [n for n in STRATEGIES if fits(STRATEGIES[n])])
def test_any_strategy_by_name_takes_a_model_with_batch_norm(app, name):
    task = app[1]

    def validate(arrays):
        model = task.make_model()
        model.load_state_dict(arrays.to_torch_state_dict())
        scores = [task.score(model, task.load(k, CLIENTS)[1]) for k in range(CLIENTS)]
        return tuple(np.mean(scores, axis=0))

    needs = {"validate": validate} if STRATEGIES[name].needs.validation else {}
    strategy = FlowerStrategy(name, per_round=3, learning_rate=0.1, epochs=2, **needs)
    assert isinstance(strategy, flowers.Strategy)
    result, initial = started(app, strategy)
    assert list(result.arrays) == list(initial)
    for key, array in initial.items():
        assert result.arrays[key].dtype == array.dtype
        assert result.arrays[key].shape == array.shape
    counter = next(key for key in initial if key.endswith("num_batches_tracked"))
    assert result.arrays[counter].dtype == "int64"
    assert result.arrays[counter].numpy() > initial[counter].numpy() == 0
    assert [record.round for record in strategy.history] == [1, 2, 3]
    assert all(record.outcome.failed == {} for record in strategy.history)
    assert all(1 <= len(record.selected) <= CLIENTS for record in strategy.history)
    scores = result.evaluate_metrics_clientapp
    assert scores[3]["loss"] < scores[1]["loss"] or scores[3]["accuracy"] > 40
    assert scores[3]["clients_scored"] == scores[3]["clients"] == CLIENTS
    assert scores[3]["accuracy_variance"] == strategy.history[-1].metric("accuracy_variance")


@pytest.mark.parametrize("aggregator", ["median", "norm-clipping", "multi-krum"])
def test_robust_aggregators_work_in_an_app_of_ones_own(app, aggregator):
    strategy = FlowerStrategy("fedavg", 3, learning_rate=0.1, epochs=2, aggregator=aggregator)
    result, _ = started(app, strategy)
    assert all(record.outcome.failed == {} for record in strategy.history)
    assert np.isfinite(result.evaluate_metrics_clientapp[3]["loss"])


def test_clients_may_add_noise_themselves_by_flower_s_mod(app):
    """As the page on privacy says: on the function that trains, and on no other."""
    from digits_app import client_app

    clip = 0.01
    private, task = ClientApp(), app[1]
    noise = LocalDpMod(clipping_norm=clip, sensitivity=clip, epsilon=1e6, delta=1e-5)
    private.query()(client_app.query)
    private.train(mods=[noise])(client_app.train)
    private.evaluate()(client_app.evaluate)
    strategy = FlowerStrategy("fedavg", 3, learning_rate=0.1, epochs=1)
    result, initial = started((private, task), strategy, rounds=1)
    [record] = strategy.history
    assert record.outcome.failed == {}
    assert result.evaluate_metrics_clientapp[1]["clients_scored"] == CLIENTS
    weights = [key for key, array in initial.items() if array.dtype.startswith("float")]
    moved = [result.arrays[key].numpy() - initial[key].numpy() for key in weights]
    assert 0 < np.sqrt(sum(np.sum(np.square(change)) for change in moved)) <= clip * 1.01

    everywhere = ClientApp(mods=[noise])
    for kind in ("query", "train", "evaluate"):
        getattr(everywhere, kind)()(getattr(client_app, kind))
    strategy = FlowerStrategy("fedavg", 3, learning_rate=0.1, epochs=1)
    result, _ = started((everywhere, task), strategy, rounds=1)
    assert result.evaluate_metrics_clientapp[1]["clients_scored"] == 0


def test_an_aggregator_that_trains_on_the_server_is_refused_there():
    with pytest.raises(FlammaError, match="the aggregator fltrust trains on the server's own data"):
        FlowerStrategy("fedavg", per_round=3, aggregator="fltrust")


@pytest.fixture
def registered():
    with vector_strategies.registered():
        yield


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("surveying", "asks clients for their losses before it selects"),
        ("controlled", "changes how clients train by vectors of its own"),
        ("own-models", "lets clients train models for themselves"),
    ],
)
def test_what_only_our_own_clients_can_do_is_refused_there(registered, name, why):
    with pytest.raises(FlammaError, match=f"^{name} {why}, which the clients of an app of your"):
        FlowerStrategy(name, per_round=3)


def test_every_client_can_be_sent_a_model_of_its_own(registered, app):
    client, task = app
    received = {}

    def answer(message, context):
        if message.metadata.message_type in ("train", "evaluate"):
            array = next(iter(message.content["arrays"].values())).numpy()
            own = received.setdefault(context.node_config["partition-id"], [])
            own.append((message.metadata.message_type, array))
        return client(message=message, context=context)

    strategy = FlowerStrategy("own-downloads", per_round=2, learning_rate=0.1, epochs=1)
    grid = LoopGrid(partitions(CLIENTS), answer=answer)
    initial = ArrayRecord(task.make_model().state_dict())
    result = strategy.start(grid=grid, initial_arrays=initial, num_rounds=2)
    common = next(iter(result.arrays.values())).numpy()
    factors = strategy._state.shrinking
    assert sorted(factors)[0] < sorted(factors)[-1] == 1
    for number, own in received.items():
        kind, last = own[-1]
        assert kind == "evaluate"
        np.testing.assert_array_equal(last, common * np.float32(factors[number]))
    assert all(record.evaluation.personal for record in strategy.history)
    assert all(record.outcome.failed == {} for record in strategy.history)


def test_the_game_is_played_and_the_costs_are_revealed(app):
    strategy = FlammaStrategy(per_round=3, learning_rate=0.1, decay_start=0.2)
    result, _ = started(app, strategy, rounds=6)
    epochs = [record.outcome.local_epochs for record in strategy.history]
    assert len({e for round_epochs in epochs for e in round_epochs}) > 1  # their own choices
    assert strategy.history[-1].offer.decay_factor < 1
    state = strategy._state
    assert np.isnan(state.costs).all()  # nobody told
    # The clients' costs are 0.05, 0.1, 0.15, 0.05; their play bounds them.
    for client, cost in enumerate((0.05, 0.1, 0.15, 0.05)):
        if np.isfinite(state.cost_upper[client]):
            assert state.cost_lower[client] <= cost <= state.cost_upper[client]
    assert np.isfinite(state.cost_upper).any()
    assert result.train_metrics_clientapp[6]["decay_factor"] < 1


def test_runs_do_not_depend_on_flowers_node_ids(app):
    client, task = app
    finals = []
    for first in (100, 4000):
        strategy = FlowerStrategy("qffl", per_round=2, learning_rate=0.1, epochs=1)
        grid = LoopGrid(partitions(CLIENTS, first), answer=client)
        initial = ArrayRecord(task.make_model().state_dict())
        result = strategy.start(grid=grid, initial_arrays=initial, num_rounds=2)
        finals.append([array.data for array in result.arrays.values()])
    assert finals[0] == finals[1]


HOSTILE = {
    "nan": (lambda c: arrays(c, lambda a: np.full_like(a, np.nan)), "not finite"),
    "shape": (lambda c: arrays(c, lambda a: a.ravel()), "the shape"),
    "dtype": (lambda c: arrays(c, lambda a: a.astype(np.float64)), "bytes instead|of the type"),
    "torn": (lambda c: torn(c["arrays"]["1.weight"]), "the weights 1.weight cannot be read"),
    "loss": (lambda c: c["metrics"].__setitem__(LOSS_METRIC, 1e300), "the loss is 1e\\+300"),
    "no loss": (lambda c: c["metrics"].__setitem__(LOSS_METRIC, np.inf), "the loss is inf"),
    "huge": (lambda c: arrays(c, lambda a: np.full_like(a, 3.4e38)), "an update of length"),
    "names": (lambda c: c["arrays"].pop("4.bias"), "other names, such as '4.bias'"),
    "twice": (lambda c: c.__setitem__("more", c["arrays"]), "2 records of the kind ArrayRecord"),
    "no metrics": (lambda c: c.pop("metrics"), "0 records of the kind MetricRecord"),
    "epochs": (lambda c: c["metrics"].__setitem__(EPOCHS_METRIC, 99), "99 epochs where 1 to 10"),
    "no epochs": (lambda c: c["metrics"].pop(EPOCHS_METRIC), "flamma.epochs is missing"),
    "samples": (lambda c: c["metrics"].__setitem__(SAMPLES_METRIC, -3), "-3 samples"),
    "half": (lambda c: c["metrics"].__setitem__(SAMPLES_METRIC, 2.5), "not a whole number"),
    "empty": (lambda c: c.pop("arrays"), "but sent no arrays"),
}


def torn(array):
    """Leave the header's brackets open, for which numpy's own reader raises a TokenError."""
    array.data = array.data.replace(b"), }", b"    ", 1)


def arrays(content, change):
    name = "1.weight"
    array = content["arrays"][name].numpy()
    content["arrays"][name] = Array(np.ascontiguousarray(change(array)))


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_answer_is_refused_and_the_round_goes_on(app, kind):
    change, reason = HOSTILE[kind]
    grid = LoopGrid(partitions(CLIENTS), answer=app[0])
    villain = next(n for n, c in grid.nodes.items() if c.node_config["partition-id"] == 1)

    def interfere(node, content):
        if node == villain and ("arrays" in content or kind == "empty") and "metrics" in content:
            change(content)
        return content

    strategy = FlammaStrategy(per_round=CLIENTS, learning_rate=0.1, warmup_iterations=0)
    started(app, strategy, rounds=1, interfere=interfere)
    [record] = strategy.history
    assert list(record.outcome.failed) == [1]
    assert record.outcome.failed[1].startswith("refused: ")
    assert re.search(reason, record.outcome.failed[1])
    assert np.isfinite(strategy._state.params).all()


@pytest.mark.parametrize("introduces", [True, False])
def test_a_lie_about_samples_does_not_own_the_model(app, introduces):
    grid = LoopGrid(partitions(CLIENTS))
    villain = next(n for n, c in grid.nodes.items() if c.node_config["partition-id"] == 1)
    told = []

    def interfere(node, content):
        if "flamma" in content and not introduces:
            raise ValueError("who asks?")
        if node == villain and "flamma" in content:
            content["flamma"]["samples"] = 10**9
        if "arrays" in content:
            metrics = content["metrics"]
            if node == villain:
                metrics[SAMPLES_METRIC] = 10**9
            told.append(int(metrics[SAMPLES_METRIC]))
        return content

    strategy = FlowerStrategy("fedavg", per_round=CLIENTS, epochs=1)
    weighed = []
    aggregate = strategy._config.strategy.__class__.average
    with pytest.MonkeyPatch.context() as patched:

        def average(self, given, weights):
            weighed.append(sorted(weights))
            return aggregate(self, given, weights)

        patched.setattr(type(strategy._config.strategy), "average", average)
        started(app, strategy, rounds=1, interfere=interfere)
    assert strategy.history[0].outcome.failed == {}
    honest = sorted(told)[:-1]
    assert weighed == [[*honest, 10 * honest[1]]]


def test_what_the_operator_wrote_down_is_all_that_a_client_counts_for(app):
    strategy = FlowerStrategy("fedavg", per_round=2, epochs=1, samples={"2": 7})
    started(app, strategy, rounds=1)
    assert strategy._state.samples.tolist()[2] == 7
    assert min(strategy._state.samples.tolist()[:2]) > 7


def test_who_gives_no_score_is_counted(app):
    grid = LoopGrid(partitions(CLIENTS))
    villains = dict(zip("0123", grid.nodes, strict=True))

    def interfere(node, content):
        told = content.get("metrics")
        if told is not None and "eval_acc" in told:
            if node == villains["0"]:
                return None
            if node == villains["1"]:
                raise ValueError("no disk")
            if node == villains["2"]:
                told["eval_acc"] = 300.0
        return content

    strategy = FlowerStrategy("fedavg", per_round=2, epochs=1)
    result, _ = started(app, strategy, rounds=1, interfere=interfere)
    scores = result.evaluate_metrics_clientapp[1]
    assert (scores["clients_scored"], scores["clients"]) == (1, CLIENTS)
    evaluation = strategy.history[0].evaluation
    assert evaluation.unscored == {
        0: "no answer",
        1: "it raised: no disk",
        2: "refused: it says that the accuracy is 300, which is not in [0, 1]",
    }
    assert evaluation["clients_scored"] == 1


def test_costs_that_clients_tell_are_given(app):
    def interfere(node, content):
        if "flamma" in content:
            content["flamma"]["cost"] = 0.1
        return content

    strategy = FlammaStrategy(per_round=2)
    started(app, strategy, rounds=1, interfere=interfere)
    assert strategy._state.costs.tolist() == [0.1] * CLIENTS


def test_one_silent_client_does_not_make_the_others_costs_unknown(app):
    told = {}

    def interfere(node, content):
        if "flamma" in content and "name" in content["flamma"]:
            told[node] = 0.1 if told else float("inf")  # the first to be asked tells nonsense
            content["flamma"]["cost"] = told[node]
        return content

    strategy = FlammaStrategy(per_round=CLIENTS, warmup_iterations=0)
    started(app, strategy, rounds=1, interfere=interfere)
    costs = strategy._state.costs
    assert (np.isnan(costs).sum(), np.nansum(costs)) == (1, pytest.approx(0.1 * (CLIENTS - 1)))
    assert strategy.history[0].game.certificate is not None


def test_costs_that_nobody_tells_are_learnt_whatever_the_option_says(app):
    played = []
    for options in ({}, {"server_costs": "given"}, {"server_costs": "revealed"}):
        strategy = FlammaStrategy(per_round=3, learning_rate=0.1, decay_start=0.2, **options)
        result, _ = started(app, strategy, rounds=3)
        assert np.isfinite(strategy._state.cost_upper).any()
        played.append((strategy.history, [array.data for array in result.arrays.values()]))
    assert played[0] == played[1] == played[2]


usual = ClientApp()


@usual.train()
def train(message, context):
    """What a client does that has never heard of us."""
    weights = message.content["arrays"]["w"].numpy() + 1
    told = MetricRecord({"num-examples": 10, "train_loss": 0.5})
    content = {"arrays": ArrayRecord({"w": Array(weights)}), "metrics": told}
    return Message(RecordDict(content), reply_to=message)


@usual.evaluate()
def evaluate(message, context):
    return Message(
        RecordDict({"metrics": MetricRecord({"acc": 0.5, "num-examples": 4})}), reply_to=message
    )


def test_clients_that_know_nothing_of_us_can_play_what_has_no_game():
    initial = ArrayRecord({"w": Array(np.zeros(3, dtype=np.float64))})
    strategy = FlowerStrategy("fedavg", per_round=2, accuracy="acc")
    grid = LoopGrid(partitions(3), answer=usual)
    result = strategy.start(grid=grid, initial_arrays=initial, num_rounds=2)
    np.testing.assert_array_equal(result.arrays["w"].numpy(), [2.0, 2.0, 2.0])
    assert result.evaluate_metrics_clientapp[2]["accuracy"] == 50
    game = FlammaStrategy(per_round=2, warmup_iterations=0, accuracy="acc")
    with pytest.raises(EmptyRunError, match=r'untrained: .*"refused: .* call respond and reply of'):
        game.start(grid=grid, initial_arrays=initial, num_rounds=1)
    reasons = set(game.history[0].outcome.failed.values())
    assert reasons == {f"refused: {_NO_EPOCHS}"}


def test_what_cannot_work_is_one_sentence(app):
    with pytest.raises(FlammaError, match="unknown strategy 'flama'"):
        FlowerStrategy("flama", per_round=2)
    with pytest.raises(FlammaError, match="central"):
        FlowerStrategy("central", per_round=2)
    with pytest.raises(FlammaError, match="decay_strat"):
        FlammaStrategy(per_round=2, decay_strat=0.3)
    with pytest.raises(FlammaError, match="needs validate"):
        started(app, FlowerStrategy("incentive", per_round=2))
    with pytest.raises(FlammaError, match="only 4 of 9 clients came"):
        started(app, FlowerStrategy("fedavg", per_round=2, clients=9, timeout=0.1))
    message = Message(RecordDict({"config": ConfigRecord({})}), 1, "train")
    with pytest.raises(MessageError, match="the message has no terms"):
        respond(message)
    assert Terms(0, 1).epochs is None


def test_without_flower_it_says_what_to_install(monkeypatch):
    monkeypatch.delitem(sys.modules, "flamma.flower.client")
    monkeypatch.setitem(sys.modules, "flwr.app", None)
    monkeypatch.setitem(sys.modules, "flwr", None)
    with pytest.raises(MissingExtraError, match=r"constraints.txt '\.\[flower\]'"):
        flamma.flower.respond  # noqa: B018


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@contextlib.contextmanager
def superlink(tmp_path):
    """Yield Flower's command for a SuperLink of our own that is ended again."""
    port, tools = free_port(), Path(sys.executable).parent
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{port}"\n'
        "insecure = true\n",
        encoding="utf-8",
    )
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | OFFLINE_ENVIRONMENT | {"FLWR_HOME": str(home), "PATH": path}
    with open(tmp_path / "superlink.log", "wb") as log:
        link = subprocess.Popen(
            [
                *(tools / "flower-superlink", "--insecure", "--simulation"),
                *("--isolation", "subprocess", "--host", "127.0.0.1", "--port", str(port)),
            ],
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        wait_for(port)
        yield lambda *words: subprocess.run(
            [tools / "flwr", *words], env=environment, capture_output=True, text=True, timeout=240
        )
    finally:
        link.send_signal(signal.SIGTERM)
        link.wait(30)
        _end_session(link.pid)


def run_app(flwr, app, history, rounds=2):
    """Run an app in Flower's simulation, with the result in a file."""
    return flwr(
        *("run", str(app), "--stream", "--federation-config"),
        "num-supernodes=4 client-resources-num-cpus=1 init-args-num-cpus=1",
        *("--run-config", f'num-server-rounds={rounds} result="{history}"'),
    )


def test_flwr_run_takes_the_example_app(tmp_path):
    app = shutil.copytree(APP, tmp_path / "app", ignore=shutil.ignore_patterns("__pycache__"))
    with superlink(tmp_path) as flwr:
        done = run_app(flwr, app, tmp_path / "history.jsonl")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "round 2: decay factor" in done.stdout
    lines = (tmp_path / "history.jsonl").read_text().splitlines()
    history = [RoundRecord.from_json(line) for line in lines]
    assert [record.round for record in history] == [1, 2]
    assert all(record.outcome.failed == {} for record in history)
    assert history[-1].metric("clients_scored") == 4


USUAL_CLIENT = """
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.train()
def train(message, context):
    told = MetricRecord({"num-examples": 10, "train_loss": 0.5})
    content = {"arrays": message.content["arrays"], "metrics": told}
    return Message(RecordDict(content), reply_to=message)
"""


@pytest.mark.slow
def test_flwr_run_fails_if_only_the_server_of_an_app_was_changed(tmp_path):
    app = shutil.copytree(APP, tmp_path / "app", ignore=shutil.ignore_patterns("__pycache__"))
    (app / "digits_app" / "client_app.py").write_text(USUAL_CLIENT)
    history = tmp_path / "history.jsonl"
    with superlink(tmp_path) as flwr:
        done = run_app(flwr, app, history)
        [run] = json.loads(flwr("list", "--format", "json").stdout)["runs"]
    assert "EmptyRunError: the model is untrained" in done.stdout
    assert "call respond and reply of flamma.flower" in done.stdout
    assert run["status"] == "finished:failed"
    assert not history.exists(), "what the app does after the run is not reached"


def wait_for(port, within=90):
    end = time.monotonic() + within
    while time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.2)
    raise AssertionError("the SuperLink did not come up")
