"""Deregistering a SuperNode that died without doing so itself.

The SuperLink counts a silent SuperNode as online for about a minute, does not let it back in
meanwhile, and keeps a run waiting for its answer. So the site's supervisor deregisters it.

Run as ``python -m flamma.deploy.deregister FOLDER SERVER``.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from flamma.deploy.hosts import SiteHost, read_host
from flamma.errors import DeployError

_LOG_TAIL_BYTES = 1_000_000
"""How much of the end of the SuperNode's log is searched for its node id."""
_NODE_ID = re.compile(rb"SuperNode ID: (\d+)")


def _last_node_id(log: Path) -> int | None:
    """Return the last node id in a SuperNode's log; None if the server never gave it one."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _LOG_TAIL_BYTES))
            found = _NODE_ID.findall(file.read())
    except OSError:
        return None
    return int(found[-1]) if found else None


def _deregister(host: SiteHost, server: str, node_id: int) -> None:
    """Tell the SuperLink, signed with the site's key, that its SuperNode is gone."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key
    from flwr.proto.fleet_pb2 import DeactivateNodeRequest
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    key = load_ssh_private_key(host.key.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    with FleetHttpClient.from_server_address(
        server,
        False,
        host.authority.read_bytes(),
        interceptors=[
            RuntimeVersionHttpInterceptor(component_name="SuperNode"),
            NodeAuthHttpInterceptor(key, key.public_key()),
        ],
    ) as client:
        client.DeactivateNode(DeactivateNodeRequest(node_id=node_id))


def main() -> None:
    """Deregister the SuperNode of a site; a failure is logged, and the SuperLink times out."""
    import httpx

    host = read_host(Path(sys.argv[1]))
    if not isinstance(host, SiteHost):
        raise DeployError(f"{host.folder} is the server's folder; only a site has a SuperNode.")
    node_id = _last_node_id(host.logs / "supernode.log")
    if node_id is None:
        return
    try:
        _deregister(host, sys.argv[2], node_id)
    except (httpx.HTTPError, OSError, ValueError) as error:
        print(f"could not deregister node {node_id}: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
