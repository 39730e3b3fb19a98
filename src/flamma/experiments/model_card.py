"""What a run directory says of its model: enough to give the weights their names, and to predict.

``model.json`` has what the flat vector of weights is made of and what samples and classes are
like. What a state dict has besides the vector, such as frozen parameters, is in a file of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from flamma.data.cells import Label
from flamma.data.encoding import SampleEncoding
from flamma.errors import RunError
from flamma.experiments.config import OWN, Config
from flamma.experiments.folder import RunFolder
from flamma.experiments.manifest import signed, verified
from flamma.files import file_sha256, read_tensors, write_atomically
from flamma.models.named import NamedWeights, StateDict
from flamma.types import Layout

if TYPE_CHECKING:
    from flamma.data.federated import FederatedData
    from flamma.models.weights import StartWeights

MODEL_CARD = "model.json"
FIXED_WEIGHTS = "fixed.safetensors"
"""What the state dict of a run's model has besides the vector, if anything."""

START_WEIGHTS = "start.safetensors"
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
        text = RunFolder(folder).text(MODEL_CARD)
        if not text:
            return None
        table = verified(text)
        try:
            if table is None:
                raise ValueError("checksum")
            return cls(
                _naming(table, _fixed(folder, table)),
                tuple(table["shape"]),
                int(table["classes"]),
                str(table["dtype"]),
                str(table["task"]),
                tuple(table["labels"]),
                start_sha256=str(table["start_sha256"]),
                encoding=_encoding(table.get("encoding")),
            )
        except RunError:
            raise
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(
                f"{folder / MODEL_CARD} is damaged, so the weights have no names: restore it."
            ) from error

    def write(self, folder: Path, config: Config) -> None:
        """Write the card and what belongs to it, the card last."""
        from flamma.models.weights import packed

        if self.naming.fixed:
            write_atomically(folder / FIXED_WEIGHTS, packed(self.naming.fixed))
        if self.start is not None and config.weights.start == OWN:
            write_atomically(folder / START_WEIGHTS, self.start.content())
        fixed = file_sha256(folder / FIXED_WEIGHTS) if self.naming.fixed else ""
        write_atomically(folder / MODEL_CARD, signed(self._table(config, fixed)).encode())

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
        if not _equal(before.naming.fixed, self.naming.fixed):
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
    from flamma.models.weights import StartWeights

    where = config.weights.start
    if given is not None or not where:
        return given
    return StartWeights.read(folder.path / START_WEIGHTS if where == OWN else Path(where))


def _encoding(table: Mapping[str, Any] | None) -> SampleEncoding | None:
    return None if table is None else SampleEncoding.from_json(table)


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
    path = folder / FIXED_WEIGHTS
    try:
        return load(read_tensors(path, str(table["fixed_sha256"])))
    except (SafetensorError, OSError):
        pass
    raise RunError(f"{path} is missing or damaged: restore it.")


def _equal(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one.keys() == other.keys() and all(
        one[name].shape == other[name].shape and (one[name] == other[name]).all() for name in one
    )
