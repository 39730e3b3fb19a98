"""The deployment engine: the clients of a run are the sites of a deployed federation."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from flamma.clients.trust import TrustLimits
from flamma.deploy.hosts import HOST, ServerHost, read_server
from flamma.errors import ConfigError, DeployError, Key
from flamma.experiments.engine import NetworkEngine, RunParts
from flamma.experiments.folder import RunFolder
from flamma.extras import DEPLOYMENT_MODULES
from flamma.registry import at_least
from flamma.types import Inputs, Targets


@dataclass(frozen=True)
class Deployment(NetworkEngine):
    """Clients at the sites of a federation that ``flamma deploy`` made and started.

    The round loop runs in a ServerApp of the federation, which locks and writes the run directory;
    this process submits the run and follows it.

    Parameters
    ----------
    server : str
        The folder of the server, or of the whole deployment; the run must start on its host.
    samples_ratio : float
        A site counts for at most this many times the median of all sites' samples, unless the
        server's ``host.toml`` says how many it has; 0 for no limit.
    update_ratio : float
        An update longer than this many times the median length of updates is refused; 0 for no
        limit.
    longest_update : float
        An update longer than this is refused in any case; 0 for no limit.
    min_sites : int or "majority"
        How many sites must be connected for a run to begin and to go on; below, it waits. More
        than half of them if not said.
    longest_wait : float
        Seconds that a run waits for so many sites, and for a server that does not answer, before
        it ends with an error and can be resumed; 0 for no end.
    """

    server: str = ""
    samples_ratio: float = 10.0
    update_ratio: float = 1000.0
    longest_update: Annotated[float, at_least(0)] = 0.0
    min_sites: Annotated[int | Literal["majority"], at_least(1)] = "majority"
    longest_wait: Annotated[float, at_least(0)] = 0.0

    name: ClassVar[str] = "deployment"
    summary: ClassVar[str] = "the sites of a federation made by flamma deploy"
    needs: ClassVar[tuple[str, ...]] = DEPLOYMENT_MODULES
    clients_hold_data: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._limits({})

    def quorum(self, clients: int) -> int:
        """Return how many sites a run needs to go on.

        Raises
        ------
        ConfigError
            If there are fewer sites than it needs.
        """
        needed = clients // 2 + 1 if self.min_sites == "majority" else self.min_sites
        if needed > clients:
            raise ConfigError(
                Key("engine.min_sites"), f" is {needed}, but there are {clients} sites."
            )
        return needed

    def quorum_seconds(self) -> float:
        """Return how long a run waits for so many sites; 0 for no end."""
        return self.longest_wait

    def trust_limits(self) -> TrustLimits:
        """Return how far sites are believed, with what the server's ``host.toml`` says."""
        return self._limits(self._host.samples if self.server else {})

    def validation_set(self) -> tuple[Inputs, Targets] | None:
        """Return the validation set that the server's ``host.toml`` names, None if it does not."""
        from flamma.data.sites import all_samples

        if not self.server or not self._host.validation:
            return None
        return all_samples(self._host.folder / HOST, self._host.validation, "validation")

    @property
    def _host(self) -> ServerHost:
        return read_server(Path(self.server))

    def _limits(self, samples: Mapping[str, int]) -> TrustLimits:
        try:
            return TrustLimits(self.samples_ratio, self.update_ratio, self.longest_update, samples)
        except ConfigError as error:
            raise ConfigError(f"engine.{error}") from None

    def execute(self, parts: RunParts) -> None:
        """Submit a run to the federation and follow it to its end.

        A run that Flower still carries out is followed; one that stopped, or whose ServerApp
        dies, is submitted again and goes on from its last finished round. An interrupt asks
        Flower to stop the run.

        Raises
        ------
        FlammaError
            If the run cannot be submitted, or ends before all of its rounds are done.
        """
        from flamma.deploy.following import Followed
        from flamma.deploy.runs import check_online, run_sites

        if parts.objects.data is not None or parts.objects.model is not None:
            raise ConfigError(
                "a deployed run takes no data and no model from Python: the sites have the data, "
                "and the model needs a name that every host knows, by an entry point."
            )
        if not self.server:
            raise ConfigError(
                Key("engine.server"),
                " is missing: name the server's folder, or use flamma deploy run.",
            )
        server, config = read_server(Path(self.server)), parts.config
        folder = RunFolder(Path(os.path.abspath(parts.folder.path)))
        count = len(run_sites(server, folder))
        if config.data.clients != count:
            raise DeployError(
                f"the federation has {count} sites, not {config.data.clients}: set ",
                Key("data.clients"),
                f" to {count}, or leave it to flamma deploy run.",
            )
        self.quorum(config.data.clients)
        if parts.begins:
            check_online(server)
        callbacks = parts.callbacks
        there, told = callbacks.hand_over(), callbacks.following(config, folder)
        run = Followed(server, folder, config, told, callbacks.notice, self.longest_wait)
        run.to_its_end(parts.begins, there)
