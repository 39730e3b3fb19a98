"""All behaviours by name."""

from __future__ import annotations

from flamma.clients.behaviours.contract import Behaviour
from flamma.registry import Registry

LIARS = "flamma.clients.behaviours.liars"
SHIRKERS = "flamma.clients.behaviours.shirkers"
ATTACKERS = "flamma.clients.behaviours.attackers"

BEHAVIOURS: Registry[type[Behaviour]] = Registry(
    "behaviour",
    "flamma.behaviours",
    {
        "honest": Behaviour,
        "cost-liar": f"{LIARS}:CostLiar",
        "imitator": f"{LIARS}:Imitator",
        "data-inflater": f"{LIARS}:DataInflater",
        "loss-inflater": f"{LIARS}:LossInflater",
        "free-rider": f"{SHIRKERS}:FreeRider",
        "epoch-faker": f"{SHIRKERS}:EpochFaker",
        "part-trainer": f"{SHIRKERS}:PartTrainer",
        "sybil": f"{SHIRKERS}:Sybil",
        "dropper": f"{SHIRKERS}:Dropper",
        "sign-flip": f"{ATTACKERS}:SignFlip",
        "scaled-update": f"{ATTACKERS}:ScaledUpdate",
        "label-flip": f"{ATTACKERS}:LabelFlip",
        "gaussian-noise": f"{ATTACKERS}:GaussianNoise",
    },
)
"""All behaviours by name."""
