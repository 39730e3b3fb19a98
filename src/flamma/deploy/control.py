"""Control of the SuperLink from its own host: registering sites, listing nodes and runs.

``python -m flamma.deploy.control FOLDER`` registers the sites' keys once the SuperLink answers.
"""

from __future__ import annotations

import contextlib
import json
import os
import ssl
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from flamma.deploy.commands import no_http_proxy
from flamma.deploy.hosts import ServerHost, read_server
from flamma.deploy.keys import public_key_bytes
from flamma.errors import DeployError
from flamma.io import write_atomically

if TYPE_CHECKING:
    from flwr.supercore.control import ControlHttpClient

_REGISTER_TIMEOUT_SECONDS = 60.0
"""Seconds that a SuperLink has to answer after it was started."""
_REGISTER_RETRY_SECONDS = 0.3
"""Seconds between two attempts to register the sites."""


@dataclass(frozen=True)
class _Node:
    """A registered SuperNode."""

    node_id: int
    status: str
    public_key: bytes

    @property
    def registered(self) -> bool:
        """Whether it was not unregistered, which cannot be undone."""
        return self.status != "unregistered"

    @property
    def online(self) -> bool:
        """Whether the SuperLink hears from it."""
        return self.status == "online"


@dataclass(frozen=True)
class FlowerRun:
    """The state of a run in Flower: ``outcome`` is empty until ``status`` is finished."""

    run_id: int
    status: str
    outcome: str
    details: str

    @property
    def finished(self) -> bool:
        """Whether it has ended, well or badly."""
        return self.status == "finished"

    @property
    def completed(self) -> bool:
        """Whether it has ended without an error."""
        return self.finished and self.outcome == "completed"


class Control:
    """A connection to the SuperLink of this host; a context manager."""

    def __init__(self, host: ServerHost) -> None:
        from flwr.supercore.control import ControlHttpClient
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

        self.host = host
        try:
            certificate = host.authority.read_bytes()
        except OSError as error:
            raise DeployError(f"cannot read {host.authority}: {error.strerror}.") from error
        with _environment(no_http_proxy()):
            self._client: ControlHttpClient = ControlHttpClient.from_server_address(
                server_address=f"127.0.0.1:{host.control_port}",
                insecure=False,
                root_certificates=certificate,
                interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
            )

    def nodes(self) -> list[_Node]:
        """Return the registered SuperNodes."""
        from flwr.proto.control_pb2 import ListNodesRequest

        answer = self._ask("ListNodes", ListNodesRequest())
        return [_Node(n.node_id, n.status, n.public_key) for n in answer.nodes_info]

    def register(self) -> dict[str, int]:
        """Register the keys of the sites and no others; return all sites' node ids.

        A key that belongs to no site any more is unregistered: the SuperLink refuses it at once,
        and for good.
        """
        from flwr.proto.control_pb2 import RegisterNodeRequest, UnregisterNodeRequest

        known = {node.public_key: node.node_id for node in self.nodes() if node.registered}
        former = set(known.values())
        found = {}
        for name in self.host.sites:
            key = public_key_bytes(self.host.public_key(name))
            if key not in known:
                request = RegisterNodeRequest(public_key=key, name=name)
                known[key] = self._ask("RegisterNode", request).node_id
            found[name] = known[key]
        for node in former - set(found.values()):
            self._ask("UnregisterNode", UnregisterNodeRequest(node_id=node))
        return found

    def offline(self) -> tuple[str, ...]:
        """Return the names of the sites that are not online."""
        online = {node.node_id for node in self.nodes() if node.online}
        nodes = known_nodes(self.host)
        return tuple(name for name in self.host.sites if nodes.get(name) not in online)

    def runs(self) -> list[FlowerRun]:
        """Return all runs, the newest last."""
        from flwr.proto.control_pb2 import ListRunsRequest

        answer = self._ask("ListRuns", ListRunsRequest())
        found = sorted(answer.run_dict.values(), key=lambda run: run.pending_at)
        return [_run(run) for run in found]

    def run(self, run_id: int) -> FlowerRun:
        """Return one run."""
        from flwr.proto.control_pb2 import ListRunsRequest

        answer = self._ask("ListRuns", ListRunsRequest(run_id=run_id))
        if run_id not in answer.run_dict:
            raise DeployError(f"the server knows no run {run_id}.")
        return _run(answer.run_dict[run_id])

    def stop(self, run_id: int) -> None:
        """Ask Flower to stop a run."""
        from flwr.proto.control_pb2 import StopRunRequest

        self._ask("StopRun", StopRunRequest(run_id=run_id))

    def _ask(self, method: str, request: Any) -> Any:
        import httpx

        try:
            return getattr(self._client, method)(request)
        except (httpx.TransportError, ssl.SSLError) as error:
            raise DeployError(
                f"the server does not answer on port {self.host.control_port} ({error}): start "
                f"it with flamma deploy start {self.host.folder}."
            ) from error
        except httpx.HTTPStatusError as error:
            text = error.response.text.strip().splitlines()
            raise DeployError(
                f"the server refused ({error.response.status_code}): {text[0] if text else '-'}."
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables in this block only; an HTTP client looks for proxies when it is created."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def known_nodes(host: ServerHost) -> dict[str, int]:
    """Return the node id of each registered site; empty before the server has started."""
    try:
        table = json.loads(host.nodes.read_text(encoding="utf-8"))
        return {str(name): int(node) for name, node in table.items()}
    except (OSError, ValueError, AttributeError):
        return {}


def write_nodes(host: ServerHost, nodes: Mapping[str, int]) -> None:
    """Write down the node id of each site."""
    write_atomically(host.nodes, json.dumps(nodes, indent=1).encode())


def _run(run: Any) -> FlowerRun:
    status = run.status
    return FlowerRun(run.run_id, status.status, status.sub_status, status.details)


def main() -> None:
    """Register the sites' keys as soon as the SuperLink answers."""
    host = read_server(Path(sys.argv[1]))
    until = time.monotonic() + _REGISTER_TIMEOUT_SECONDS
    while True:
        try:
            with Control(host) as control:
                nodes = control.register()
            break
        except DeployError as error:
            if time.monotonic() > until:
                sys.exit(f"flamma: {error}")
            time.sleep(_REGISTER_RETRY_SECONDS)
    write_nodes(host, nodes)


if __name__ == "__main__":
    main()
