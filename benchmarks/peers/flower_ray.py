"""FedAvg in Flower's simulation on Ray, with as many actors as there are cores.

Flower draws its own clients and its node ids are random, so a strategy with the workload's
clients takes the place of its sampling; aggregation is Flower's own.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch_client import Client
from workload import Record, Workload

FOLDER, OUT, ROUNDS = os.environ.get("PEERS_ARGUMENTS", "\n\n0").split("\n")
_CLIENT: list[Client] = []
client_app, server_app = ClientApp(), ServerApp()


@client_app.query()
def name(message: Message, context: Context) -> Message:
    """Say which client of the workload this node is."""
    which = MetricRecord({"partition-id": int(context.node_config["partition-id"])})
    return Message(RecordDict({"which": which}), reply_to=message)


@client_app.train()
def train(message: Message, context: Context) -> Message:
    if not _CLIENT:
        _CLIENT.append(Client(Workload(FOLDER)))
    weights = message.content["arrays"].to_numpy_ndarrays()
    number = int(message.content["config"]["server-round"])
    trained = _CLIENT[0].train(weights, number, int(context.node_config["partition-id"]))
    metrics = MetricRecord({"num-examples": _CLIENT[0].work.settings.samples})
    content = RecordDict({"arrays": ArrayRecord(trained), "metrics": metrics})
    return Message(content, reply_to=message)


class FixedClients(FedAvg):
    """FedAvg with the workload's clients."""

    def __init__(self, work: Workload, record: Record) -> None:
        super().__init__(fraction_evaluate=0.0, min_available_nodes=work.settings.clients)
        self.work, self.record = work, record
        self._nodes: dict[int, int] = {}

    def configure_train(self, server_round, arrays, config, grid):
        if not self._nodes:
            self._nodes = nodes_of(grid, self.work.settings.clients)
        config["server-round"] = server_round
        content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        chosen = self.work.selected[server_round - 1].tolist()
        return self._construct_messages(content, [self._nodes[c] for c in chosen], "train")

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        assert len(replies) == self.work.settings.per_round
        assert not any(reply.has_error() for reply in replies)
        arrays, metrics = super().aggregate_train(server_round, replies)
        self.record.round_done()
        return arrays, metrics


def nodes_of(grid: Grid, clients: int) -> dict[int, int]:
    """Ask every node which client it is."""
    while len(nodes := list(grid.get_node_ids())) < clients:
        time.sleep(0.05)
    asked = [Message(RecordDict(), dst_node_id=node, message_type="query") for node in nodes]
    replies = grid.send_and_receive(asked)
    return {r.content["which"]["partition-id"]: r.metadata.src_node_id for r in replies}


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    work, record = Workload(FOLDER), Record(OUT)
    strategy = FixedClients(work, record)
    result = strategy.start(grid, ArrayRecord(work.weights), num_rounds=int(ROUNDS))
    record.finish(result.arrays.to_numpy_ndarrays())


if __name__ == "__main__":
    os.environ["PEERS_ARGUMENTS"] = "\n".join(sys.argv[1:4])
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    # Ray's actors import the apps by name, which the main script has not.
    import flower_ray

    settings = Workload(sys.argv[1]).settings
    run_simulation(
        server_app=flower_ray.server_app,
        client_app=flower_ray.client_app,
        num_supernodes=settings.clients,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": settings.processes},
        },
    )
