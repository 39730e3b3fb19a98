"""Weights by name: read from a file, put into a module, and kept from being trained.

Files are safetensors or npz. What torch pickles is not read: a pickle runs whatever code it holds.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flamma.errors import ConfigError, InputFileError
from flamma.files import DamagedTensorsError, open_regular, read_regular, read_tensors
from flamma.names import unknown

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor, nn

PICKLED = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle")
"""How the names of files end that torch pickles into."""

NAMES_TOLD = 3
"""The most names of weights in a message."""


@dataclass(frozen=True, eq=False)
class StartWeights:
    """Weights that a run begins with.

    Attributes
    ----------
    tensors : mapping of str to Tensor
        By the names of the module's state dict.
    source : str
        What they are called in messages: their file, or what was given from Python.
    sha256 : str
        The SHA-256 of the file, or of the file that they would make.
    """

    tensors: Mapping[str, Tensor]
    source: str
    sha256: str

    @classmethod
    def read(cls, path: Path) -> StartWeights:
        """Return the weights of a safetensors or npz file.

        Raises
        ------
        InputFileError
            If the file cannot be read, or is a pickle.
        """
        if path.suffix.lower() in PICKLED:
            raise InputFileError(
                f"{path} is a pickle, which can run any code, so it is not read: convert it with "
                f"safetensors.torch.save_file(torch.load({path.name!r}, weights_only=True), "
                f"{path.with_suffix('.safetensors').name!r})."
            )
        try:
            with open_regular(path) as file:
                is_npz = file.read(2) == b"PK"
            content = read_regular(path) if is_npz else read_tensors(path)
        except DamagedTensorsError as error:
            raise InputFileError(f"{path} is neither safetensors nor npz: {error}.") from error
        except OSError as error:
            raise InputFileError(f"cannot read {path}: {error.strerror or error}.") from error
        return cls.of_bytes(content, str(path))

    @classmethod
    def of_bytes(cls, content: bytes, source: str) -> StartWeights:
        """Return the weights that the bytes of a file are."""
        from safetensors import SafetensorError
        from safetensors.torch import load

        try:
            tensors = _of_npz(content) if content[:2] == b"PK" else load(content)
        except (SafetensorError, ValueError, KeyError, TypeError, EOFError, OSError) as error:
            raise InputFileError(f"{source} is neither safetensors nor npz: {error}.") from error
        return cls(tensors, source, hashlib.sha256(content).hexdigest())

    @classmethod
    def of_state_dict(cls, given: Mapping[str, Any], source: str) -> StartWeights:
        """Return weights that were given as a state dict of tensors or arrays."""
        arrays = {name: _array(name, value) for name, value in given.items()}
        return cls.of_bytes(packed(arrays), source)

    def content(self) -> bytes:
        """Return them as the bytes of a safetensors file."""
        return packed({name: tensor.numpy() for name, tensor in self.tensors.items()})

    def put_into(self, module: nn.Module) -> None:
        """Set all weights of a module to these.

        Counters, which training begins anew, and further names of shared weights may be missing.

        Raises
        ------
        ConfigError
            If a name is missing or unknown, or a shape is another one; the first few are named.
        """
        import torch

        own = state_tensors(module)
        given = {id(own[name]) for name in self.tensors if name in own}
        lacking = [
            name
            for name, tensor in own.items()
            if name not in self.tensors and id(tensor) not in given and tensor.is_floating_point()
        ]
        extra = sorted(name for name in self.tensors if name not in own)
        shapes = [
            f"{name} is {tuple(tensor.shape)} and not {tuple(own[name].shape)}"
            for name, tensor in self.tensors.items()
            if name in own and tensor.shape != own[name].shape
        ]
        found = [
            *([f"it has no {_some(lacking)}"] if lacking else []),
            *([f"the model has no {_some(extra)}"] if extra else []),
            *([_some(shapes)] if shapes else []),
        ]
        if found:
            raise ConfigError(f"{self.source} does not fit the model: {'; '.join(found)}.")
        with torch.no_grad():
            for name, tensor in self.tensors.items():
                own[name].copy_(tensor)


def state_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return what a module's state dict has, without what is no tensor; they are its own."""
    import torch

    saved = module.state_dict(keep_vars=True)
    return {name: part for name, part in saved.items() if isinstance(part, torch.Tensor)}


def packed(arrays: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> bytes:
    """Return arrays by name as the bytes of a safetensors file."""
    import numpy as np
    from safetensors.numpy import save

    plain = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    return _in_order(save(plain, metadata=dict(metadata) if metadata else None))


def _in_order(content: bytes) -> bytes:
    """Return a safetensors file whose header is in order, so that equal weights are equal files.

    The library writes the metadata in another order in every process. A header is padded with
    blanks to a multiple of eight bytes.
    """
    size = int.from_bytes(content[:8], "little")
    table = json.loads(content[8 : 8 + size])
    told = table.pop("__metadata__", None)
    ordered = table if told is None else {"__metadata__": dict(sorted(told.items())), **table}
    header = json.dumps(ordered, separators=(",", ":"), ensure_ascii=False).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + content[8 + size :]


def packed_npz(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return arrays by name, whatever the names are, as the bytes of an npz file."""
    from numpy.lib.format import write_array

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in arrays.items():
            # Its time is always the same, so that equal weights are equal files.
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as file:
                write_array(file, array, allow_pickle=False)
    return buffer.getvalue()


def freeze(module: nn.Module, patterns: Sequence[str]) -> None:
    """Keep parameters from being trained, by their names or patterns such as ``features.*``.

    Raises
    ------
    ConfigError
        If a pattern fits no parameter (the nearest name is named).
    """
    parameters = dict(module.named_parameters())
    for pattern in patterns:
        fitting = [name for name in parameters if fnmatchcase(name, pattern)]
        if not fitting:
            raise ConfigError(unknown("parameter in model.freeze", pattern, parameters))
        for name in fitting:
            parameters[name].requires_grad_(False)


def _of_npz(content: bytes) -> dict[str, Tensor]:
    import numpy as np
    import torch

    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            return {name: torch.from_numpy(np.array(file[name])) for name in file.files}
    except zipfile.BadZipFile as error:
        raise ValueError(str(error)) from error
    except ValueError as error:
        if "seek" not in str(error):
            raise
        # The directory at the end of the file says where more of it should be.
        raise ValueError("a part of the file is missing") from error


def _array(name: str, value: Any) -> Any:
    import numpy as np
    import torch

    if isinstance(value, torch.Tensor):
        plain = value.detach().cpu()
        return (plain.float() if plain.is_floating_point() else plain).numpy()
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    raise ConfigError(
        f"start must be a state dict of tensors or arrays, but {name!r} is a "
        f"{type(value).__name__}."
    )


def _some(names: Iterable[str]) -> str:
    told = list(names)
    more = len(told) - NAMES_TOLD
    return ", ".join(told[:NAMES_TOLD]) + (f" and {more} more" if more > 0 else "")
