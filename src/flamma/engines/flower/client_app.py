"""The ClientApp: one client of a federation, in a simulation or at a site of its own.

Where a site is deployed, every message starts a new process, so what is imported here is what a
round costs. torch is imported only if the model is trained with it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from flamma.engines.flower.site import Holdings, Site, Slice, check_address
from flamma.engines.flower.wire import (
    Order,
    WireError,
    pack_answer,
    pack_profile,
    read_order,
)
from flamma.engines.outcomes import one_line
from flamma.types import Params, Terms

MEMORY = "flamma.memory"
"""Where the context keeps what lasts from one message of a run to the next."""

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """Say who this client is."""
    return Message(answer(message.content, context), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Answer terms with the work that is best for this client, judging the weights if asked."""
    return Message(answer(message.content, context), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Judge the weights."""
    return Message(answer(message.content, context), reply_to=message)


def answer(content: RecordDict, context: Context) -> RecordDict:
    """Return the answer to an order; what cannot be done is told in one line."""
    try:
        order, terms, params = read_order(content)
        site, number = find_site(order, context)
        check_address(order, site.holdings.name, number)
        if params is None:
            reply = pack_profile(site.profile(order))
        else:
            reply = work(site, order, terms, params)
        if site.memory:
            context.state[MEMORY] = ConfigRecord(dict(site.memory))
    except Exception as error:
        return pack_answer("", failure=one_line(error))
    return reply


def work(site: Site, order: Order, terms: Terms | None, params: Params) -> RecordDict:
    """Return the report on a training, a score, or both.

    Judging comes first, and what goes wrong with one does not cost the other.
    """
    score, report, failure = None, None, ""
    if order.judge:
        try:
            score = site.score(order, params)
        except Exception as error:
            failure = one_line(error)
    if terms is not None:
        if terms.client != order.client:
            raise WireError(f"the terms are for {terms.client}, the order for {order.client}.")
        report = site.play(order, terms, params)
    return pack_answer(site.holdings.name, report, score, failure)


def find_site(order: Order, context: Context) -> tuple[Site, int | None]:
    """Return the client that this process is, and its number if it has a fixed one."""
    where = context.node_config.get("site")
    if where is not None:
        from flamma.data.site_data import load_site

        return Site(load_site(str(where)), order.config, recall(context)), None
    number = int(context.node_config["partition-id"])
    return Site(_slice(order.config, number), order.config, recall(context)), number


def recall(context: Context) -> dict[str, Any]:
    """Return what earlier messages of this run left."""
    record = context.state.get(MEMORY)
    return dict(record) if isinstance(record, ConfigRecord) else {}


def _slice(text: str, number: int) -> Holdings:
    data = _federation(text)
    if not 0 <= number < data.clients:
        raise WireError(f"there is no client {number} among {data.clients}.")
    train = slice(*data.train_offsets[number : number + 2].tolist())
    held = slice(*data.held_offsets[number : number + 2].tolist())
    return Slice(
        str(number),
        data.train_x[train],
        data.train_y[train],
        data.held_x[held],
        data.held_y[held],
        data.classes,
    )


@lru_cache(maxsize=1)
def _federation(text: str) -> Any:
    """Return the whole federation: what the simulation handed over, else built anew."""
    import os
    from pathlib import Path

    from flamma.engines.flower.handover import ENVIRONMENT, take_over

    if folder := os.environ.get(ENVIRONMENT):
        return take_over(Path(folder))
    from flamma.engines.flower.site import configured
    from flamma.experiments.data import build_data

    return build_data(configured(text))
