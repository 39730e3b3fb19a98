"""Weights by name: read from a file, put into a module, and kept from being trained.

Files are safetensors or npz. What torch pickles is not read: a pickle runs whatever code it holds.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import io
import json
import logging
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flamma.errors import ConfigError, FlammaError, InputFileError, Key
from flamma.extras import require
from flamma.io import DamagedTensorsError, open_regular, read_regular, read_tensors, unknown
from flamma.models import MODELS, ModelFactory
from flamma.types import Layout, Params

if TYPE_CHECKING:
    from torch import Tensor, nn


_PICKLED = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle")
"""How the names of files end that torch pickles into."""

_NAMES_TOLD = 3
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
        if path.suffix.lower() in _PICKLED:
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
            why = unknown("parameter", pattern, parameters)
            raise ConfigError(Key("model.freeze"), f" names an {why}")
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
    more = len(told) - _NAMES_TOLD
    return ", ".join(told[:_NAMES_TOLD]) + (f" and {more} more" if more > 0 else "")


# A flat vector of weights as a state dict: arrays by the names that the module gives them.

StateDict = dict[str, NDArray[Any]]
"""Weights by name, as a module's state dict has them."""


@dataclass(frozen=True, eq=False)
class NamedWeights:
    """What turns a flat vector into a state dict, without the module.

    Attributes
    ----------
    layout : Layout
        What the vector is made of.
    aliases : mapping of str to str
        Further names of parameters that modules share, with the name in the layout.
    fixed : mapping of str to ndarray
        What a state dict has that is not part of the vector: frozen parameters and counters.
    """

    layout: Layout
    aliases: Mapping[str, str]
    fixed: Mapping[str, NDArray[Any]]

    def arrays(self, params: Params) -> StateDict:
        """Return the state dict of a flat vector.

        Examples
        --------
        >>> layout = Layout(("weight", "bias"), ((1, 2), (1,)), (True, True))
        >>> NamedWeights(layout, {}, {}).arrays(np.array([1, 2, 3], dtype=np.float32))["weight"]
        array([[1., 2.]], dtype=float32)
        """
        layout = self.layout
        parts = np.split(params, np.cumsum(layout.sizes)[:-1])
        named: StateDict = {
            name: part.reshape(shape).copy()
            for name, shape, part in zip(layout.names, layout.shapes, parts, strict=True)
        }
        named |= {name: named[own] for name, own in self.aliases.items()}
        return named | dict(self.fixed)


# A model of the user's own, whatever it was given as: a module, a class, or a function.

_GIVEN_BY_NAME = ("shape", "classes")
"""The parameters of a class or a function that are told by their name."""


def model_factory(model: Any) -> ModelFactory:
    """Return ``(shape, classes) -> torch.nn.Module`` of whatever a user calls a model.

    Parameters
    ----------
    model : torch.nn.Module, class, callable or str
        A module is copied, and its weights are the ones to begin with. A class or a function is
        called with the shape of one sample and the number of classes if it takes two arguments,
        with those of ``shape`` and ``classes`` that it names, or with nothing. A text is the name
        of a registered model.

    Raises
    ------
    ConfigError
        If it is none of these, or takes other arguments.

    Examples
    --------
    >>> from torch import nn
    >>> class Net(nn.Linear):
    ...     def __init__(self, classes):
    ...         super().__init__(4, classes)
    >>> model_factory(Net)((4,), 3)
    Net(in_features=4, out_features=3, bias=True)
    >>> model_factory(nn.Bilinear)
    Traceback (most recent call last):
    ...
    flamma.errors.ConfigError: the model Bilinear cannot be made: it takes in1_features,
    in2_features, out_features; give a function of shape and classes, such as lambda shape,
    classes: Bilinear(...).
    """
    from torch import nn

    if isinstance(model, str):
        return MODELS[model]
    if isinstance(model, nn.Module):
        given: nn.Module = model
        return lambda shape, classes: copy.deepcopy(given)
    if not callable(model) or getattr(model, "__module__", "") == "builtins":
        given_kind = model.__name__ if callable(model) else f"a {type(model).__name__}"
        raise ConfigError(
            f"model must be a torch.nn.Module, a class, a function of shape and classes, or a "
            f"name, not {given_kind}."
        )
    return _called(model)


def given_weights(model: Any) -> StartWeights | None:
    """Return the weights of a module that was given with them, None of what only makes one.

    A module that cannot be trained has none either: it is refused, with the reason, later.
    """
    from torch import nn
    from torch.nn.parameter import is_lazy

    if not isinstance(model, nn.Module):
        return None
    if any(is_lazy(part) or not part.is_floating_point() for part in model.parameters()):
        return None
    return StartWeights.of_state_dict(state_tensors(model), "the given module")


