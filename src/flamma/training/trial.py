"""Tries a model before a run: whether its outputs suit the task and the metric."""

from __future__ import annotations

from dataclasses import replace

import torch

from flamma.errors import ConfigError, FlammaError
from flamma.models.flat import FlatModel
from flamma.models.own import takes_whole_numbers
from flamma.tasks.measures import Measures
from flamma.types import Inputs, Targets

TRIAL_SAMPLES = 2


def tried(measures: Measures, model: FlatModel, x: Inputs, y: Targets) -> Measures:
    """Return measures that know the shape of a model's outputs.

    What lanes could do by themselves is not tried: those are labels, and any classifier fits them.

    Parameters
    ----------
    measures : Measures
        What the run measures.
    model : FlatModel
        Its model, whose weights stay as they are.
    x, y : arrays
        Some samples; zeros are tried where there are none.

    Raises
    ------
    ConfigError
        If the model cannot take the samples, or its outputs do not suit the loss or the metric.
    """
    if measures.metric.marks_right and not measures.why_not_lanes():
        return measures
    samples = (x[:TRIAL_SAMPLES], y[:TRIAL_SAMPLES])
    if not len(x):
        samples = measures.task.blank(TRIAL_SAMPLES, tuple(x.shape[1:]))
    inputs, targets = (torch.tensor(part, device=model.device) for part in samples)
    module, metric = model.module.eval(), measures.metric
    try:
        if not inputs.is_floating_point() and not takes_whole_numbers(module, inputs):
            inputs = inputs.float()
        with torch.no_grad():
            outputs = module(inputs)
            marks = metric.mark(outputs, targets, measures.losses(outputs, targets))
    except FlammaError as error:
        raise ConfigError(str(error)) from error
    except Exception as error:  # whatever a module or a function of the user's may raise
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise ConfigError(
            f"the model cannot be used for {measures.task.name} with samples of shape "
            f"{tuple(x.shape[1:])}: {type(error).__name__}: {reason}."
        ) from error
    if not metric.takes_outputs:
        return measures
    return replace(measures, metric=replace(metric, mark_shape=tuple(marks.shape[1:])))
