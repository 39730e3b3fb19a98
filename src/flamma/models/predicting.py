"""What a trained module says of samples, and a module as a file that other runtimes read."""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flamma.errors import FlammaError
from flamma.extras import require
from flamma.models.own import as_taken

if TYPE_CHECKING:
    from torch import nn

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
