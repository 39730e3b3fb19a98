"""Clients with the loss ‖v - target‖² / 2, who take real steps of the size that they are told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from flamma.federation import Federation
from flamma.seeding import stream
from flamma.simulation.client_side import ClientSide
from flamma.types import Plan, Population, Profile, Update

SAMPLES = np.array([8, 20, 12, 30])
TARGETS = stream(7, "targets").normal(size=(4, 5)).astype(np.float32)
START = stream(7, "start").normal(size=5).astype(np.float32)
PLAN = Plan(rounds=6, per_round=2, epochs=2, learning_rate=0.1, batch_size=8)
STEPS = 2 * np.array([1, 3, 2, 4])
"""Of each client: two epochs over its samples in batches of 8."""

EVERYBODY = np.arange(4)


def population(samples=SAMPLES, trainable_size=5):
    return Population(np.array(samples), None, trainable_size)


def descended(task, received, vectors, steps):
    """Return the weights after so many gradient steps, as a trainer would take them."""
    weights = (received if vectors.start is None else vectors.start).astype(np.float64)
    correction = 0 if vectors.correction is None else vectors.correction
    for _ in range(steps):
        pull = task.terms.objective.proximal * (weights - received)
        gradient = weights - TARGETS[task.client] + pull + correction
        weights = weights - task.learning_rate * gradient
    return weights.astype(np.float32)


def answer(side, broadcast, task, samples):
    """Return the report of one client, which keeps what it is told to keep."""
    vectors = side.vectors(task, broadcast.params, broadcast.extra)
    steps = task.epochs * -(-int(samples[task.client]) // side.strategy.plan.batch_size)
    prepared = side.prepared(task, vectors, broadcast.params)
    trained = descended(task, broadcast.params, prepared, steps)
    own = side.own_training(task, vectors, broadcast.params)
    kept = own and descended(own[0], broadcast.params, own[1], steps)
    report = Update(task.client, trained, int(samples[task.client]), task.epochs)
    return side.settle(task, vectors, report, kept)


def play(strategy, rounds, samples=SAMPLES, lost=()):
    """Return the states after each round, the records, and the clients' side.

    ``lost`` are rounds before which clients lose what they have kept.
    """
    side = ClientSide(strategy, 5)
    state = strategy.init(START, population(samples))
    states, records = [], []
    for number in range(1, rounds + 1):
        if number in lost:
            side = ClientSide(strategy, 5)
        made = strategy.offer(state, EVERYBODY, stream(3, "select", number))
        tasks = [
            strategy.respond(terms, Profile(terms.client, 0.1, int(samples[terms.client])))
            for terms in made.terms
        ]
        reports = [answer(side, strategy.broadcast(state), task, samples) for task in tasks]
        state, record = strategy.aggregate(state, made, reports)
        federation = Federation(strategy, None, None, 0)
        record = federation._with_traffic(record, strategy.broadcast(state), None)
        states.append(state)
        records.append(record)
    return states, records, side


def selected(rounds, plan=PLAN):
    """Return whom FedAvg selects in each round."""
    draws = (stream(3, "select", number) for number in range(1, rounds + 1))
    return [np.sort(rng.choice(EVERYBODY, plan.per_round, replace=False)) for rng in draws]


def everybody(plan=PLAN):
    return replace(plan, per_round=4)
