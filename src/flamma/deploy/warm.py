"""The place on a site where messages are worked on, by processes that need not start cold.

Flower starts a process per message, which imports torch anew each time. Here one process has
imported everything once; for each message it forks another that is ready at once. It takes
Flower's tasks from the site's SuperNode, as a ``flower-superexec`` would.

A task has three processes: a keeper, which holds the message, one that tells the SuperNode that
the task is alive, and a worker, which does the work. When the worker dies, its keeper answers for
it at once, where Flower would find out after a minute.

Only the ClientApp that the site itself names is run, FLamma's own by default: the code in a
submitted bundle is not even unpacked.

Run as ``python -m flamma.deploy.warm ADDRESS SECRET-FILE READY-FILE APP SITE-FILE``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from flamma.deploy.processes import die_with_parent
from flamma.files import write_atomically

if TYPE_CHECKING:
    from flwr.app import Context, Message
    from flwr.supercore.runtime import RuntimeHttpClient

POLL = 0.2
"""Seconds between two looks for a task."""
BEAT = 15.0
"""Seconds between two signs of life; a task that gives none for a minute is taken for dead."""

WARM = (
    "flwr.supernode.runtime.run_clientapp",
    "flamma.experiments.setup",
    "flamma.training.torch_trainer",
    "flamma.training.lanes",
)
"""What a task needs besides the ClientApp itself; with torch, it takes seconds to import."""

App = Callable[..., Any]


def main() -> None:
    """Take tasks for ever."""
    address, secret, ready, reference, site = sys.argv[1:]
    app = warm_app(reference)
    prepare_data(site)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    signal.signal(signal.SIGINT, lambda *_: os._exit(0))
    write_atomically(Path(ready), str(os.getpid()).encode(), durable=False)
    take_tasks(address, Path(secret).read_bytes(), app)


def warm_app(reference: str) -> App:
    """Import everything a task needs, and return the ClientApp."""
    from importlib import import_module

    for needed in WARM:
        import_module(needed)
    module, _, name = reference.partition(":")
    app: App = getattr(import_module(module), name)
    return app


def prepare_data(site: str) -> None:
    """Read the site's data once, so that they are kept for the tasks, and say if they are bad.

    A process of its own does it, whose memory is given back.
    """
    from flamma.data.site_data import load_site

    child = os.fork()
    if child == 0:
        _exit_with(load_site, site)
    os.waitpid(child, 0)


def take_tasks(address: str, secret: bytes, app: App) -> NoReturn:
    """Ask the SuperNode for tasks, and fork a keeper for each."""
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
            time.sleep(5 * POLL)  # it is being started
            continue
        if answer.HasField("task") and answer.token:
            if os.fork() == 0:
                _exit_with(keep, address, answer.token, app)
        else:
            time.sleep(POLL)


def keep(address: str, token: str, app: App) -> None:
    """Hold one task: fetch its message, let a worker answer it, and answer if it dies."""
    from flwr.app import Message
    from flwr.app.error import Error
    from flwr.common.constant import ErrorCode, SubStatus
    from flwr.supernode.runtime.run_clientapp import (
        pull_task_input,
        push_message,
        push_task_output,
    )

    # A process of its own, since forking from one that has threads is asking for trouble.
    beating = os.fork()
    if beating == 0:
        _exit_with(beat, address, token)
    client = _connect(address, token)
    time.sleep(POLL)  # the message's arrays are still on their way; Flower would wait a second
    try:
        message, context, _, _ = pull_task_input(client)
    except Exception as error:
        # The message never came whole, as when the server's part of a run died while sending it.
        # Finished like this, the SuperNode answers nobody; were it left to find out by itself, it
        # would answer late, and be one answer behind from then on.
        push_task_output(client, None, SubStatus.FAILED, f"no message: {error}")
        raise
    client.close()  # each of the two processes has a connection of its own
    worker = os.fork()
    if worker == 0:
        _exit_with(work, address, token, app, message, context)
    _, status = os.waitpid(worker, 0)
    if status != 0:
        reason = f"the client's process died ({_cause(status)})"
        print(reason, file=sys.stderr, flush=True)
        client = _connect(address, token)
        reply = Message(Error(code=ErrorCode.CLIENT_APP_CRASHED, reason=reason), reply_to=message)
        push_message(client, reply, context)
        push_task_output(client, None, SubStatus.FAILED, reason)
    os.kill(beating, signal.SIGKILL)


def beat(address: str, token: str) -> NoReturn:
    """Tell the SuperNode for ever that a task is alive."""
    from flwr.supercore.heartbeat import make_task_heartbeat_fn_http

    alive = make_task_heartbeat_fn_http(_connect(address, token))
    while True:
        time.sleep(BEAT if alive() else 10 * POLL)


def work(address: str, token: str, app: App, message: Message, context: Context) -> None:
    """Let the ClientApp answer the message, and send the answer; its exception is one too."""
    from flwr.app import Message as Reply
    from flwr.app.error import Error
    from flwr.common.constant import ErrorCode, SubStatus
    from flwr.supernode.runtime.run_clientapp import push_message, push_task_output

    status, reason = SubStatus.COMPLETED, ""
    try:
        reply = app(message=message, context=context)
    except Exception as error:  # whatever happens at a client is its answer
        import traceback

        traceback.print_exc()
        reason = f"{type(error).__name__}: {error}"
        reply = Reply(
            Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=reason), reply_to=message
        )
        status = SubStatus.FAILED
    client = _connect(address, token)
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


def _exit_with(job: Callable[..., object], *arguments: Any) -> NoReturn:
    """Do the job of a forked process and end it, whatever happens, without its parent's clean-up.

    The process dies with the one that forked it, so that none is left behind.
    """
    code = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        die_with_parent()
        job(*arguments)
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
