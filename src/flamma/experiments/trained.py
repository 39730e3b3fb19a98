"""From a run directory back to a model: its weights by name, the module, and its predictions."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flamma.data.encoding import SampleEncoding, as_given
from flamma.data.own.files import table_columns
from flamma.errors import ConfigError, DataError, RunError
from flamma.experiments.config import OWN, UnregisteredStrategy
from flamma.experiments.folder import RunFolder
from flamma.experiments.model_card import ModelCard
from flamma.files import write_atomically
from flamma.models.named import StateDict
from flamma.types import Params, Population

if TYPE_CHECKING:
    from torch import nn

    from flamma.experiments.checkpoint import Checkpoints
    from flamma.experiments.run import Run

FORMATS = (".safetensors", ".npz", ".onnx")
"""How the names of files end that a model can be saved as."""


def card_of(run: Run) -> ModelCard:
    """Return what a run says of its model; one of an older version is worked out if it can be.

    Raises
    ------
    RunError
        If nothing says it.
    """
    card = ModelCard.read(run.path)
    if card is not None:
        return card
    config = run.config
    if OWN in (config.data.dataset, config.model.name):
        raise RunError(f"{run.path} does not say what its model is: run it once more.")
    from flamma.data.datasets import DATASETS
    from flamma.experiments.setup import build_module
    from flamma.models.flat import FlatModel

    entry = DATASETS[config.data.dataset].for_task(config.data.task)
    classes = len(entry.class_names)
    naming = FlatModel(build_module(config, entry.shape, classes)).naming
    return ModelCard(naming, entry.shape, classes)


def trained_params(
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
    from flamma.clients.behaviours.notes import KEPT, NotesInFiles
    from flamma.engines.client_side import ClientSide
    from flamma.experiments.world import read_population

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
    download = strategy.download(state)
    if download.model_for is None and not download.scores_kept:
        raise RunError(f"{strategy.name} has one model for all clients: leave out the client.")
    if download.scores_kept and run.config.engine.clients_hold_data:
        raise RunError(f"the model of client {client} is at its site, and not in {run.path}.")
    side = ClientSide(strategy, layout.trainable_size, NotesInFiles(run.path / KEPT))
    return side.model_of(client, download)


def trained_weights(run: Run, client: int | None = None, number: int | None = None) -> StateDict:
    """Return the weights after a round by the names of the model's state dict."""
    card = card_of(run)
    return card.naming.arrays(trained_params(run, card, client, number))


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
    from flamma.models.own import model_factory
    from flamma.models.weights import StartWeights, freeze

    card = card_of(run)
    make: Callable[..., Any] | None = run.known_model if model is None else model_factory(model)
    if make is None and run.config.model.name == OWN:
        raise RunError(
            f"{run.path} is a run of your own model, which is not stored: give it again from "
            f"Python, model=..."
        )
    module = build_model(make or run.config.model, card.shape, card.classes, run.config.seed)
    arrays = card.naming.arrays(trained_params(run, card, client, number))
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
    if kind not in FORMATS:
        raise ConfigError(f"{place} must end in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}.")
    card = card_of(run)
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
    from flamma.models.weights import packed

    card = card_of(run)
    encoding = {} if card.encoding is None else {"encoding": json.dumps(card.encoding.as_json())}
    return packed(trained_weights(run, client, number), encoding | _metadata(run, card))


def _packed_graph(run: Run, card: ModelCard, module: nn.Module) -> bytes:
    """Return the model as an ONNX file that takes samples before they are standardised."""
    from flamma.models.predicting import onnx_model, taking_raw_samples

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
    from flamma.models.predicting import outputs_of

    card = card_of(run)
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
        samples = columns if encoding.columns else np.column_stack(list(columns.values()))
    return encoding.encode(samples).astype(card.dtype, copy=False)
