"""FedAvg as Flower has it; every phase's seconds go to a file."""

import json
import time

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


class Timed(FedAvg):
    """Writes down how long each phase took."""

    def __init__(self, out, **options):
        super().__init__(**options)
        self.out, self.began = out, 0.0

    def configure_train(self, *arguments):
        self.began = time.monotonic()
        return super().configure_train(*arguments)

    def configure_evaluate(self, *arguments):
        self.began = time.monotonic()
        return super().configure_evaluate(*arguments)

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        self.note("train", server_round)
        return super().aggregate_train(server_round, replies)

    def aggregate_evaluate(self, server_round, replies):
        replies = list(replies)
        self.note("evaluate", server_round)
        return super().aggregate_evaluate(server_round, replies)

    def note(self, kind, number):
        seconds = time.monotonic() - self.began
        with open(self.out, "a", encoding="utf-8") as file:
            file.write(json.dumps({"kind": kind, "round": number, "seconds": seconds}) + "\n")


@app.main()
def main(grid: Grid, context: Context) -> None:
    model = torch.nn.Linear(784, 10)
    strategy = Timed(str(context.run_config["out"]), min_available_nodes=3)
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(model.state_dict()),
        num_rounds=int(context.run_config["rounds"]),
    )
