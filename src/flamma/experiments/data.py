"""From a configuration to the data of a run."""

from __future__ import annotations

from pathlib import Path

from flamma.data.build import build_federation
from flamma.data.federated import FederatedData
from flamma.experiments.config import Config


def build_data(config: Config, data_dir: Path | None = None) -> FederatedData:
    """Return the data of a run, split over its clients.

    The server's validation set is cut off whether the strategy needs it or not, so that all
    strategies see the same clients.
    """
    data = config.data
    return build_federation(
        data.dataset,
        data.split,
        data.clients,
        config.seed,
        shards_per_client=data.shards_per_client,
        classes_per_client=data.classes_per_client,
        alpha=data.alpha,
        uneven=data.uneven,
        train_samples=data.train_samples,
        validation_samples=data.validation_samples,
        held_out=data.held_out,
        data_dir=data_dir,
    )
