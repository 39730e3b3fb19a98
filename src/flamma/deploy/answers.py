"""Answers of sites, which the SuperLink gets once they are whole.

A SuperNode announces an answer, and then uploads its objects one by one. The SuperLink would hand
on what was announced, and let the ServerApp wait three minutes for objects that never come; it
would also take any number of bytes. So the proxy takes the announcement and the objects itself,
into files, and passes them on when the last one is there. An answer that is too large, or that
stops half-way, is replaced by an error that says so, and the run goes on at once.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
import shutil
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from flamma.deploy.admission import Headers
from flamma.deploy.http_messages import (
    BODY_GRACE_SECONDS,
    SLOWEST_BYTES_PER_SECOND,
    RequestError,
    parsed,
    protobuf_response,
)
from flamma.deploy.orders import SentOrders

if TYPE_CHECKING:
    import httpx
    from flwr.proto.fleet_pb2 import PushMessagesRequest

    _Post = Callable[[str, bytes, Headers], Awaitable[httpx.Response]]

PUSH_MESSAGES, PUSH_OBJECT = "/v1/fleet/push-messages", "/v1/fleet/push-object"
_MAX_ANNOUNCEMENT_BYTES = 4 * 1024 * 1024
"""Bytes of a message without its objects."""
_UPLOAD_IDLE_SECONDS = 60.0
"""Seconds between two objects of an answer."""
_OBJECT_ID = re.compile("[0-9a-f]{64}")
_STOPPED_UPLOAD = "its answer stopped after {} bytes"
_BAD_PARTS = {408: _STOPPED_UPLOAD, 413: "a part of its answer, after {} bytes, is too large"}
"""Why an answer is refused with whose part a status says that something is wrong."""


@dataclass(eq=False)
class _Answer:
    """An answer that a site uploads.

    Attributes
    ----------
    site : str
        Who uploads it.
    request : PushMessagesRequest
        The announcement.
    headers : sequence
        Those of the site's last request, which has its signature.
    objects, missing : set of str
        Its objects, and those that have not come yet.
    limit, size : int
        The most bytes that they may have, and those that have come.
    folder : Path
        Where the objects are kept, in a folder of its own.
    """

    site: str
    request: PushMessagesRequest
    headers: Headers
    objects: frozenset[str]
    limit: int
    folder: Path
    missing: set[str] = field(init=False)
    session: str = field(default_factory=lambda: secrets.token_hex(16))
    begun: float = field(default_factory=time.monotonic)
    last: float = field(default_factory=time.monotonic)
    size: int = 0
    receiving: int = 0
    passed_on: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self.missing = set(self.objects)
        self.folder /= self.session

    def due(self, now: float) -> bool:
        """Return whether its time is over."""
        whole = BODY_GRACE_SECONDS + _UPLOAD_IDLE_SECONDS + self.limit / SLOWEST_BYTES_PER_SECOND
        idle = not self.receiving and now - self.last > _UPLOAD_IDLE_SECONDS
        return idle or now - self.begun > whole


class HeldAnswers:
    """The answers that are being uploaded, one for each site.

    Parameters
    ----------
    post : callable
        Sends a request to the SuperLink.
    orders : SentOrders
        What the answers answer.
    folder : Path
        Where objects are kept; whatever is in it is removed.
    """

    def __init__(self, post: _Post, orders: SentOrders, folder: Path) -> None:
        self._post = post
        self._orders = orders
        self._folder = folder
        self._open: dict[str, _Answer] = {}
        self._finished: dict[str, str] = {}
        self._refused: dict[str, str] = {}
        shutil.rmtree(folder, ignore_errors=True)  # of a proxy before this one

    @asynccontextmanager
    async def receiving(self, site: str, path: str) -> AsyncIterator[None]:
        """Tell that a request of a site is being read, so that its answer is not idle.

        If a part of the answer is too slow or too large to be read, the answer is over: a
        SuperNode sends such a part once only.
        """
        answer = self._open.get(site)
        if answer is None:
            yield
            return
        answer.receiving += 1
        try:
            yield
        except RequestError as error:
            if (
                path == PUSH_OBJECT
                and error.status in _BAD_PARTS
                and answer is self._open.get(site)
            ):
                await self._refuse(answer, _BAD_PARTS[error.status].format(answer.size))
            raise
        finally:
            answer.receiving -= 1
            answer.last = time.monotonic()

    def begin(self, site: str, body: bytes, headers: Headers) -> httpx.Response:
        """Take an announcement, and ask for all objects of the answer.

        An earlier answer of the site that is not whole is dropped: a SuperNode sends one at a time.
        """
        from flwr.proto.fleet_pb2 import PushMessagesRequest, PushMessagesResponse, Reconnect

        if len(body) > _MAX_ANNOUNCEMENT_BYTES:
            raise RequestError(413)
        request = parsed(PushMessagesRequest.FromString, body)
        objects = _objects_of(request)
        message = request.messages_list[0].metadata
        if message.src_node_id != request.node.node_id or self._orders.belongs_to_other_site(
            site, message.reply_to_message_id
        ):
            _log(f"{site} wanted to answer for another site, and was refused")
            raise RequestError(403)
        self.drop(site)
        limit = self._orders.limit(message.reply_to_message_id)
        answer = _Answer(site, request, headers, objects, limit, self._folder)
        self._open[site] = answer
        return protobuf_response(
            PushMessagesResponse(
                reconnect=Reconnect(reconnect=5),
                results={message.message_id: 0},
                objects_to_push=sorted(objects),
                session_id=answer.session,
            )
        )

    async def add(self, site: str, body: bytes, headers: Headers) -> httpx.Response:
        """Take an object, and pass the answer on if it is the last one."""
        from flwr.proto.message_pb2 import PushObjectRequest, PushObjectResponse

        request = parsed(PushObjectRequest.FromString, body)
        number, answer = request.object_id, self._open.get(site)
        if answer is None or request.session_id != answer.session or number not in answer.objects:
            if request.session_id == self._refused.get(site):
                raise RequestError(413)
            again = request.session_id == self._finished.get(site)  # the reply was lost
            return protobuf_response(PushObjectResponse(stored=again))
        answer.headers, answer.last = headers, time.monotonic()
        if number in answer.missing:
            await self._keep(answer, number, request.object_content)
        if not answer.missing:
            return await self._pass_on(answer)
        return protobuf_response(PushObjectResponse(stored=True))

    async def expire(self) -> None:
        """Replace answers whose time is over by errors; pass on whole ones that are still here."""
        now = time.monotonic()
        for answer in [found for found in self._open.values() if not found.lock.locked()]:
            with suppress(RequestError):  # the SuperLink is away
                if not answer.missing:
                    await self._pass_on(answer)
                elif answer.due(now):
                    await self._refuse(answer, _STOPPED_UPLOAD.format(answer.size))

    def drop(self, site: str) -> None:
        """Forget what a site has uploaded."""
        self._finished.pop(site, None)
        if (answer := self._open.pop(site, None)) is not None:
            shutil.rmtree(answer.folder, ignore_errors=True)

    async def _keep(self, answer: _Answer, number: str, content: bytes) -> None:
        if hashlib.sha256(content).hexdigest() != number:
            raise RequestError(400)
        answer.size += len(content)
        if answer.size > answer.limit:
            await self._refuse(answer, f"its answer has more than {answer.limit} bytes")
            raise RequestError(413)
        try:
            answer.folder.mkdir(parents=True, exist_ok=True)
            await asyncio.to_thread((answer.folder / number).write_bytes, content)
        except OSError as error:  # a full disk, or the answer was dropped meanwhile
            _log(f"{answer.site}: cannot keep its answer: {error.strerror}")
            raise RequestError(503) from None
        answer.missing.discard(number)

    async def _pass_on(self, answer: _Answer) -> httpx.Response:
        from flwr.proto.message_pb2 import PushObjectResponse

        async with answer.lock:
            if not answer.passed_on:
                refusal = await self._send(
                    answer, answer.request, lambda number: (answer.folder / number).read_bytes()
                )
                answer.passed_on = True
                if self._open.get(answer.site) is answer:
                    self.drop(answer.site)
                    self._finished[answer.site] = answer.session
                if refusal is not None:
                    return refusal
        return protobuf_response(PushObjectResponse(stored=True))

    async def _refuse(self, answer: _Answer, reason: str) -> None:
        """Send an error in place of an answer."""
        from flamma.engines.flower.error_replies import error_in_place

        _log(f"{answer.site}: {reason}, so it is refused")
        self.drop(answer.site)
        self._refused[answer.site] = answer.session
        request, content = error_in_place(answer.request, reason)
        await self._send(answer, request, lambda _: content)

    async def _send(
        self, answer: _Answer, request: PushMessagesRequest, content_of: Callable[[str], bytes]
    ) -> httpx.Response | None:
        """Send an answer with the objects that the SuperLink asks for; return a refusal."""
        from flwr.proto.fleet_pb2 import PushMessagesResponse
        from flwr.proto.message_pb2 import PushObjectRequest

        reply = await self._post(PUSH_MESSAGES, request.SerializeToString(), answer.headers)
        if reply.status_code != 200:
            return reply
        told = PushMessagesResponse.FromString(reply.content)
        run = request.messages_list[0].metadata.run_id
        for number in told.objects_to_push:
            piece = PushObjectRequest(
                node=request.node,
                run_id=run,
                object_id=number,
                object_content=await asyncio.to_thread(content_of, number),
                session_id=told.session_id,
            )
            reply = await self._post(PUSH_OBJECT, piece.SerializeToString(), answer.headers)
            if reply.status_code != 200:
                return reply
        return None


def _objects_of(request: PushMessagesRequest) -> frozenset[str]:
    """Return the objects of the one message that is announced, the message itself included."""
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree

    if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
        raise RequestError(400)
    [tree] = request.message_object_trees
    objects = frozenset(part.object_id for part in iterate_object_tree(tree))
    if tree.object_id != request.messages_list[0].metadata.message_id or not all(
        _OBJECT_ID.fullmatch(number) for number in objects
    ):
        raise RequestError(400)
    return objects


def _log(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)
