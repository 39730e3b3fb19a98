"""From a run directory back to a model: its weights by name, the module, and its predictions."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from flamma.data.encoding import SampleEncoding, as_given
from flamma.data.own import table_columns
from flamma.data.tables import Label
from flamma.errors import ConfigError, DataError, RunError
from flamma.experiments.config import OWN, Config, UnregisteredStrategy
from flamma.experiments.folder import MODEL_CARD, RunFolder
from flamma.io import file_sha256, read_tensors, write_atomically
from flamma.models.weights import NamedWeights, StartWeights, StateDict, packed
from flamma.types import Layout, Params, Population

if TYPE_CHECKING:
    from torch import nn

    from flamma.data.federated import FederatedData
    from flamma.experiments.checkpoint import Checkpoints
    from flamma.experiments.run import Run


# What a run directory says of its model: enough to give the weights their names, and to predict.
#
# ``model.json`` has what the flat vector of weights is made of and what samples and classes are
# like. What a state dict has besides the vector, such as frozen parameters, is in a file of its
# own.

_FIXED_WEIGHTS = "fixed.safetensors"
"""What the state dict of a run's model has besides the vector, if anything."""

_START_WEIGHTS = "start.safetensors"
"""The weights that a run began with, where they were given from Python."""


@dataclass(frozen=True, eq=False)
class ModelCard:
    """What the weights of a run are called, and what its model takes and tells.

    Attributes
    ----------
    naming : NamedWeights
        What makes a state dict of the flat vector.
    shape, dtype
        Of one sample.
    classes : int
        How many classes there are.
    task : str
        What the model is trained for.
    labels : tuple
        The classes as the user calls them; empty where they are numbers.
    start : StartWeights, optional
        What the run began with, where the seed did not draw it.
    start_sha256 : str
        The SHA-256 of that.
    encoding : SampleEncoding, optional
        What is done to samples of the user's own before the model sees them.
    """

    naming: NamedWeights
    shape: tuple[int, ...]
    classes: int
    dtype: str = "float32"
    task: str = "classification"
    labels: tuple[Label, ...] = ()
    start: StartWeights | None = None
    start_sha256: str = ""
    encoding: SampleEncoding | None = None

    @classmethod
    def of(
        cls, data: FederatedData, naming: NamedWeights, start: StartWeights | None = None
    ) -> Self:
        """Return the card of a model that is trained on some data."""
        return cls(
            naming,
            data.shape,
            data.classes,
            str(data.train_x.dtype),
            data.task,
            data.labels,
            start,
            "" if start is None else start.sha256,
            data.encoding,
        )

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Return the card of a run directory; None if it has none.

        Raises
        ------
        RunError
            If it, or a file that belongs to it, is damaged.
        """
        if not (folder / MODEL_CARD).exists():
            return None
        table = RunFolder(folder).read_json(MODEL_CARD)
        encoding = table.get("encoding")
        try:
            return cls(
                _naming(table, _fixed(folder, table)),
                tuple(table["shape"]),
                int(table["classes"]),
                str(table["dtype"]),
                str(table["task"]),
                tuple(table["labels"]),
                start_sha256=str(table["start_sha256"]),
                encoding=None if encoding is None else SampleEncoding.from_json(encoding),
            )
        except RunError:
            raise
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(
                f"{folder / MODEL_CARD} is damaged, so the weights have no names: restore it."
            ) from error

    def write(self, folder: RunFolder, config: Config) -> None:
        """Write the card and what belongs to it, the card last."""
        fixed = folder.path / _FIXED_WEIGHTS
        if self.naming.fixed:
            write_atomically(fixed, packed(self.naming.fixed))
        if self.start is not None and config.weights.start == OWN:
            write_atomically(folder.path / _START_WEIGHTS, self.start.content())
        digest = file_sha256(fixed) if self.naming.fixed else ""
        folder.write_json(MODEL_CARD, self._table(config, digest))

    def check(self, folder: Path) -> None:
        """Refuse to go on with a run whose model was another one.

        Raises
        ------
        RunError
            If the weights have other names or shapes, or the run began with others.
        """
        before = type(self).read(folder)
        if before is None:
            return
        if before.naming.layout != self.naming.layout:
            raise RunError(f"{folder} is a run of another model: give the one it began with.")
        if before.start_sha256 != self.start_sha256:
            source = "the start" if self.start is None else self.start.source
            raise RunError(
                f"{folder} began with other weights than those of {source}: restore them, or run "
                f"the configuration anew into another directory."
            )
        old, new = before.naming.fixed, self.naming.fixed
        if old.keys() != new.keys() or any(
            old[name].shape != new[name].shape or not (old[name] == new[name]).all() for name in old
        ):
            raise RunError(
                f"{folder} is a run with other frozen weights: give the model it began with."
            )

    def _table(self, config: Config, fixed: str) -> dict[str, Any]:
        layout = self.naming.layout
        return {
            "version": 1,
            "model": config.model.name,
            "task": self.task,
            "shape": list(self.shape),
            "dtype": self.dtype,
            "classes": self.classes,
            "labels": list(self.labels),
            "names": list(layout.names),
            "shapes": [list(shape) for shape in layout.shapes],
            "trainable": list(layout.trainable),
            "aliases": dict(self.naming.aliases),
            "start": config.weights.start,
            "start_sha256": self.start_sha256,
            "fixed_sha256": fixed,
            "encoding": None if self.encoding is None else self.encoding.as_json(),
        }


def start_of(
    config: Config, folder: RunFolder, given: StartWeights | None = None
) -> StartWeights | None:
    """Return the weights that a run begins with; None where the seed draws them.

    Those that were given from Python are in the directory of a run that goes on.

    Raises
    ------
    InputFileError
        If their file cannot be read.
    """
    where = config.weights.start
    if given is not None or not where:
        return given
    return StartWeights.read(folder.path / _START_WEIGHTS if where == OWN else Path(where))


def _naming(table: Mapping[str, Any], fixed: StateDict) -> NamedWeights:
    layout = Layout(
        tuple(map(str, table["names"])),
        tuple(tuple(map(int, shape)) for shape in table["shapes"]),
        tuple(map(bool, table["trainable"])),
    )
    return NamedWeights(layout, dict(table["aliases"]), fixed)


def _fixed(folder: Path, table: Mapping[str, Any]) -> StateDict:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    if not table["fixed_sha256"]:
        return {}
    path = folder / _FIXED_WEIGHTS
    try:
        return load(read_tensors(path, str(table["fixed_sha256"])))
    except (SafetensorError, OSError):
        pass
    raise RunError(f"{path} is missing or damaged: restore it.")


_FORMATS = (".safetensors", ".npz", ".onnx")
"""How the names of files end that a model can be saved as."""


def _card_of(run: Run) -> ModelCard:
    """Return what a run says of its model.

    Raises
    ------
    RunError
        If it says nothing.
    """
    card = ModelCard.read(run.path)
    if card is None:
        raise RunError(f"{run.path} has no {MODEL_CARD}, which says what its model is: restore it.")
    return card


def _trained_params(
    run: Run, card: ModelCard, client: int | None = None, number: int | None = None
) -> Params:
    """Return the flat weights after a round: the global ones, or those of a client's own model.

    Raises
    ------
    RunError
        If that round is not kept, or clients have no models of their own.
    """
    from flamma.experiments.checkpoint import Checkpoints

    checkpoints = Checkpoints(run.path)
    rounds = sorted(entry.round for entry in checkpoints.entries())
    if number is not None and number not in rounds:
        kept = f"it has those after round {' and '.join(map(str, rounds))}" if rounds else "none"
        raise RunError(f"{run.path} has no weights of round {number}: {kept}.")
    params = checkpoints.params(number)
    if params is None:
        raise RunError(
            f"{run.path} has no weights: it was not run so far, or its checkpoints were removed."
        )
    if params.shape != (card.naming.layout.size,):
        raise RunError(f"the checkpoints of {run.path} are of another model than its model.json.")
    return params if client is None else _own_params(run, card, checkpoints, client, number)


def _own_params(
    run: Run, card: ModelCard, checkpoints: Checkpoints, client: int, number: int | None
) -> Params:
    """Return the weights of a client's own model, as it evaluates them."""
    from flamma.clients.truth import KEPT, NotesInFiles
    from flamma.experiments.loop import read_population
    from flamma.simulation.client_side import ClientSide

    strategy, clients = run.config.strategy, run.config.data.clients
    if isinstance(strategy, UnregisteredStrategy):
        strategy.check("a client's own model")
    if not 0 <= client < clients:
        raise RunError(f"there is no client {client}: they are 0 to {clients - 1}.")
    known, layout = read_population(RunFolder(run.path)), card.naming.layout
    if known is None:
        raise RunError(f"{run.path} does not say who its clients are.")
    samples, held, costs = known
    population = Population(samples, costs, layout.trainable_size, held, (), layout.trainable_sizes)
    like = strategy.init(np.zeros(layout.size, dtype=np.float32), population)
    state = checkpoints.load(like, number)
    if state is None or number not in (None, state.round):
        raise RunError(f"the checkpoint of {run.path} is damaged.")
    broadcast = strategy.broadcast(state)
    if broadcast.per_client is None and not broadcast.evaluates_kept:
        raise RunError(f"{strategy.name} has one model for all clients: leave out the client.")
    if broadcast.evaluates_kept and run.config.engine.clients_hold_data:
        raise RunError(f"the model of client {client} is at its site, and not in {run.path}.")
    side = ClientSide(strategy, layout.trainable_size, NotesInFiles(run.path / KEPT))
    return side.model_of(client, broadcast)


