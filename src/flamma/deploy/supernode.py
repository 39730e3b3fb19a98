"""A site's SuperNode: it answers every message once, gives signs of life, and ends with its work.

Flower 1.41's has faults that leave a site behind for good. If a run ends while a message is on its
way, the message and its task are left in the SuperNode: two processes of the worker wait for the
rest of it for hours, and an answer that is made up for it later is sent in place of the answer to
another message, so that the site is one answer behind from then on. If the worker gives a task up,
the SuperNode waits for its answer without end. And an answer is lost if the server's proxy, which
keeps it until it is whole, is restarted meanwhile.

It also ends its work at an error that it does not expect, such as one answer with HTTP 500 or a TLS
handshake that times out; but one of its threads goes on, so that the process seems to be alive. The
thread that sends heartbeats may end in the same way. Here the process exits with its work, and each
attempt to send a heartbeat is noted in a file, so that the supervisor restarts it.

Run as ``python -m flamma.deploy.supernode SIGNS-FILE OPTION..`` with the options of
``flower-supernode``.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flamma.deploy.liveness import SignGiver
from flamma.processes import exit_after

_ALIVE_PATHS = frozenset(("/v1/fleet/activate-node", "/v1/fleet/send-node-heartbeat"))
"""The requests by which a SuperNode tells that it is there."""
_ANSWER_MISSING = "the task ended without an answer"
_NEVER_WHOLE = "the message never came whole"
_TASK_FAILED = "failed"
"""Flower's words for the state of a task, and for how it ended."""
_CONTENT_POLL_SECONDS = 0.5
"""Seconds between two looks for a part of an answer that the worker has not made yet."""

_Pull = Callable[..., int | None]
_Push = Callable[..., None]
_Announce = Callable[..., tuple[set[str], str]]


class _MessageLoop:
    """The two steps of a SuperNode's loop: it takes a message, and waits for the answer to it.

    Parameters
    ----------
    pull, push : callable
        Flower's own steps.
    store_reply : callable
        Flower's function that puts an answer where its own step finds it.
    """

    def __init__(self, pull: _Pull, push: _Push, store_reply: Callable[..., None]) -> None:
        self._pull = pull
        self._push = push
        self._store_reply = store_reply
        self._message: Any = None
        self._task: int | None = None

    def pull(
        self, *, state: Any, object_store: Any, receive: Callable[[], Any], **more: Any
    ) -> Any:
        """Take one message; one that does not come whole is forgotten, and its task is ended."""
        self._message = self._task = None

        def noted() -> Any:
            found = receive()
            self._message = None if found is None else found[0]
            return found

        noting = _TaskNotes(state, self)
        run_id = self._pull(state=noting, object_store=object_store, receive=noted, **more)
        if run_id is None and self._message is not None:
            number = self._message.metadata.message_id
            state.delete_messages(message_ids=[number])
            object_store.delete(number)
            if self._task is not None:
                state.finish_task(self._task, sub_status=_TASK_FAILED, details=_NEVER_WHOLE)
        return run_id

    def push(
        self, *, state: Any, object_store: Any, send: Callable[..., Any], push_object: Any
    ) -> None:
        """Announce answers until the one to the message that was taken last is among them."""
        contents = _Contents(object_store, state, self)
        upload = _Upload(send, push_object, contents)
        wanted = self._message.metadata.message_id
        while wanted not in upload.answered:
            self._push(
                state=_Answers(state, object_store, self),
                object_store=contents,
                send=upload.send,
                push_object=upload.push,
            )

    def note_task(self, task: int | None) -> None:
        """Remember the task of the message that was taken last."""
        self._task = task

    def task_is_over(self, state: Any) -> bool:
        """Return whether the task of the message that was taken last has ended in any way."""
        if self._task is None:
            return False
        return all(
            task.status.status == "finished" for task in state.get_tasks(task_ids=[self._task])
        )

    def answer_for_task(self, state: Any, object_store: Any) -> None:
        """Answer with an error in place of a task that has ended without an answer."""
        from flwr.app import Error, Message
        from flwr.common.constant import ErrorCode

        error = Error(ErrorCode.CLIENT_APP_CRASHED, _ANSWER_MISSING)
        self._store_reply(Message(error, reply_to=self._message), state, object_store)


