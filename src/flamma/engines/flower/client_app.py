"""The ClientApp: one client of a run, in a simulation or at a site of its own.

Where a site is deployed, every message may start a new process, so what is imported here is paid
for in every round. torch is imported only if the model is trained with it.
"""

from __future__ import annotations

import time
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from flamma.clients.behaviours import Notes
from flamma.engines.flower.client_data import ClientData, SimulatedClientData
from flamma.engines.flower.codec import pack_answer, pack_profile, read_order
from flamma.engines.flower.conduct import Memory, simulated_conduct, site_conduct
from flamma.engines.flower.final_messages import is_delivery, receive
from flamma.engines.flower.keeping import pruned, simulated_kept, site_kept, strategy_keeps
from flamma.engines.flower.messages import MessageError, Order, OrderContent
from flamma.engines.flower.payload import read_configuration
from flamma.engines.flower.site import Site, check_address
from flamma.engines.flower.told_events import tell_order, tell_refusal
from flamma.simulation.client_side import one_line
from flamma.types import Inputs, Params, Targets

if TYPE_CHECKING:
    from flamma.data.federated import FederatedData

_MEMORY_RECORD = "flamma.memory"
"""The record of the context that lasts from one message of a run to the next."""

app = ClientApp()


@app.query()
def _on_query(message: Message, context: Context) -> Message:
    """Say who this client is."""
    return Message(answer(message.content, context), reply_to=message)


@app.train()
def _on_train(message: Message, context: Context) -> Message:
    """Respond to the terms and train; evaluate the received weights too if asked."""
    return Message(answer(message.content, context), reply_to=message)


@app.evaluate()
def _on_evaluate(message: Message, context: Context) -> Message:
    """Evaluate the received weights."""
    return Message(answer(message.content, context), reply_to=message)


def answer(content: RecordDict, context: Context) -> RecordDict:
    """Return the answer to an order; an exception is reported in one line."""
    try:
        asked = read_order(content)
        site, number = _find_site(asked.order, context)
        check_address(asked.order, site.data.name, number)
        if is_delivery(content):
            where = context.node_config.get("site")
            if where is None:
                raise MessageError("a client of a simulation keeps no model")
            return receive(content, asked.order, Path(str(where)))
        site.limits.check_bytes(sum(part.nbytes for part in asked.vectors))
        if asked.params is None:
            reply = pack_profile(site.profile(asked.order))
        else:
            reply = _carry_out_order(site, asked, asked.params)
        if site.memory:
            context.state[_MEMORY_RECORD] = ConfigRecord(dict(site.memory))
    except Exception as error:
        tell_refusal(error)
        return pack_answer("", failure=one_line(error))
    return reply


def _carry_out_order(site: Site, asked: OrderContent, params: Params) -> RecordDict:
    """Return a report on the training, a score of the received or kept weights, or both.

    The weights are evaluated first, and if that fails, the client still trains.
    """
    order, terms, begun = asked.order, asked.terms, time.monotonic()
    score, report, failure = None, None, ""
    if order.evaluate:
        try:
            score = site.score(order, params)
        except Exception as error:
            failure = one_line(error)
    if terms is not None:
        if terms.client != order.client:
            raise MessageError(f"the terms are for {terms.client}, the order for {order.client}.")
        report = site.play(order, terms, params, asked.extra)
    tell_order(asked, report, time.monotonic() - begun)
    return pack_answer(site.data.name, report, score, failure)


def _find_site(order: Order, context: Context) -> tuple[Site, int | None]:
    """Return the client that this process is, and its number if it is one of a simulation."""
    where, left = context.node_config.get("site"), context.state.get(_MEMORY_RECORD)
    memory: Memory = dict(left) if isinstance(left, ConfigRecord) else {}
    keeps = order.client >= 0 and strategy_keeps(order)
    if where is not None:
        from flamma.data.sites import load_site

        data = load_site(str(where))
        conduct = site_conduct(data.behaviour, memory)
        kept = site_kept(Path(str(where)), order) if keeps else Notes()
        return Site(data, order.config, memory, conduct, kept, data.limits), None
    number = int(context.node_config["partition-id"])
    own = _partition(order.config, number)

    def samples_of(client: int) -> tuple[Inputs, Targets]:
        other = _partition(order.config, client)
        return other.x, other.y

    conduct = simulated_conduct(order.config, number, samples_of, memory)
    pruned(conduct.notes, order)
    kept = simulated_kept(order, memory) if keeps else Notes()
    return Site(own, order.config, memory, conduct, kept), number


def _partition(text: str, number: int) -> ClientData:
    data = _federation(text)
    if not 0 <= number < data.clients:
        raise MessageError(f"there is no client {number} among {data.clients}.")
    train = slice(*data.train_offsets[number : number + 2].tolist())
    held = slice(*data.held_offsets[number : number + 2].tolist())
    return SimulatedClientData(
        str(number),
        data.train_x[train],
        data.train_y[train],
        data.held_x[held],
        data.held_y[held],
        data.classes,
        task=data.task,
    )


@lru_cache(maxsize=1)
def _federation(text: str) -> FederatedData:
    """Return the whole federation: from the simulation's files, else built as configured."""
    import os

    from flamma.engines.flower.handover import DATA_VARIABLE, take_over

    if folder := os.environ.get(DATA_VARIABLE):
        return take_over(Path(folder))
    from flamma.experiments.run import build_data

    return build_data(read_configuration(text))
