"""Logistic regression in torch on a site's own data."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flamma.data.sites import load_site

app = ClientApp()


def restored(message: Message) -> torch.nn.Module:
    model = torch.nn.Linear(784, 10)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return model


@app.train()
def train(message: Message, context: Context) -> Message:
    site, model = load_site(str(context.node_config["site"])), restored(message)
    x, y = torch.from_numpy(site.x).flatten(1), torch.from_numpy(site.y)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    for start in range(0, len(y), 32):
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(
            model(x[start : start + 32]), y[start : start + 32]
        )
        loss.backward()
        optimiser.step()
    records = {
        "arrays": ArrayRecord(model.state_dict()),
        "metrics": MetricRecord({"num-examples": len(y)}),
    }
    return Message(RecordDict(records), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    site, model = load_site(str(context.node_config["site"])), restored(message)
    with torch.no_grad():
        right = model(torch.from_numpy(site.held_x).flatten(1)).argmax(1) == torch.from_numpy(
            site.held_y
        )
    metrics = MetricRecord({"num-examples": len(right), "accuracy": float(right.float().mean())})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