def trained_weights(run: Run, client: int | None = None, number: int | None = None) -> StateDict:
    """Return the weights after a round by the names of the model's state dict."""
    card = _card_of(run)
    return card.naming.arrays(_trained_params(run, card, client, number))


def trained_module(
    run: Run,
    model: Any = None,
    client: int | None = None,
    number: int | None = None,
) -> nn.Module:
    """Return the module with the weights after a round, in evaluation mode.

    Raises
    ------
    RunError
        If the model was the user's own and is not given.
    """
    from flamma.models import build_model
    from flamma.models.weights import freeze, model_factory

    card = _card_of(run)
    make: Callable[..., Any] | None = run.known_model if model is None else model_factory(model)
    if make is None and run.config.model.name == OWN:
        raise RunError(
            f"{run.path} is a run of your own model, which is not stored: give it again from "
            f"Python, model=..."
        )
    module = build_model(make or run.config.model, card.shape, card.classes, run.config.seed)
    arrays = card.naming.arrays(_trained_params(run, card, client, number))
    StartWeights.of_state_dict(arrays, f"the model of {run.path}").put_into(module)
    freeze(module, run.config.weights.freeze)
    return module.eval()


def save_trained(
    run: Run,
    path: str | Path,
    model: Any = None,
    client: int | None = None,
    number: int | None = None,
) -> Path:
    """Write the weights after a round, or the whole model as ONNX, by how the name ends.

    Raises
    ------
    ConfigError
        If the name ends otherwise.
    """
    from flamma.models.weights import packed_npz

    place = Path(path)
    kind = place.suffix.lower()
    if kind not in _FORMATS:
        raise ConfigError(f"{place} must end in {', '.join(_FORMATS[:-1])} or {_FORMATS[-1]}.")
    card = _card_of(run)
    if kind == ".onnx":
        content = _packed_graph(run, card, trained_module(run, model, client, number))
    elif kind == ".npz":
        content = packed_npz(trained_weights(run, client, number))
    else:
        content = packed_weights(run, client, number)
    write_atomically(place, content)
    return place


