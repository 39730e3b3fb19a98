"""Federations as estimators of scikit-learn, for its pipelines and searches."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data

from flamma.data.federated import FederatedData, from_arrays
from flamma.experiments.callbacks import Callback
from flamma.experiments.run import Run, run
from flamma.models.weights import outputs_of
from flamma.numerics import total
from flamma.seeding import stream
from flamma.types import Ints


class _FederatedEstimator(BaseEstimator):  # type: ignore[misc]
    """What clients train together, each on its own samples, behind the methods of scikit-learn.

    It is :func:`flamma.run`. All samples are trained on, and the rounds are evaluated on them too;
    hold out data, or cross-validate, for a score.

    Parameters
    ----------
    strategy : str or mapping
        The federated algorithm by name, or a table with its name and options.
    model : str, torch.nn.Module, class or callable
        The model by name, or your own.
    rounds : int
        How many rounds.
    clients : int
        How many clients samples are dealt to, at random, where ``fit`` is given no groups.
    per_round : int
        How many clients are selected in a round; all of them if there are fewer.
    epochs : int
        Local epochs of strategies that fix them.
    batch_size : int
        Samples in a mini-batch.
    learning_rate : float
        The step size.
    settings : mapping, optional
        Any other options of the configuration by dotted name, such as ``{"costs.value": 0.05}``.
    callbacks : iterable of Callback, optional
        What hears of the run, such as ``flamma.EarlyStopping()``.
    random_state : int, RandomState or None
        The seed of everything random. The same number gives the same bits.

    Attributes
    ----------
    n_features_in_ : int
        How many features there are; ``feature_names_in_`` has their names if ``X`` was a frame.
    module_ : torch.nn.Module
        The trained model, in double precision.
    history_ : list of RoundRecord
        The records of all rounds.
    n_clients_ : int
        How many clients there were.
    """

    def __init__(
        self,
        strategy: str | Mapping[str, Any] = "flamma",
        *,
        model: Any = "logistic",
        rounds: int = 30,
        clients: int = 10,
        per_round: int = 3,
        epochs: int = 5,
        batch_size: int = 32,
        learning_rate: float = 0.05,
        settings: Mapping[str, Any] | None = None,
        callbacks: Iterable[Callback] | None = None,
        random_state: Any = 0,
    ) -> None:
        self.strategy = strategy
        self.model = model
        self.rounds = rounds
        self.clients = clients
        self.per_round = per_round
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.settings = settings
        self.callbacks = callbacks
        self.random_state = random_state

    def _outputs(self, X: Any, as_shares: bool = False) -> NDArray[np.float32]:  # noqa: N803
        """Return what the model gives for samples like those it was fitted on."""
        check_is_fitted(self)
        x = validate_data(self, X, dtype=np.float32, reset=False)
        return outputs_of(self.module_, x.astype(np.float64), as_shares=as_shares)

    def _train(self, x: NDArray[Any], y: NDArray[Any], groups: Any, task: str) -> None:
        """Run the federation and keep what is needed of it."""
        if isinstance(self.random_state, int | np.integer):
            seed = int(self.random_state)
        else:
            seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        owners: Ints  # the client of each sample
        if groups is None:  # dealt at random in parts of even size
            owners = np.arange(len(x)) % max(1, min(self.clients, len(x)))
            owners = stream(seed, "deal").permutation(owners)
        else:
            named = np.asarray(groups)
            check_consistent_length(x, named)
            owners = np.unique(named, return_inverse=True)[1].reshape(-1)
        data = _federation(x, y, owners, task)
        with tempfile.TemporaryDirectory(prefix="flamma-") as folder:
            done = self._run(data, seed, Path(folder) / "run")
            # In double precision the batch that a sample is in makes no difference that shows.
            self.module_ = done.model().double()
        self.history_ = done.history
        self.n_clients_ = data.clients

    def _run(self, data: FederatedData, seed: int, out: Path) -> Run:
        strategy = self.strategy if isinstance(self.strategy, str) else dict(self.strategy)
        config = {
            "rounds": self.rounds,
            "per_round": min(self.per_round, data.clients),
            "seed": seed,
            "strategy": strategy,
            "training": {
                "epochs": self.epochs,
                "batch_size": self.batch_size,
                "learning_rate": self.learning_rate,
            },
        }
        return run(
            config,
            out=out,
            data=data,
            model=self.model,
            callbacks=self.callbacks or (),
            **dict(self.settings or {}),
        )


class FederatedClassifier(ClassifierMixin, _FederatedEstimator):  # type: ignore[misc]
    """A classifier that clients train together; options as of :class:`_FederatedEstimator`.

    Attributes
    ----------
    classes_ : ndarray
        The labels, sorted.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> x, y = load_iris(return_X_y=True)
    >>> classifier = FederatedClassifier("fedavg", rounds=10, clients=3, batch_size=8)
    >>> classifier.fit(x, y).score(x, y) > 0.9
    True
    """

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:  # noqa: N803
        """Let the clients train a model.

        Parameters
        ----------
        X : array-like of shape (samples, features)
            The samples.
        y : array-like of shape (samples,)
            Their labels, of any kind.
        groups : array-like of shape (samples,), optional
            The client of each sample; without it samples are dealt to ``clients`` at random.

        Raises
        ------
        ValueError
            If the samples, or the options, cannot be used.
        """
        x, labels = validate_data(self, X, y, dtype=np.float32)
        check_classification_targets(labels)
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        if self.classes_.size < 2:
            raise ValueError(f"all labels are of one class, {self.classes_[0]!r}: it needs two.")
        self._train(x, numbers.reshape(-1), groups, "classification")
        return self

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """Return the most probable label of each sample."""
        likely = self.predict_proba(X).argmax(axis=1)
        labels: NDArray[Any] = self.classes_[likely]
        return labels

    def predict_proba(self, X: Any) -> NDArray[np.float32]:  # noqa: N803
        """Return the probability of each class for each sample, in the order of ``classes_``."""
        return self._outputs(X, as_shares=True)


class FederatedRegressor(RegressorMixin, _FederatedEstimator):  # type: ignore[misc]
    """A regressor that clients train together; options as of :class:`_FederatedEstimator`.

    Targets are standardised over all clients for the training, and predictions are in their unit.

    Attributes
    ----------
    target_mean_, target_scale_ : float
        The mean and the standard deviation of the targets.

    Examples
    --------
    >>> from sklearn.datasets import make_regression
    >>> x, y = make_regression(100, 3, random_state=0)
    >>> regressor = FederatedRegressor("fedavg", rounds=5, clients=3, batch_size=8)
    >>> regressor.fit(x, y).score(x, y) > 0.9
    True
    """

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:  # noqa: N803
        """Let the clients train a model.

        The parameters are those of :meth:`FederatedClassifier.fit`, with a number as the target of
        each sample.
        """
        x, targets = validate_data(self, X, y, dtype=np.float32, y_numeric=True)
        numbers = np.asarray(targets, dtype=np.float64)
        self.target_mean_ = total(numbers) / numbers.size
        spread = math.sqrt(total(np.square(numbers - self.target_mean_)) / numbers.size)
        self.target_scale_ = spread if spread > 0 else 1.0
        self._train(x, (numbers - self.target_mean_) / self.target_scale_, groups, "regression")
        return self

    def predict(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """Return the number that the model expects for each sample."""
        outputs: NDArray[np.float64] = self._outputs(X).reshape(-1).astype(np.float64)
        return self.target_mean_ + self.target_scale_ * outputs


def _federation(x: NDArray[Any], y: NDArray[Any], owners: Ints, task: str) -> FederatedData:
    """Return a federation whose clients are evaluated on what they train on."""
    order = np.argsort(owners, kind="stable")
    cuts = np.flatnonzero(np.diff(owners[order])) + 1
    parts = [(x[rows], y[rows]) for rows in np.split(order, cuts)]
    return from_arrays(parts, parts, name="samples", task=task)
