"""The local training of clients."""

from flamma.training.torch_trainer import TooSlow as TooSlow
from flamma.training.torch_trainer import TorchTrainer as TorchTrainer
