"""The worker of a site: a process that has imported everything and forks for each message.

Flower starts a process per message, which imports torch anew each time. This one imports
everything once, and takes tasks from the site's SuperNode as a ``flower-superexec`` would.

A task has three processes: one that holds the message, one that sends heartbeats to the SuperNode,
and one that runs the ClientApp. If the last one dies, the first one answers for it at once, where
Flower would find out after a minute.

Only the ClientApp that the site itself names is run, FLamma's own by default; the code of a
submitted bundle is not even unpacked.

Run as ``python -m flamma.deploy.prefork ADDRESS SECRET-FILE READY-FILE APP SITE-FILE``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from flamma.io import write_atomically
from flamma.processes import exit_after, exit_with_parent, killed_with_parent

if TYPE_CHECKING:
    from flwr.app import Context, Message
    from flwr.supercore.runtime import RuntimeHttpClient

_TASK_POLL_SECONDS = 0.2
"""Seconds between two requests for a task."""
_SUPERNODE_RETRY_SECONDS = 1.0
"""Seconds before a SuperNode that did not answer is asked again; it may be starting."""
_HEARTBEAT_SECONDS = 15.0
"""Seconds between two heartbeats; the SuperNode gives up a task after a minute without one."""
_HEARTBEAT_RETRY_SECONDS = 2.0
"""Seconds before a heartbeat that failed is sent again."""

_PRELOADED_MODULES = (
    "flwr.supernode.runtime.run_clientapp",
    "flamma.deploy.engine",
    "flamma.experiments.run",
    "flamma.training.torch_trainer",
    "flamma.training.lanes",
)
"""What a task needs besides the ClientApp itself; with torch, it takes seconds to import."""

_App = Callable[..., Any]


def main() -> None:
    """Take tasks until a signal comes."""
    from flamma.data.sites import load_site

    address, secret, ready, reference, site = sys.argv[1:]
    for needed in _PRELOADED_MODULES:
        import_module(needed)
    module, _, name = reference.partition(":")
    app: _App = getattr(import_module(module), name)
    # Tasks then find the site's data in the cache, and what is wrong with them is logged. A process
    # of its own reads them, since its memory is freed when it exits.
    os.waitpid(_fork(load_site, site), 0)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    signal.signal(signal.SIGINT, lambda *_: os._exit(0))
    write_atomically(Path(ready), str(os.getpid()).encode(), durable=False)
    _take_tasks(address, Path(secret).read_bytes(), app)


def _take_tasks(address: str, secret: bytes, app: _App) -> NoReturn:
    """Ask the SuperNode for tasks, and fork a process for each."""
    import httpx
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.constant import TaskType
    from flwr.supercore.interceptors import SuperExecAuthHttpInterceptor

    signed = SuperExecAuthHttpInterceptor(
        master_secret=secret, protected_methods=frozenset({"/flwr.proto.Runtime/AcquireTask"})
    )
    client = _connect(address, signed)
    request = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
    while True:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        try:
            answer = client.AcquireTask(request)
        except (httpx.TransportError, httpx.HTTPStatusError) as error:
            if not isinstance(error, httpx.TransportError):
                print(f"the SuperNode refuses: {error}", file=sys.stderr, flush=True)
            time.sleep(_SUPERNODE_RETRY_SECONDS)
            continue
        if answer.HasField("task") and answer.token:
            _fork(_run_task, address, answer.token, app, watch=False)
        else:
            time.sleep(_TASK_POLL_SECONDS)


def _run_task(address: str, token: str, app: _App) -> None:
    """Fetch the message of a task, let a process answer it, and answer if that process dies.

    A process that had begun to send its answer is not answered for: a message with two answers
    would leave the SuperNode one answer behind for good.
    """
    from flwr.app import Message
    from flwr.app.error import Error
    from flwr.common.constant import ErrorCode, SubStatus
    from flwr.supernode.runtime.run_clientapp import (
        pull_task_input,
        push_message,
        push_task_output,
    )

    parent = os.getppid()
    heartbeats = _fork(_send_heartbeats, address, token)
    client = _connect(address, token)
    # The message's arrays are still on their way; asked now, Flower would wait a whole second.
    time.sleep(_TASK_POLL_SECONDS)
    try:
        message, context, _, _ = pull_task_input(client)
    except Exception as error:
        # The message never came whole, as when the ServerApp died while sending it. A task that
        # fails like this is not answered; left alone, the SuperNode would answer it late, and
        # then be one answer behind for the rest of the run.
        push_task_output(client, None, SubStatus.FAILED, f"no message: {error}")
        raise
    client.close()  # each of the two processes has a connection of its own
    sending, began_to_send = os.pipe()
    worker = _fork(_answer_message, address, token, app, message, context, began_to_send)
    os.close(began_to_send)
    exit_with_parent(parent)  # starts a thread, and a process with threads must not fork
    _, status = os.waitpid(worker, 0)
    if status != 0:
        reason = f"the client's process died ({_cause(status)})"
        print(reason, file=sys.stderr, flush=True)
        client = _connect(address, token)
        if not os.read(sending, 1):
            died = Error(code=ErrorCode.CLIENT_APP_CRASHED, reason=reason)
            push_message(client, Message(died, reply_to=message), context)
        push_task_output(client, None, SubStatus.FAILED, reason)
    os.kill(heartbeats, signal.SIGKILL)


def _send_heartbeats(address: str, token: str) -> NoReturn:
    """Tell the SuperNode that a task is alive, until this process is killed."""
    from flwr.supercore.heartbeat import make_task_heartbeat_fn_http

    succeeds = make_task_heartbeat_fn_http(_connect(address, token))
    while True:
        time.sleep(_HEARTBEAT_SECONDS if succeeds() else _HEARTBEAT_RETRY_SECONDS)


def _answer_message(
    address: str, token: str, app: _App, message: Message, context: Context, began_to_send: int
) -> None:
    """Run the ClientApp on the message and send its answer, or the exception it raised.

    ``began_to_send`` is a pipe that gets one byte just before.
    """
    from flwr.app import Message as Reply
    from flwr.app.error import Error
    from flwr.common.constant import ErrorCode, SubStatus
    from flwr.supernode.runtime.run_clientapp import push_message, push_task_output

    status, reason = SubStatus.COMPLETED, ""
    try:
        reply = app(message=message, context=context)
    except Exception as error:  # the server records whatever happened here
        traceback.print_exc()
        reason = f"{type(error).__name__}: {error}"
        reply = Reply(
            Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=reason), reply_to=message
        )
        status = SubStatus.FAILED
    client = _connect(address, token)
    os.write(began_to_send, b"1")
    push_message(client, reply, context)
    push_task_output(client, context, status, reason)


def _connect(address: str, credential: Any) -> RuntimeHttpClient:
    """Return a client of the SuperNode's runtime interface; a text is a task's token."""
    from flwr.supercore.interceptors import (
        RuntimeTokenHttpInterceptor,
        RuntimeVersionHttpInterceptor,
    )
    from flwr.supercore.runtime import RuntimeHttpClient

    shown = RuntimeTokenHttpInterceptor(credential) if isinstance(credential, str) else credential
    return RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=True,  # the loopback address of one host
        root_certificates=None,
        interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperExec"), shown],
    )


def _cause(status: int) -> str:
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return f"exit code {os.waitstatus_to_exitcode(status)}"


def _fork(job: Callable[..., object], *arguments: Any, watch: bool = True) -> int:
    """Run a job in a forked process, which exits without its parent's clean-up; return its pid.

    It exits with its parent, where the system sees to that. Elsewhere it does so with ``watch``;
    without, the job must see to it.
    """
    parent = os.getpid()

    def forked() -> int:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if not killed_with_parent(parent) and watch:
            exit_with_parent(parent)
        job(*arguments)
        return 0

    child = os.fork()
    if child == 0:
        exit_after(forked)
    return child


if __name__ == "__main__":
    main()
