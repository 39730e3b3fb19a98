"""All behaviours by name."""

from __future__ import annotations

from flamma.clients.behaviours.contract import Behaviour
from flamma.registry import Registry

LIARS = "flamma.clients.behaviours.liars"
ATTACKERS = "flamma.clients.behaviours.attackers"

BEHAVIOURS: Registry[type[Behaviour]] = Registry(
    "behaviour",
    "flamma.behaviours",
    {
        "honest": Behaviour,
        "cost-liar": f"{LIARS}:CostLiar",
        "imitator": f"{LIARS}:Imitator",
        "free-rider": f"{LIARS}:FreeRider",
        "epoch-faker": f"{LIARS}:EpochFaker",
        "part-trainer": f"{LIARS}:PartTrainer",
        "data-inflater": f"{LIARS}:DataInflater",
        "loss-inflater": f"{LIARS}:LossInflater",
        "sybil": f"{LIARS}:Sybil",
        "dropper": f"{LIARS}:Dropper",
        "sign-flip": f"{ATTACKERS}:SignFlip",
        "scaled-update": f"{ATTACKERS}:ScaledUpdate",
        "label-flip": f"{ATTACKERS}:LabelFlip",
        "gaussian-noise": f"{ATTACKERS}:GaussianNoise",
    },
)
"""All behaviours by name."""
