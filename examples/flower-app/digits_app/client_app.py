"""The clients. What FLamma adds to a usual ClientApp are the four lines that call it."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from digits_app.task import load, loader, make_model, score
from flamma.flower import batches, introduce, reply, respond

COSTS = (0.05, 0.1, 0.15)
"""What an epoch costs the clients, in turn. The server is not told."""

app = ClientApp()


def mine(message: Message, context: Context):
    """Return the received model, and this client's data and number."""
    number = int(context.node_config["partition-id"])
    train, held = load(number, int(context.node_config["num-partitions"]))
    model = make_model()
    if "arrays" in message.content:
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return model, train, held, number


@app.query()
def query(message: Message, context: Context) -> Message:
    """Say who this client is."""
    _, train, _, _ = mine(message, context)
    return introduce(message, context, samples=len(train))


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train as long as it pays for this client."""
    model, data, _, number = mine(message, context)
    task = respond(message, cost=COSTS[number % len(COSTS)], samples=len(data))
    received_loss, _ = score(model, data)
    optimizer = torch.optim.SGD(model.parameters(), lr=task.learning_rate)
    model.train()
    for x, y in batches(task, loader(data, seed=1000 * task.round + number)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return reply(message, task, ArrayRecord(model.state_dict()), len(data), received_loss)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate the model on this client's held-out digits."""
    model, _, held, _ = mine(message, context)
    loss, accuracy = score(model, held)
    told = {"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(held)}
    return Message(RecordDict({"metrics": MetricRecord(told)}), reply_to=message)
