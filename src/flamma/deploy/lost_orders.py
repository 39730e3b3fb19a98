"""Orders that the SuperLink handed out and that got lost with the process that took them.

The SuperLink marks an order as delivered when the proxy takes it. If the proxy or the SuperLink
itself is killed just then, no site gets it, and the run would wait for its answer until
``engine.wait``. A SuperNode has one order at a time, and confirms it once it has all of it. So an
order of a site that was delivered and not confirmed, while the site asks for one, is lost, and its
mark in the SuperLink's database is taken away.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from flamma.deploy.admission import Headers
from flamma.deploy.http_messages import RequestError, parsed
from flamma.deploy.polling import has_message

if TYPE_CHECKING:
    import httpx

    from flamma.deploy.polling import Ask

_DATABASE_SECONDS = 5.0
"""Seconds to wait for the database, which the SuperLink writes to, too."""
_GIVE_BACK = """
    UPDATE message_ins SET delivered_at = ''
    WHERE dst_node_id = ? AND delivered_at != ''
    AND EXISTS (SELECT 1 FROM objects WHERE object_id = message_ins.message_id)
    AND NOT EXISTS (
        SELECT 1 FROM message_res WHERE reply_to_message_id = message_ins.message_id
    )
"""
"""Flower 1.41 deletes the object of a message when the site confirms it."""


class LostOrders:
    """Asks the SuperLink for a site's next order, and sees to those that may have been lost.

    Parameters
    ----------
    ask : callable
        Sends a site's request for a message to the SuperLink.
    database : Path, optional
        The SuperLink's database; without it, what is lost stays lost.
    """

    def __init__(self, ask: Ask, database: Path | None = None) -> None:
        self._ask = ask
        self._database = database
        self._sure: set[str] = set()

    async def ask(self, site: str, body: bytes, headers: Headers) -> httpx.Response:
        """Return the SuperLink's reply; ask twice if the last question may have gone unanswered.

        The SuperLink is asked first, since it knows whether the site may ask for this node.
        """
        try:
            reply = await self._ask(site, body, headers)
            sure = self._database is None or site in self._sure
            if sure or reply.status_code != 200 or has_message(reply.content):
                return reply
            if await asyncio.to_thread(self._give_back, site, body):
                reply = await self._ask(site, body, headers)
        except RequestError:  # the SuperLink may have been killed after it marked an order
            self._sure.discard(site)
            raise
        self._sure.add(site)
        return reply

    def _give_back(self, site: str, body: bytes) -> int:
        """Return how many orders of the site's node were lost, and are to be handed out again."""
        from flwr.proto.fleet_pb2 import PullMessagesRequest

        node = parsed(PullMessagesRequest.FromString, body).node.node_id
        try:
            lost = give_back(self._database, node) if self._database else 0
        except sqlite3.Error as error:
            print(f"flamma: {site}: {error}", file=sys.stderr, flush=True)
            return 0
        if lost:
            print(f"{site} gets an order again that it has not confirmed", file=sys.stderr)
        return lost


def give_back(database: Path, node: int) -> int:
    """Let the SuperLink hand out again what a node has not confirmed; return how many orders."""
    signed = int.from_bytes(node.to_bytes(8, "big"), "big", signed=True)  # as Flower stores it
    place = f"{database.absolute().as_uri()}?mode=rw"
    link = sqlite3.connect(place, timeout=_DATABASE_SECONDS, uri=True)
    with contextlib.closing(link), link:
        return link.execute(_GIVE_BACK, (signed,)).rowcount