def _called(make: Callable[..., Any]) -> ModelFactory:
    """Return what calls a class or a function with as much as it takes."""
    try:
        parameters = list(inspect.signature(make).parameters.values())
    except (TypeError, ValueError):  # written in C: its parameters are not known
        return make
    open_ended = [p for p in parameters if p.kind is p.VAR_POSITIONAL]
    named = [
        p.name for p in parameters if p.name in _GIVEN_BY_NAME and p.kind is not p.POSITIONAL_ONLY
    ]
    needed = [
        p.name
        for p in parameters
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if named and set(needed) <= set(named):
        return lambda shape, classes: make(
            **{name: (shape, classes)[_GIVEN_BY_NAME.index(name)] for name in named}
        )
    if _takes_both(parameters, needed) or (open_ended and not needed):
        return lambda shape, classes: make(shape, classes)
    if not needed:
        return lambda shape, classes: make()
    name = getattr(make, "__name__", type(make).__name__)
    raise ConfigError(
        f"the model {name} cannot be made: it takes {', '.join(needed)}; give a function of shape "
        f"and classes, such as lambda shape, classes: {name}(...)."
    )


def _takes_both(parameters: list[inspect.Parameter], needed: list[str]) -> bool:
    """Return whether just two arguments are needed that can be the shape and the classes."""
    by_name_only = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    elsewhere = [
        name
        for name, place in zip(needed, _GIVEN_BY_NAME, strict=False)
        if name in by_name_only or (name in _GIVEN_BY_NAME and name != place)
    ]
    return len(needed) == 2 and not elsewhere


def takes_whole_numbers(module: nn.Module, sample: Tensor) -> bool:
    """Return whether a module takes whole numbers, as one that begins with an embedding does.

    Most layers refuse them: they multiply by real numbers.
    """
    import torch

    try:
        with torch.inference_mode():
            module(sample)
    except Exception:  # whatever a module may raise
        return False
    return True


def as_taken(module: nn.Module, samples: Tensor) -> Tensor:
    """Return samples as a module takes them: whole numbers as they are if it can, else float32."""
    if samples.is_floating_point() or takes_whole_numbers(module, samples[:1]):
        return samples
    return samples.float()


def check_outputs(
    module: nn.Module, samples: NDArray[Any], classes: int, task: str = "classification"
) -> None:
    """Refuse a model of the user's own that does not return what its task needs.

    A copy of it is tried on a few samples.

    Raises
    ------
    ConfigError
        If it raises, or its output has another shape.
    """
    import torch

    count = len(samples)
    if not count:
        return
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        trial = copy.deepcopy(module).eval()
        try:
            output = trial(as_taken(trial, torch.tensor(samples)))
        except Exception as error:
            reason = str(error).partition("\n")[0].rstrip(".") or type(error).__name__
            raise ConfigError(
                f"the model cannot take {count} samples of shape {samples.shape[1:]}: {reason}."
            ) from error
    wanted = wanted_outputs(task, samples, classes)
    shape = tuple(getattr(output, "shape", ()))
    if shape not in wanted:
        is_tensor = isinstance(output, torch.Tensor)
        found = f"one of shape {shape}" if is_tensor else f"a {type(output).__name__}"
        raise ConfigError(
            f"for {count} samples the model must return a tensor of shape "
            f"{' or '.join(map(str, wanted))}, but it returns {found}: "
            f"{_ADVICE.get(task, 'look at its last layer')}."
        )


_ADVICE = {
    "classification": "its last layer needs one logit for each class, without a softmax",
    "regression": "its last layer needs one number for each sample",
}


def wanted_outputs(task: str, samples: NDArray[Any], classes: int) -> tuple[tuple[int, ...], ...]:
    """Return the shapes that a model's output may have for some samples."""
    count = len(samples)
    if task == "regression":
        return (count,), (count, 1)
    if task == "next-token":
        return ((count, *samples.shape[1:], classes),)
    return ((count, classes),)


# What a trained module says of samples, and a module as a file that other runtimes read.

SAMPLES_PREDICTED_AT_ONCE = 512
"""The samples of one forward pass."""


def outputs_of(
    module: nn.Module, samples: NDArray[Any], as_shares: bool = False
) -> NDArray[np.float32]:
    """Return a module's outputs for samples, computed in batches and in evaluation mode.

    With ``as_shares`` they are the softmax over the last axis.
    """
    import torch

    parts = []
    module.eval()
    with torch.inference_mode():
        for start in range(0, len(samples), SAMPLES_PREDICTED_AT_ONCE):
            batch = torch.tensor(samples[start : start + SAMPLES_PREDICTED_AT_ONCE])
            output = module(as_taken(module, batch)).float()
            parts.append((output.softmax(-1) if as_shares else output).numpy())
    return np.concatenate(parts)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch from telling of its deprecations and of packages that a model does not need."""
    told = logging.getLogger("torch.onnx")
    before = told.level
    told.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        told.setLevel(before)


def taking_raw_samples(
    module: nn.Module, scale: float, mean: NDArray[Any], std: NDArray[Any]
) -> nn.Module:
    """Return a module that takes samples before they are scaled and standardised.

    It computes ``(samples / scale - mean) / std`` in double precision, then the module's outputs.
    """
    import torch
    from torch import nn

    means, deviations = torch.from_numpy(mean), torch.from_numpy(std)

    class TakingRawSamples(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, samples: torch.Tensor) -> Any:
            standardised = (samples.double() / scale - means) / deviations
            return self.module(standardised.float())

    return TakingRawSamples().eval()


def onnx_model(module: nn.Module, samples: NDArray[Any], metadata: Mapping[str, str]) -> bytes:
    """Return a module as the bytes of an ONNX file, for any number of samples at once.

    Its input is called ``samples``, of the type of the examples given here, and its output
    ``outputs``.

    Raises
    ------
    MissingExtraError
        If the packages for that are not installed.
    FlammaError
        If torch cannot export a layer of the module.
    """
    import torch

    require("an ONNX file", "onnx", "onnxscript")
    example = as_taken(module.eval(), torch.tensor(samples))
    try:
        with _quiet():
            program = torch.onnx.export(
                module,
                (example,),
                input_names=["samples"],
                output_names=["outputs"],
                dynamic_shapes=({0: torch.export.Dim("count")},),
                verbose=False,
                dynamo=True,
            )
    except Exception as error:  # whatever a layer may raise
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise FlammaError(f"torch cannot export this model to ONNX: {reason}.") from error
    assert program is not None
    program.model.metadata_props.update(metadata)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        program.save(str(file))
        return file.read_bytes()