class _TaskNotes:
    """A SuperNode's state that tells which task is created."""

    def __init__(self, state: Any, loop: _MessageLoop) -> None:
        self._state = state
        self._loop = loop

    def create_task(self, *arguments: Any, **named: Any) -> Any:
        task = self._state.create_task(*arguments, **named)
        self._loop.note_task(task)
        return task

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)


class _Answers:
    """A SuperNode's state in which a task that has ended has an answer, if need be an error."""

    def __init__(self, state: Any, object_store: Any, loop: _MessageLoop) -> None:
        self._state = state
        self._object_store = object_store
        self._loop = loop

    def get_messages_legacy(self, **filters: Any) -> Any:
        over = self._loop.task_is_over(self._state)  # asked first: its answer comes before its end
        found = self._state.get_messages_legacy(**filters)
        if over and not found:
            self._loop.answer_for_task(self._state, self._object_store)
            found = self._state.get_messages_legacy(**filters)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)


class _Contents:
    """An object store that does not let one wait for what a task that has ended did not send."""

    def __init__(self, object_store: Any, state: Any, loop: _MessageLoop) -> None:
        self._object_store = object_store
        self._state = state
        self._loop = loop

    def get(self, object_id: str) -> Any:
        over = self._loop.task_is_over(self._state)
        content = self._object_store.get(object_id)
        if over and content == b"":
            raise RuntimeError(_ANSWER_MISSING)
        return content

    def __getattr__(self, name: str) -> Any:
        return getattr(self._object_store, name)


class _Upload:
    """Uploads answers; one that the server has lost half-way, from its beginning once more."""

    def __init__(self, send: _Announce, push_object: _Push, contents: _Contents) -> None:
        self.answered: set[str] = set()
        self._send = send
        self._push_object = push_object
        self._contents = contents
        self._announced: tuple[Any, ...] = ()
        self._lost = ""
        self._lock = threading.Lock()

    def send(self, message: Any, *more: Any) -> tuple[set[str], str]:
        self.answered.add(message.metadata.reply_to_message_id)
        self._announced = (message, *more)
        return self._send(message, *more)

    def push(self, run_id: int, session: str, number: str, content: bytes) -> None:
        from flwr.supercore.inflatable.inflatable_utils import ObjectPushError

        try:
            self._push_object(run_id, session, number, content)
        except ObjectPushError:
            with self._lock:  # other threads push objects of the same answer
                if session != self._lost:
                    numbers, new_session = self._send(*self._announced)
                    for each in numbers:
                        while (found := self._contents.get(each)) == b"":
                            time.sleep(_CONTENT_POLL_SECONDS)
                        self._push_object(run_id, new_session, each, found)
                    self._lost = session


def _patch_message_loop(module: Any) -> None:
    """Put the mended steps into Flower's module of the SuperNode's loop."""
    loop = _MessageLoop(
        module._pull_and_store_message, module._push_messages, module._insert_message
    )
    module._pull_and_store_message = loop.pull
    module._push_messages = loop.push


def _give_signs(client: type, signs: SignGiver) -> None:
    """Let a class of clients note its requests; Flower has no setting for this."""
    kind: Any = client
    send = kind._unary_unary

    def noted(self: Any, *, path: str, **options: Any) -> Any:
        if path in _ALIVE_PATHS:
            signs.asks()
        answer = send(self, path=path, **options)
        signs.is_answered()
        return answer

    kind._unary_unary = noted


def main() -> None:
    """Be a SuperNode until a signal comes or it fails; no thread outlives it."""
    from flwr.supernode import start_client_internal
    from flwr.supernode.cli import flower_supernode
    from flwr.supernode.fleet_http_client import FleetHttpClient

    _give_signs(FleetHttpClient, SignGiver(Path(sys.argv[1])))
    _patch_message_loop(start_client_internal)
    sys.argv = ["flower-supernode", *sys.argv[2:]]
    exit_after(lambda: _exit_code(flower_supernode))


def _exit_code(work: Callable[[], None]) -> int:
    """Return how a SuperNode's work ended: it does so with ``sys.exit``, unless it fails."""
    try:
        work()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    print("the SuperNode has ended its work", file=sys.stderr)
    return 1


if __name__ == "__main__":
    main()
