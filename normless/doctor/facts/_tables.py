"""The facts of a diagnosis as tables: operations, layers, blocks, classes, loss, batch, parameters, trials."""

from __future__ import annotations

from math import nan
from typing import Any

import pandas as pd
from torch import Tensor

from normless.doctor.facts._examination import Examination
from normless.doctor.facts._held import named_groups
from normless.doctor.facts._tape import norm_of
from normless.doctor.facts._tracer import tensors

# Numbers of a layer's output, with the activations and attentions.
_OF_LAYERS = ("gradient", "correlation", "off", "saturated", "peaked", "rate")


def tables_of(exam: Examination) -> dict[str, pd.DataFrame]:
    """Return what the checks read, a table for each subject.

    `operations` has a row for each call of the pass and the loss with the line of code, `layers` for each measured
    layer, activation and attention (E[y²] of its output, the root mean square of the gradient there, …), `blocks` for
    each residual block, `classes` for each class (its share of predictions, targets and of the gradient), `loss` for
    each known loss of the batch, `batch` for each tensor of it, `parameters` for each parameter (norms, shares of the
    squared gradient, λ‖w‖ relative to the gradient, ‖Δw‖/‖w‖ of the first trial step), and `trials` for each trial
    step of the unchanged network.
    """
    tables = {"batch": _batch(exam)}
    if "passed" not in vars(exam):
        return tables
    passed = exam.passed
    operations = [
        {"place": call.place, "operation": call.name, "shape": call.shape, "line": str(call.line or "")}
        | {"trained": call.is_trained, "signal": call.is_signal}
        for call in passed.flow.calls
    ]
    layers = [
        {"place": event.place, "operation": event.call.name, "kind": event.call.layer, "shape": event.call.shape}
        | {"second_moment": event.made.second, "deviation": event.made.deviation, "spread": event.made.spread}
        | {name: getattr(event, name) for name in _OF_LAYERS}
        for event in passed.events
    ]
    signal, backward = (passed.tables.get(name, pd.DataFrame(columns=["name"])) for name in ("signal", "backward"))
    fresh = [column for column in backward.columns if column == "name" or column not in signal.columns]
    losses = {"in training mode": passed.loss, "of rounding": passed.rounding}
    for name, attribute in (("in evaluation mode", "evaluated_loss"), ("of the best constant outputs", "guessing")):
        # Values that no check needed are not computed here.
        losses |= {name: vars(exam)[attribute]} if attribute in vars(exam) else {}
    trials = [
        {"trial": number, "rate": trial.rate, "step": step, "loss": loss}
        for number, trial in enumerate(exam.trials)
        for step, loss in enumerate(trial.losses)
    ]
    return tables | {
        "operations": pd.DataFrame(operations),
        "layers": pd.DataFrame(layers),
        "blocks": signal.merge(backward[fresh], on="name", how="left"),
        "classes": passed.tables.get("logits", pd.DataFrame()),
        "loss": pd.DataFrame({"loss": losses.keys(), "value": losses.values()}),
        "parameters": _parameters(exam),
        "trials": pd.DataFrame(trials, columns=["trial", "rate", "step", "loss"]),
    }


def _batch(exam: Examination) -> pd.DataFrame:
    """Return shape, type and range of each tensor of the batch."""
    rows = []
    for part, values in (("inputs", exam.inputs), ("targets", exam.targets)):
        for number, tensor in enumerate(tensors(values)):
            row = {"part": part, "number": number, "shape": tuple(tensor.shape)}
            rows.append(row | {"type": str(tensor.dtype).removeprefix("torch.")} | _range(tensor))
    return pd.DataFrame(rows)


def _range(tensor: Tensor) -> dict[str, Any]:
    if tensor.is_complex() or tensor.is_sparse or not tensor.numel():
        return {}
    values = tensor.detach().double()
    deviation = float(values.std(unbiased=False))
    return {"least": float(values.min()), "mean": float(values.mean()), "most": float(values.max()), "std": deviation}


def _parameters(exam: Examination) -> pd.DataFrame:
    """Return the norms of the parameters and their gradients, and what the optimizer does with them."""
    groups = [] if exam.optimizer is None else named_groups(exam.optimizer, exam.model)
    settings = {name: group.settings for group in groups for name in group.names}
    shares = exam.trials[0].shares if exam.trials else {}
    gradients = exam.passed.gradients
    whole = sum(norm**2 for norm in gradients.values() if norm) or nan
    rows = []
    for name, parameter in exam.model.named_parameters():
        norm, gradient = norm_of(parameter.detach()), gradients.get(name)
        own = settings.get(name, {})
        decay = float(own.get("weight_decay", 0.0)) * norm
        rows.append(
            {"name": name, "shape": tuple(parameter.shape), "norm": norm, "gradient": gradient}
            | {"share_of_gradient": (gradient or 0.0) ** 2 / whole, "lr": float(own.get("lr", nan))}
            | {"decay_to_gradient": decay / gradient if gradient else nan, "update": shares.get(name, nan)}
        )
    return pd.DataFrame(rows)
