"""The local training of clients."""

from flamma.training.jobs import TooSlow as TooSlow
from flamma.training.torch_trainer import TorchTrainer as TorchTrainer
