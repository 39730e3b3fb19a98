"""The model that a run ends with goes to every site, by messages like all others.

The server sends the very file that ``flamma export`` writes, so its SHA-256 is the same
everywhere. A site that is not there when the run ends does not get it.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from flwr.app import Message, MessageType

from flamma.engines.flower.final_messages import pack_final, read_received
from flamma.engines.flower.final_model import FinalModel
from flamma.engines.flower.messages import MessageError, Order
from flamma.engines.flower.payload import read_reply
from flamma.engines.flower.roster import Request, Roster, exchange
from flamma.experiments.folder import RunFolder
from flamma.experiments.result import Run
from flamma.simulation.client_side import one_line

_DELIVERY_SECONDS = 300.0
"""Seconds that a site has to say that it got the model."""


def deliver(roster: Roster, order: Order, run: Run, wait: float) -> dict[str, str]:
    """Send the model of a run that is over to its clients; return who did not get it, and why.

    The run is over and recorded, so whatever happens here is a reason and no error.
    """
    try:
        return _delivered(roster, order, run, min(wait, _DELIVERY_SECONDS))
    except Exception as error:
        return dict.fromkeys(roster.names, one_line(error))


def _final_model(run: Run) -> tuple[FinalModel, bytes]:
    """Return the model of a run that is over: what is known of it, and the file."""
    from flamma.experiments.trained import packed_weights

    content = packed_weights(run)
    digest = hashlib.sha256(content).hexdigest()
    mark = RunFolder(run.path).run_id
    return FinalModel(mark, run.history[-1].round, digest, str(run.params_sha256)), content


def _delivered(roster: Roster, order: Order, run: Run, wait: float) -> dict[str, str]:
    final, content = _final_model(run)
    roster.refresh()
    nodes = {client: roster.node(client) for client in range(len(roster.names))}
    order = replace(order, round=final.round, earliest=-1)
    requests = []
    for client, node in nodes.items():
        if node is not None:
            own = replace(order, client=client, name=roster.names[client])
            requests.append(Request(node, MessageType.QUERY, pack_final(own, final, content)))
    replies = exchange(roster.grid, requests, wait)
    reasons = {
        roster.names[client]: "not connected"
        if node is None
        else _why_not(replies.get(node), final.sha256)
        for client, node in nodes.items()
    }
    return {name: reason for name, reason in reasons.items() if reason}


def _why_not(reply: Message | None, sha256: str) -> str:
    """Return why a client did not get the model; nothing if it did."""
    if reply is None:
        return "no answer"
    try:
        if read_reply(reply, read_received) != sha256:
            raise MessageError("it says that it got another file")
    except MessageError as error:
        return error.reason
    return ""
