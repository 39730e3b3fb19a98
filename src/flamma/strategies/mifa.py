"""MIFA: FedAvg with a memory of every client's last update.

Gu et al., "Fast federated learning in the presence of arbitrary device unavailability",
NeurIPS 2021. It is what FLamma-plus adds to FLamma, without the game: the row that tells whether
a gain is the memory's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from flamma.strategies.base import Answers
from flamma.strategies.fedavg import Averaging
from flamma.strategies.memory import Remembering, check_memory, empty_memory, recall
from flamma.strategies.rows import RowFormat
from flamma.types import Params, Population


@dataclass(frozen=True)
class Mifa(Averaging[Remembering]):
    """The step is Σ p_i m^(age_i) u_i over all clients heard from, p by data size.

    Parameters
    ----------
    memory : float
        m, the factor by which an update fades with each round of age; MIFA has 1.
    persistence : float
        How much of an update is repeated though the model has moved on; MIFA has 1.
    rows : {"auto", "float32", "float16"}
        How updates are kept on disk; ``auto`` is float32 up to 256 MiB for all clients, else
        float16.
    """

    name: ClassVar[str] = "mifa"
    label: ClassVar[str] = "FedAvg + memory"
    summary: ClassVar[str] = "FedAvg with a memory of every client's last update"
    family: ClassVar[str] = "optimisation"

    memory: float = 1.0
    persistence: float = 1.0
    rows: RowFormat = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_memory(self.memory, self.persistence)

    def init(self, params: Params, population: Population) -> Remembering:
        """Start with no update of any client."""
        memory = empty_memory(
            self, population.clients, params.size, fading=self.memory, kept_as=self.rows
        )
        return Remembering(params, 0, population.samples, population.trainable_size, *memory)

    def combine(self, state: Remembering, answers: Answers) -> Remembering:
        """Remember this round's updates and step by all that is remembered."""
        if not answers.accepted:
            return state
        recalled = recall(
            self,
            state,
            answers.accepted,
            answers.offer.round,
            answers.reference,
            fading=self.memory,
            persistence=self.persistence,
        )
        return replace(state, **recalled._asdict())
