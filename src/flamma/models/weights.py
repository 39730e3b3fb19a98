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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flamma.errors import ConfigError, FlammaError, InputFileError, Key
from flamma.extras import require
from flamma.io import DamagedTensorsError, open_regular, read_regular, read_tensors, unknown
from flamma.models import MODELS, ModelFactory
from flamma.types import Layout, Params

if TYPE_CHECKING:
    from torch import Tensor, nn


_PICKLED = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle")
"""How the names of files end that torch pickles into."""


@dataclass(frozen=True, eq=False)
class StartWeights:
    """The initial weights of a run.

    Attributes
    ----------
    tensors : mapping of str to Tensor
        By the names of the module's state dict.
    source : str
        Their name in messages: a file, or an argument.
    sha256 : str
        The SHA-256 of the file, or of the file that they would make.
    """

    tensors: Mapping[str, Tensor]
    source: str
    sha256: str

    @classmethod
    def read(cls, path: Path) -> StartWeights:
        """Return the weights of a safetensors or npz file."""
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
    def of_state_dict(cls, given: Mapping[str, Tensor | ArrayLike], source: str) -> StartWeights:
        """Return weights that were given as a state dict of tensors or arrays."""
        arrays = {name: _array(name, value) for name, value in given.items()}
        return cls.of_bytes(packed(arrays), source)

    def content(self) -> bytes:
        """Return them as the bytes of a safetensors file."""
        return packed({name: tensor.numpy() for name, tensor in self.tensors.items()})

    def put_into(self, module: nn.Module) -> None:
        """Set all weights of a module to these.

        Counters, which training resets, and further names of shared weights may be missing.
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


def packed(arrays: Mapping[str, ArrayLike], metadata: Mapping[str, str] | None = None) -> bytes:
    """Return arrays by name as the bytes of a safetensors file."""
    from safetensors.numpy import save

    plain = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    content = save(plain, metadata=dict(metadata) if metadata else None)
    # The library writes the metadata in another order in every process. Sorted, equal weights are
    # equal files. A header is padded with blanks to a multiple of eight bytes.
    size = int.from_bytes(content[:8], "little")
    table = json.loads(content[8 : 8 + size])
    notes = table.pop("__metadata__", None)
    ordered = table if notes is None else {"__metadata__": dict(sorted(notes.items())), **table}
    header = json.dumps(ordered, separators=(",", ":"), ensure_ascii=False).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + content[8 + size :]


def packed_npz(arrays: Mapping[str, NDArray[np.generic]]) -> bytes:
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
    """Keep parameters from being trained, by their names or patterns such as ``features.*``."""
    parameters = dict(module.named_parameters())
    for pattern in patterns:
        fitting = [name for name in parameters if fnmatchcase(name, pattern)]
        if not fitting:
            why = unknown("parameter", pattern, parameters)
            raise ConfigError(Key("model.freeze"), f" names an {why}")
        for name in fitting:
            parameters[name].requires_grad_(False)


def _of_npz(content: bytes) -> dict[str, Tensor]:
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


def _array(name: str, value: Tensor | ArrayLike) -> NDArray[np.generic]:
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
    listed = list(names)
    more = len(listed) - 3
    return ", ".join(listed[:3]) + (f" and {more} more" if more > 0 else "")


# A flat vector of weights as a state dict: arrays by the names that the module gives them.

StateDict = dict[str, NDArray[np.generic]]
"""Weights by name, as a module's state dict has them."""


@dataclass(frozen=True, eq=False)
class NamedWeights:
    """The conversion of a flat vector to a state dict, without the module.

    Attributes
    ----------
    layout : Layout
        The layout of the vector.
    aliases : mapping of str to str
        Further names of parameters that modules share, with the name in the layout.
    fixed : mapping of str to ndarray
        Further entries of a state dict: frozen parameters and counters.
    """

    layout: Layout
    aliases: Mapping[str, str]
    fixed: Mapping[str, NDArray[np.generic]]

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


# A user's model: a module, a class, or a function.

_GIVEN_BY_NAME = ("shape", "classes")
"""The parameters of a class or a function that are recognised by name."""


