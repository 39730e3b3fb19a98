"""Estimators as scikit-learn checks and uses them."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from flamma import EarlyStopping, FederatedClassifier, FederatedRegressor
from flamma.data.federated import from_arrays
from flamma.errors import ConfigError
from flamma.experiments.run import run

QUICK = {"rounds": 3, "clients": 3, "learning_rate": 0.1, "epochs": 3}


CLIPPED = {**QUICK, "learning_rate": 0.02, "batch_size": 8, "settings": {"training.clip": 1.0}}
"""For features of 100, with which plain gradients of a squared error diverge."""


@parametrize_with_checks(
    [
        FederatedClassifier("fedavg", **QUICK),
        FederatedRegressor("fedavg", **CLIPPED),
    ]
)
def test_checks_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def iris():
    return load_iris(return_X_y=True)


def test_it_is_a_run_on_the_same_data(iris, tmp_path):
    x, y = iris
    groups = np.array(["north", "south", "east"])[np.arange(len(y)) % 3]
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    ours = FederatedClassifier("qffl", **QUICK).fit(x, names, groups)
    assert ours.n_clients_ == 3
    parts = [(x[groups == name], y[groups == name]) for name in ("east", "north", "south")]
    theirs = run(
        {
            "rounds": 3,
            "per_round": 3,
            "strategy": "qffl",
            "training": {"learning_rate": 0.1, "epochs": 3},
        },
        data=from_arrays(parts, parts),
        model="logistic",
        out=tmp_path / "run",
    )
    weights = theirs.model().state_dict()
    for name, weight in ours.module_.state_dict().items():
        np.testing.assert_array_equal(weight.float().numpy(), weights[name].numpy())
    assert (ours.predict(x) == ours.classes_[theirs.predict(x)]).all()
    accuracy = ours.history_[-1].metric("accuracy")
    assert ours.score(x, names) == pytest.approx(accuracy / 100)  # clients of the same size


def test_samples_without_groups_are_dealt_evenly(iris):
    x, y = iris
    fitted = FederatedClassifier("fedavg", **{**QUICK, "clients": 4}).fit(x, y)
    assert fitted.n_clients_ == 4
    few = FederatedClassifier("fedavg", **{**QUICK, "clients": 100}).fit(x[::30], y[::30])
    assert few.n_clients_ == 5


def test_it_works_in_pipelines_and_searches(iris):
    x, y = iris
    pipe = make_pipeline(StandardScaler(), FederatedClassifier("flamma", **QUICK))
    assert cross_val_score(pipe, x, y, cv=2).mean() > 0.7
    search = GridSearchCV(
        pipe, {"federatedclassifier__learning_rate": [1e-6, 0.1]}, cv=2, error_score="raise"
    )
    assert search.fit(x, y).best_params_ == {"federatedclassifier__learning_rate": 0.1}


def test_the_seed_is_all_the_randomness(iris):
    x, y = iris
    first, same, other = (
        FederatedClassifier("fedavg", **QUICK, random_state=seed).fit(x, y).predict_proba(x)
        for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, same)
    assert (first != other).any()


def test_options_strategies_and_callbacks_reach_the_run(iris):
    x, y = iris
    fitted = FederatedClassifier(
        {"name": "fedprox", "mu": 0.5},
        **{**QUICK, "rounds": 50},
        model="mlp",
        settings={"evaluation.every": 2},
        callbacks=[EarlyStopping(patience=1)],
    ).fit(x, y)
    assert len(fitted.history_) < 50
    assert [r.round for r in fitted.history_ if r.evaluated] == [
        n for n in range(1, len(fitted.history_) + 1) if n % 2 == 0
    ]
    again = clone(fitted)
    assert again.get_params()["strategy"] == {"name": "fedprox", "mu": 0.5}
    assert not hasattr(again, "module_")
    with pytest.raises(ConfigError, match="did you mean flamma"):
        FederatedClassifier("flama", **QUICK).fit(x, y)


def test_a_fitted_one_is_copied_whole(iris):
    x, y = iris
    fitted = FederatedClassifier("fedavg", **QUICK).fit(x, y)
    copied = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(copied.predict_proba(x), fitted.predict_proba(x))


def test_groups_must_be_as_many_as_samples(iris):
    x, y = iris
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        FederatedClassifier(**QUICK).fit(x, y, groups=[1, 2])


def test_a_regressor_predicts_in_the_unit_of_its_targets():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 2))
    y = 1e6 + 1e3 * (2 * x[:, 0] - x[:, 1])
    groups = np.arange(300) % 3
    options = {"rounds": 10, "batch_size": 10, "learning_rate": 0.1}
    fitted = FederatedRegressor("fedavg", **options).fit(x, y, groups)
    assert fitted.n_clients_ == 3
    assert fitted.score(x, y) > 0.99
    np.testing.assert_allclose(fitted.predict([[0, 0], [1, 0]]), [1e6, 1.002e6], atol=100)
    same = FederatedRegressor("fedavg", **options).fit(x, (y - 1e6) / 1e3, groups)
    np.testing.assert_allclose(1e6 + 1e3 * same.predict(x), fitted.predict(x), rtol=1e-6)
