"""Callbacks: what hears of a run's start, of every finished round and of its end."""

from flamma.experiments.callbacks.base import Callback as Callback
from flamma.experiments.callbacks.base import RoundFunction as RoundFunction
from flamma.experiments.callbacks.base import RunStart as RunStart
from flamma.experiments.callbacks.base import StopRun as StopRun
from flamma.experiments.callbacks.best_checkpoint import BestCheckpoint as BestCheckpoint
from flamma.experiments.callbacks.best_checkpoint import BestRound as BestRound
from flamma.experiments.callbacks.best_checkpoint import best_round as best_round
from flamma.experiments.callbacks.dispatch import Callbacks as Callbacks
from flamma.experiments.callbacks.early_stopping import EarlyStopping as EarlyStopping
from flamma.experiments.callbacks.recorded import CALLBACKS as CALLBACKS
from flamma.experiments.callbacks.tracker import TRACKERS as TRACKERS
from flamma.experiments.callbacks.tracker import Tracker as Tracker