def model_factory(model: nn.Module | Callable[..., nn.Module] | str) -> ModelFactory:
    """Return ``(shape, classes) -> torch.nn.Module`` of a user's model.

    Parameters
    ----------
    model : torch.nn.Module, class, callable or str
        A module is copied, and its weights are the ones to begin with. A class or a function is
        called with the shape of one sample and the number of classes if it takes two arguments,
        with those of ``shape`` and ``classes`` that it names, or with nothing. A text is the name
        of a registered model.

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
        given_kind = getattr(model, "__name__", f"a {type(model).__name__}")
        raise ConfigError(
            f"model must be a torch.nn.Module, a class, a function of shape and classes, or a "
            f"name, not {given_kind}."
        )
    return _called(model)


def given_weights(model: nn.Module | Callable[..., nn.Module] | str) -> StartWeights | None:
    """Return the weights of a given module, None of a factory.

    A module that cannot be trained has none either: it is refused, with the reason, later.
    """
    from torch import nn
    from torch.nn.parameter import is_lazy

    if not isinstance(model, nn.Module):
        return None
    if any(is_lazy(part) or not part.is_floating_point() for part in model.parameters()):
        return None
    return StartWeights.of_state_dict(state_tensors(model), "the given module")


def _called(make: Callable[..., nn.Module]) -> ModelFactory:
    """Return a factory that calls a class or a function with the arguments it takes."""
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


def _as_taken(module: nn.Module, samples: Tensor) -> Tensor:
    """Return samples as a module takes them: whole numbers as they are if it can, else float32."""
    if samples.is_floating_point() or takes_whole_numbers(module, samples[:1]):
        return samples
    return samples.float()


def check_outputs(
    module: nn.Module, samples: NDArray[np.generic], classes: int, task: str = "classification"
) -> None:
    """Refuse a model of the user's own that does not return what its task needs.

    A copy of it is tried on a few samples.
    """
    import torch

    count = len(samples)
    if not count:
        return
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        trial = copy.deepcopy(module).eval()
        try:
            output = trial(_as_taken(trial, torch.tensor(samples)))
        except Exception as error:
            reason = str(error).partition("\n")[0].rstrip(".") or type(error).__name__
            raise ConfigError(
                f"the model cannot take {count} samples of shape {samples.shape[1:]}: {reason}."
            ) from error
    wanted: tuple[tuple[int, ...], ...] = ((count, classes),)
    if task == "regression":
        wanted = (count,), (count, 1)
    elif task == "next-token":
        wanted = ((count, *samples.shape[1:], classes),)
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


# Predictions of a trained module, and a module as a file that other runtimes read.

_SAMPLES_AT_ONCE = 512
"""The samples of one forward pass."""


def outputs_of(
    module: nn.Module, samples: NDArray[np.generic], as_shares: bool = False
) -> NDArray[np.float32]:
    """Return a module's outputs for samples, computed in batches and in evaluation mode.

    With ``as_shares`` they are the softmax over the last axis.
    """
    import torch

    parts = []
    module.eval()
    with torch.inference_mode():
        for start in range(0, len(samples), _SAMPLES_AT_ONCE):
            batch = torch.tensor(samples[start : start + _SAMPLES_AT_ONCE])
            output = module(_as_taken(module, batch)).float()
            parts.append((output.softmax(-1) if as_shares else output).numpy())
    return np.concatenate(parts)


def taking_raw_samples(
    module: nn.Module, scale: float, mean: NDArray[np.generic], std: NDArray[np.generic]
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

        def forward(self, samples: Tensor) -> Tensor:
            standardised = (samples.double() / scale - means) / deviations
            outputs: Tensor = self.module(standardised.float())
            return outputs

    return TakingRawSamples().eval()


def onnx_model(
    module: nn.Module, samples: NDArray[np.generic], metadata: Mapping[str, str]
) -> bytes:
    """Return a module as the bytes of an ONNX file, for any number of samples at once.

    Its input is called ``samples``, of the type of the examples given here, and its output
    ``outputs``.
    """
    import torch

    require("an ONNX file", "onnx", "onnxscript")
    example = _as_taken(module.eval(), torch.tensor(samples))
    # torch reports its deprecations and packages that a model does not need.
    log = logging.getLogger("torch.onnx")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
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
    finally:
        log.setLevel(before)
    assert program is not None
    program.model.metadata_props.update(metadata)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        program.save(str(file))
        return file.read_bytes()
