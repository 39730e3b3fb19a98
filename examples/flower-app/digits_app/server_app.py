"""The server: a usual ServerApp whose strategy is one of FLamma's."""

from pathlib import Path

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from digits_app.task import make_model
from flamma.flower import FlammaStrategy, FlowerStrategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds and print how evenly the model serves the clients."""
    config = context.run_config
    name, per_round = str(config["strategy"]), int(config["per-round"])
    if name == "flamma":
        strategy = FlammaStrategy(per_round, learning_rate=0.1)
    else:
        strategy = FlowerStrategy(name, per_round, learning_rate=0.1)
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(make_model().state_dict()),
        num_rounds=int(config["num-server-rounds"]),
    )
    for record in strategy.history:
        print(
            f"round {record.round}: decay factor {record.offer.decay_factor:.3f}, "
            f"epochs {record.outcome.local_epochs}, accuracy {record.metric('accuracy'):.1f}%, "
            f"variance {record.metric('accuracy_variance'):.1f}"
        )
    if config["result"]:
        lines = [record.to_json() + "\n" for record in strategy.history]
        Path(str(config["result"])).write_text("".join(lines), encoding="utf-8")