def packed_weights(run: Run, client: int | None = None, number: int | None = None) -> bytes:
    """Return the weights after a round as a safetensors file, the same one every time."""
    card = _card_of(run)
    encoding = {} if card.encoding is None else {"encoding": json.dumps(card.encoding.as_json())}
    return packed(trained_weights(run, client, number), encoding | _metadata(run, card))


def _packed_graph(run: Run, card: ModelCard, module: nn.Module) -> bytes:
    """Return the model as an ONNX file that takes samples before they are standardised."""
    from flamma.models.weights import onnx_model, taking_raw_samples

    metadata, encoding, kind = _metadata(run, card), card.encoding, card.dtype
    if encoding is not None:
        metadata["columns"] = json.dumps([asdict(column) for column in encoding.columns])
        if encoding.is_applied:
            module = taking_raw_samples(module, encoding.scale, *encoding.moments(len(card.shape)))
            kind = encoding.raw_dtype
    return onnx_model(module, np.zeros((2, *card.shape), dtype=kind), metadata)


def _metadata(run: Run, card: ModelCard) -> dict[str, str]:
    """Return what a saved model says of itself, as texts."""
    return {
        "flamma_run": RunFolder(run.path).run_id,
        "model": run.config.model.name,
        "task": card.task,
        "shape": json.dumps(list(card.shape)),
        "classes": str(card.classes),
        "labels": json.dumps(list(card.labels), ensure_ascii=False),
    }


def predictions(
    run: Run, samples: Any, model: Any = None, client: int | None = None, shares: bool = False
) -> NDArray[Any]:
    """Return what the trained model says of samples: labels as they were given, or numbers.

    With ``shares`` it is a probability for each class.

    Raises
    ------
    DataError
        If the samples are not such as the model was trained on.
    """
    from flamma.models.weights import outputs_of

    card = _card_of(run)
    if shares and card.task == "regression":
        raise DataError("a regression has no classes, and so no probabilities: use predict.")
    x = encoded(card, samples)
    module = trained_module(run, model, client)
    if not len(x):
        return np.zeros((0, card.classes) if shares else 0)
    outputs = outputs_of(module, x, as_shares=shares)
    if wrong := len(x) - int(np.isfinite(outputs.reshape(len(x), -1)).all(axis=1).sum()):
        why = f"the run diverged: {run.diverged}" if run.diverged else "its weights are too large"
        raise RunError(
            f"the model of {run.path} gives no finite numbers for {wrong} of {len(x)} samples, and "
            f"predicts nothing: {why}."
        )
    if shares:
        return outputs
    if card.task == "regression":
        return outputs.reshape(len(x))
    return as_given(card.labels, outputs.argmax(-1))


def encoded(card: ModelCard, samples: Any) -> NDArray[Any]:
    """Return samples as the model takes them, encoded as those it was trained on.

    Parameters
    ----------
    card : ModelCard
        Of the run.
    samples : array, tensor, table or path
        A table has the columns of the training data, the target left out or not. A path is that of
        a CSV or parquet file.

    Raises
    ------
    DataError
        If they are of another shape, or a column is missing.
    """
    kind = "int64" if card.dtype == "int64" else "float32"
    encoding = card.encoding or SampleEncoding(card.shape, kind)
    if isinstance(samples, str | PathLike):
        columns, _ = table_columns(Path(samples))
        arrays = [np.asarray(values) for values in columns.values()]
        samples = columns if encoding.columns else np.column_stack(arrays)
    return encoding.encode(samples).astype(card.dtype, copy=False)
