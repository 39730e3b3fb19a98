"""A site's SuperNode, which gives signs of life and exits when it cannot go on.

Flower's SuperNode ends its work at an error that it does not expect, such as one answer with HTTP
500 or a TLS handshake that times out. But one of its threads goes on, so that the process seems to
be alive. The thread that sends heartbeats may end in the same way. Here the process exits with its
work, and each attempt to send a heartbeat is noted in a file, so that the supervisor restarts it.

Run as ``python -m flamma.deploy.supernode SIGNS-FILE OPTION..`` with the options of
``flower-supernode``.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import Any

from flamma.deploy.liveness import SignGiver

ALIVE_PATHS = frozenset(("/v1/fleet/activate-node", "/v1/fleet/send-node-heartbeat"))
"""The requests by which a SuperNode tells that it is there."""


def give_signs(client: type, signs: SignGiver) -> None:
    """Let a class of clients note its requests; Flower has no setting for this."""
    kind: Any = client
    send = kind._unary_unary

    def noted(self: Any, *, path: str, **options: Any) -> Any:
        if path in ALIVE_PATHS:
            signs.asks()
        answer = send(self, path=path, **options)
        signs.is_answered()
        return answer

    kind._unary_unary = noted


def main() -> None:
    """Run the SuperNode, and exit when it is done, whatever its threads do."""
    from flwr.supernode.cli import flower_supernode
    from flwr.supernode.fleet_http_client import FleetHttpClient

    give_signs(FleetHttpClient, SignGiver(Path(sys.argv[1])))
    sys.argv = ["flower-supernode", *sys.argv[2:]]
    try:
        flower_supernode()
        print("the SuperNode has ended its work", file=sys.stderr)
    except Exception:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(1)


if __name__ == "__main__":
    main()
