"""The kernels shuffle clients' samples with the bits of numpy's generators."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flamma.errors import FlammaError
from flamma.models import build_model
from flamma.models.flat import FlatModel
from flamma.seeding import StreamKey, stream
from flamma.training import TrainingJob, batches_of, stream_of, training_stream
from flamma.training.lanes import LanesTrainer, available
from flamma.training.lanes import trainer as orders
from flamma.types import NO_VECTORS, LocalTask, TaskVectors

pytestmark = pytest.mark.skipif(not available(), reason="the kernels are not compiled")

SHAPE = (6,)
WORDS = st.integers(0, 2**32 - 1)


def trained_with(rngs, **task):
    """Return the bits of clients of 20, 21, ... samples that are shuffled by the given streams."""
    model = build_model("logistic", SHAPE, 3, seed=1)
    data = np.random.default_rng(5)
    jobs = [
        TrainingJob(
            LocalTask(client, 1, learning_rate=0.1, **({"epochs": 3} | task)),
            data.standard_normal((20 + client, *SHAPE)).astype(np.float32),
            data.integers(0, 3, 20 + client),
            rng,
        )
        for client, rng in enumerate(rngs)
    ]
    params = FlatModel(model).read()
    return [t.params.tobytes() for t in LanesTrainer(model, SHAPE, 8).train_many(params, jobs)]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.tuples(WORDS, WORDS, WORDS, WORDS), st.integers(0, 70), st.integers(0, 4)),
        min_size=1,
        max_size=5,
    )
)
def test_orders_of_any_key_are_those_of_numpy(clients):
    keys = [StreamKey(*words) for words, _, _ in clients]
    samples, epochs = (np.array([c[k] for c in clients], dtype=np.int64) for k in (1, 2))
    expected = [
        rng.permutation(size)
        for rng, size, count in zip([k.generator() for k in keys], samples, epochs, strict=True)
        for _ in range(count)
    ]
    drawn = orders.drawn_orders(keys, samples, epochs)
    assert drawn.tolist() == [int(n) for order in expected for n in order]


def test_a_key_makes_the_stream_of_its_purpose_round_and_client():
    key = StreamKey.of(7, "train", 3, 12)
    assert key.generator().random() == stream(7, "train", 3, 12).random()
    assert not StreamKey.of(2**40, "train").is_short


@pytest.mark.parametrize("task", [{}, {"epochs": 0}, {"iterations": 4}, {"iterations": 7}])
def test_a_key_shuffles_as_its_stream_does(task):
    keys = [StreamKey.of(7, "train", 1, client) for client in range(5)]
    assert orders.agree_with_numpy()
    assert trained_with(keys, **task) == trained_with([k.generator() for k in keys], **task)


def test_clients_with_vectors_and_those_that_evaluate_are_given_by_keys_too():
    model, rng = build_model("logistic", SHAPE, 3, seed=1), np.random.default_rng(5)
    params = FlatModel(model).read()
    own = TaskVectors(start=2 * params, correction=np.full_like(params, 0.01))
    tasks = [
        (LocalTask(0, 1, 2, learning_rate=0.1), NO_VECTORS),
        (LocalTask(1, 1, 0, learning_rate=0.1, evaluates=True), NO_VECTORS),
        (LocalTask(2, 1, 2, learning_rate=0.1, wants_trained_loss=True), own),
        (LocalTask(2, 1, 2, learning_rate=0.1, is_own=True), own),
    ]
    x, y = rng.standard_normal((20, *SHAPE)).astype(np.float32), rng.integers(0, 3, 20)
    by_key = [TrainingJob(t, x, y, training_stream(7, t), vectors) for t, vectors in tasks]
    by_stream = [job._replace(rng=stream_of(job)) for job in by_key]
    trainer = LanesTrainer(model, SHAPE, 8)
    results = [trainer.train_many(params, jobs) for jobs in (by_key, by_stream)]
    weights, expected = ([t.params.tobytes() for t in each] for each in results)
    assert weights == expected
    assert [t.loss for t in results[0][1:3]] == [t.loss for t in results[1][1:3]]
    assert weights[1] == params.tobytes()
    assert len(set(weights)) == 4


def test_the_own_training_of_a_client_has_mini_batches_of_its_own():
    task = LocalTask(12, 3, 1, learning_rate=0.1)
    keys = [training_stream(7, task), training_stream(7, replace(task, is_own=True))]
    expected = [stream(7, "train", 3, 12).random(), stream(7, "train-own", 3, 12).random()]
    assert [key.generator().random() for key in keys] == expected


def test_without_agreement_numpy_draws(monkeypatch):
    keys = [StreamKey.of(2**40, "train"), *(StreamKey.of(7, "train", 1, c) for c in range(3))]
    drawn = trained_with(keys)
    monkeypatch.setattr(orders, "agree_with_numpy", lambda: False)
    monkeypatch.setattr(orders, "drawn_orders", None)
    assert trained_with(keys) == drawn


def test_other_trainers_take_keys():
    key, task = StreamKey.of(7, "train"), LocalTask(0, 1, epochs=2, learning_rate=0.1)
    x, y = np.zeros((9, *SHAPE), np.float32), np.zeros(9, np.int64)
    by_key = [b.tolist() for b in batches_of(TrainingJob(task, x, y, key), 4)]
    by_stream = [b.tolist() for b in batches_of(TrainingJob(task, x, y, key.generator()), 4)]
    assert by_key == by_stream
    assert sorted(n for batch in by_key[:3] for n in batch) == list(range(9))


def test_the_kernels_refuse_orders_that_do_not_fit():
    with pytest.raises(FlammaError, match="out of its range"):
        orders.drawn_orders([StreamKey(1, 2, 3, 4)], np.array([2**31]), np.array([0]))
