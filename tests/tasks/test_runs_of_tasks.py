"""Runs of regression, next tokens, other metrics, and losses and metrics of one's own."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import flamma
from flamma.data import from_arrays
from flamma.errors import ConfigError, DataError, RunError
from flamma.experiments.callbacks import BestCheckpoint, EarlyStopping, best_round
from flamma.experiments.run import Run
from flamma.models import build_model
from flamma.reports.document import write_report
from flamma.simulation.runner import ClientRunner
from flamma.tasks import TASKS, measures_for
from flamma.tasks.supervised import _Regression
from flat_work import work
from tasks.federations_of_tasks import (
    CLIENTS,
    embedding_model,
    numbers,
    sequences,
    two_classes,
)

QUICK = {"rounds": 3, "per_round": 2, "training": {"epochs": 1}}
LOGISTIC = QUICK | {"model": "logistic"}


def absolute_error(outputs, targets):
    return (outputs[:, 0] - targets).abs()


def closeness(outputs, targets):
    return 1 - float(np.abs(outputs[:, 0] - targets).mean())


def test_regression_is_scored_by_r2(tmp_path):
    data = numbers()
    config = LOGISTIC | {"training": {"epochs": 1, "learning_rate": 0.005}}
    run = flamma.run(config, data=data, strategy="fedavg", out=tmp_path / "run")
    assert run.about["trainer"] == "torch"
    assert (run.about["task"], run.about["metric"], run.about["metric_title"]) == (
        "regression",
        "r2",
        "R²",
    )
    assert run.summary().scored_by == "R²"
    assert "class_" not in (run.path / "population.csv").read_text()
    first, last = run.history[0].metric("accuracy"), run.history[-1].metric("accuracy")
    assert first < last <= 100
    assert min(scores.min() for scores in run.scores.rounds.values()) < 0  # which is no damage
    assert run.scores.rounds[3].size == CLIENTS
    assert run.scores.rounds[3].mean() == pytest.approx(last, rel=1e-4)


def test_the_r2_of_a_model_is_that_of_its_own_predictions():
    data = numbers()

    def make_model():
        return build_model("logistic", data.shape, data.classes, seed=0)

    with ClientRunner(data, make_model, 0, measures=measures_for("regression")) as runner:
        scores = runner.evaluate(runner.initial_params)
    outputs = make_model()(torch.tensor(data.held_x)).detach().numpy()[:, 0].astype(float)
    for client in range(CLIENTS):
        own = slice(*data.held_offsets[client : client + 2])
        error = ((outputs[own] - data.held_y[own]) ** 2).sum()
        whole = ((data.held_y[own] - data.held_y[own].mean()) ** 2).sum()
        assert scores.accuracy[client] == pytest.approx(100 * (1 - error / whole), rel=1e-4)
        assert scores.loss[client] == pytest.approx(error / (own.stop - own.start), rel=1e-4)


@pytest.mark.parametrize("strategy", ["flamma", "qffl", "afl", "term", "propfair", "scaffold"])
def test_strategies_work_with_the_loss_of_regression(strategy, tmp_path):
    run = flamma.run(LOGISTIC, data=numbers(), strategy=strategy, out=tmp_path / "run")
    assert not any(record.outcome.failed for record in run.history)
    assert math.isfinite(run.history[-1].metric("accuracy"))


def test_next_tokens_reach_the_model_as_whole_numbers(tmp_path):
    seen = set()

    class Watched(torch.nn.Module):
        def __init__(self, classes):
            super().__init__()
            self.inner = embedding_model((), classes)

        def forward(self, tokens):
            seen.add(tokens.dtype)
            return self.inner(tokens)

    run = flamma.run(
        QUICK | {"rounds": 12},
        data=sequences(),
        model=lambda shape, classes: Watched(classes),
        strategy="fedavg",
        out=tmp_path / "run",
        training__learning_rate=1.0,
    )
    assert seen == {torch.int64}
    assert run.summary().scored_by == "accuracy over tokens"
    assert run.history[-1].metric("accuracy") > 90  # the next token is always one more
    assert run.history[0].metric("loss") > run.history[-1].metric("loss") > 0


def test_whole_numbers_become_real_for_a_model_that_cannot_take_them(tmp_path):
    rng = np.random.default_rng(0)
    parts = [(rng.integers(0, 9, (20, 3)), rng.integers(0, 2, 20)) for _ in range(CLIENTS)]
    whole = from_arrays(parts, parts)
    real = from_arrays([(x.astype(float), y) for x, y in parts], parts)
    assert whole.train_x.dtype == np.int64
    assert real.train_x.dtype == real.held_x.dtype == np.float32
    hashes = {
        flamma.run(
            LOGISTIC | {"training": {"epochs": 1, "trainer": trainer}},
            data=data,
            strategy="fedavg",
            out=tmp_path / f"{trainer}-{number}",
        ).params_sha256
        for trainer in ("torch",)
        for number, data in enumerate((whole, real))
    }
    assert len(hashes) == 1


def test_other_metrics_of_classification_change_no_weights(tmp_path):
    data = two_classes()
    runs = {
        metric: flamma.run(
            LOGISTIC | {"training": {"trainer": "torch"}, "evaluation": {"metric": metric}},
            data=data,
            strategy="fedavg",
            out=tmp_path / (metric or "plain"),
        )
        for metric in ("", "accuracy", "balanced-accuracy", "auc")
    }
    assert len({run.params_sha256 for run in runs.values()}) == 1
    means = {metric: run.history[-1].metric("accuracy") for metric, run in runs.items()}
    assert means[""] == means["accuracy"]
    assert len(set(means.values())) == 3
    assert runs["auc"].summary().scored_by == "AUC"
    assert "metric" not in runs[""].about
    assert runs[""].config.as_tables()["evaluation"].keys() == {"every", "clients"}
    assert "loss" not in runs[""].config.as_tables()["training"]


@pytest.mark.parametrize("metric", ["balanced-accuracy", "auc", "loss"])
def test_metrics_of_labels_stay_in_lanes_and_are_those_of_torch(tmp_path, metric):
    runs = [
        flamma.run(
            LOGISTIC | {"training": {"trainer": trainer}, "evaluation": {"metric": metric}},
            data=two_classes(),
            out=tmp_path / trainer,
        )
        for trainer in ("auto", "torch")
    ]
    assert runs[0].about["trainer"] == "lanes"
    ours, theirs = (run.history[-1].metric("accuracy") for run in runs)
    assert ours == pytest.approx(theirs, rel=1e-5)


def test_a_run_scored_by_a_loss_treats_less_as_better(tmp_path):
    heard = []
    run = flamma.run(
        LOGISTIC | {"training": {"learning_rate": 0.005}, "evaluation": {"metric": "loss"}},
        data=numbers(),
        strategy="fedavg",
        callbacks=[BestCheckpoint(), EarlyStopping(patience=1)],
        on_round=heard.append,
        out=tmp_path / "run",
    )
    first, last = run.history[0].evaluation, run.history[-1].evaluation
    assert first["accuracy"] > last["accuracy"] > 0  # the loss falls, and so the run goes on
    assert len(run.history) == 3
    assert best_round(run.path).round == 3
    scores = run.scores.rounds[3]
    assert last["accuracy"] == pytest.approx(last["loss"], rel=1e-6)
    assert last["worst_10"] == last["min"] == pytest.approx(scores.max(), rel=1e-4)
    assert last["best_10"] == pytest.approx(scores.min(), rel=1e-4)
    assert (last.scored_by, last.less_is_better) == ("loss", True)
    assert Run.load(run.path).summary().less_is_better
    page = write_report(run.path).read_text(encoding="utf-8")
    assert '"loss, %"' not in page
    assert '"title":"Final loss of every client"' in page


def test_strategies_that_go_by_the_score_of_a_validation_set_take_more_for_better():
    data = two_classes()
    data = replace(data, validation_x=data.held_x, validation_y=data.held_y)
    measures = measures_for("classification", "loss")

    def make_model():
        return build_model("logistic", data.shape, data.classes, seed=0)

    with ClientRunner(data, make_model, 0, measures=measures) as runner:
        found = [runner.validate(scale * runner.initial_params) for scale in (0, 1, 9)]
    assert len({score for _, score in found}) == 3
    for loss, score in found:
        assert score == pytest.approx(100 * math.exp(-loss))


def test_auc_of_many_classes_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="AUC is for two classes, not for 10"):
        flamma.run(LOGISTIC, out=tmp_path / "run", evaluation__metric="auc")
    assert not (tmp_path / "run" / "config.toml").exists()


def test_a_loss_and_a_metric_of_ones_own(tmp_path):
    data, own = numbers(), {"loss": absolute_error, "metric": closeness}
    run = flamma.run(LOGISTIC, data=data, strategy="fedavg", out=tmp_path / "run", **own)
    assert run.config.training.loss == run.config.evaluation.metric == "own"
    assert run.summary().scored_by == "closeness"
    # The metric is 1 less the loss here, so the scores tell the same twice.
    lines = (run.path / "clients.csv").read_text().splitlines()[1:]
    for line in lines:
        _, _, score, loss, _ = line.split(",")
        assert float(score) == pytest.approx(100 * (1 - float(loss)), abs=1e-2)


def test_a_task_of_ones_own_is_one_class(tmp_path):
    class Absolute(_Regression):
        name = "absolute"

        def losses(self, outputs, targets):
            return absolute_error(outputs, targets)

    TASKS.add("absolute", Absolute())
    try:
        data = numbers()
        data = replace(data, about=replace(data.about, task="absolute"))
        run = flamma.run(LOGISTIC, data=data, strategy="fedavg", out=tmp_path / "run")
    finally:
        TASKS.discard("absolute")
    same = flamma.run(
        LOGISTIC, data=numbers(), strategy="fedavg", loss=absolute_error, out=tmp_path / "same"
    )
    assert run.params_sha256 == same.params_sha256
    assert run.about["task"] == "absolute"


def test_a_run_of_ones_own_loss_needs_it_again(tmp_path):
    def interrupt(record):
        if record.round == 2:
            raise KeyboardInterrupt

    data, own = numbers(), {"loss": absolute_error, "metric": closeness}
    config = LOGISTIC | {"strategy": "fedavg"}
    whole = flamma.run(config, data=data, out=tmp_path / "whole", **own)
    with pytest.raises(KeyboardInterrupt):
        flamma.run(config, data=data, out=tmp_path / "run", on_round=interrupt, **own)
    with pytest.raises(RunError, match="your own loss: resume it from Python, loss="):
        flamma.resume(tmp_path / "run", data=data)
    with pytest.raises(RunError, match="your own metric"):
        flamma.resume(tmp_path / "run", data=data, loss=absolute_error)
    again = flamma.resume(tmp_path / "run", data=data, **own)
    assert again.params_sha256 == whole.params_sha256


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"loss": lambda o, t: absolute_error(o, t).mean()}, "one number per sample"),
        ({"loss": lambda o, t: 1 / 0}, "ZeroDivisionError"),
        ({"loss": lambda o, t: absolute_error(o, t) - 100}, "must not be negative"),
        ({"evaluation__metric": "own"}, "metric of your own: give it from Python, metric="),
        ({"evaluation__metric": "accurcy"}, "did you mean accuracy"),
        ({"evaluation__metric": "auc"}, "unknown metric of regression"),
        ({"training__loss": "mae"}, "flamma.run.loss=..."),
        ({"engine__name": "flower", "metric": closeness}, "function of this process"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_a_sentence(given, says, tmp_path):
    with pytest.raises(flamma.FlammaError, match=says):
        flamma.run(LOGISTIC, data=numbers(), strategy="fedavg", out=tmp_path / "run", **given)


def test_a_model_that_does_not_fit_the_task_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="its last layer needs one number for each sample"):
        flamma.run(
            QUICK,
            data=numbers(),
            model=lambda shape, classes: torch.nn.Linear(3, 2),
            out=tmp_path / "run",
        )
    with pytest.raises(ConfigError, match="the model cannot take 2 samples"):
        flamma.run(
            QUICK,
            data=sequences(),
            model=lambda shape, classes: torch.nn.Linear(4, 2),
            out=tmp_path / "run",
        )


def test_fractions_as_labels_are_refused_and_regression_is_named():
    parts = [(np.zeros((4, 2)), np.array([0.0, 1.0, 0.5, 2.0]))]
    with pytest.raises(
        DataError, match="has a fraction or is not finite; for numbers to be predicted the task is"
    ):
        from_arrays(parts, parts)
    assert from_arrays(parts, parts, task="regression").classes == 1
    whole = [(np.zeros((4, 2)), np.array([0.0, 1.0, 1.0, 2.0]))]
    assert from_arrays(whole, whole).train_y.dtype == np.int64


@pytest.mark.parametrize("behaviour", ["label-flip", "free-rider"])
def test_flipped_targets_of_regression_are_negative(behaviour, tmp_path):
    run = flamma.run(
        LOGISTIC,
        data=numbers(),
        strategy="fedavg",
        out=tmp_path / "run",
        behaviours={behaviour: {"clients": [0]}},
    )
    assert not any(record.outcome.failed for record in run.history)


@pytest.mark.parametrize("make", [numbers, sequences])
def test_the_number_of_processes_changes_nothing(make, tmp_path):
    model = embedding_model if make is sequences else None
    config = QUICK if model else LOGISTIC
    found = [
        flamma.run(
            config,
            data=make(),
            model=model,
            strategy="qffl",
            engine__processes=processes,
            out=tmp_path / str(processes),
        )
        for processes in (1, 2)
    ]
    assert len({run.params_sha256 for run in found}) == 1
    one, two = ((run.path / "clients.csv").read_text() for run in found)
    assert one == two


@pytest.mark.parametrize("task", ["regression", "next-token"])
def test_a_stack_trains_other_tasks_as_torch_does(task):
    data = numbers() if task == "regression" else sequences()

    def make_model():
        if task == "regression":
            return build_model("logistic", data.shape, data.classes, seed=0)
        torch.manual_seed(0)
        return embedding_model(data.shape, data.classes)

    tasks = [work(k, 1, 1, 0.05, report_loss="received", tilt=0.5 * k) for k in range(CLIENTS)]
    trained = {}
    for trainer in ("torch", "stacked"):
        measures = measures_for(task)
        with ClientRunner(data, make_model, 0, 8, trainer=trainer, measures=measures) as runner:
            trained[trainer] = runner.train(runner.initial_params, tasks)
    for one, many in zip(*trained.values(), strict=True):
        assert not one.failure + many.failure
        np.testing.assert_allclose(one.params, many.params, atol=1e-5)
        assert one.loss == pytest.approx(many.loss, rel=1e-5)
