"""One watched forward and backward pass through a network at initialization, for all of the paper's figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeVar

import pandas as pd
from torch import Tensor

from normless.probes import ChannelMoments, GradientMoments, LogitGradients, Watcher, observe
from normless_papers.probes import (
    ActivationHistograms,
    ChannelContributions,
    ChannelGradients,
    ChannelPairs,
    GradientSums,
    LogitGradientMatrix,
    ParameterGradientHistograms,
    ParameterGradients,
    SummandDistribution,
    for_each_class,
)
from normless_papers.understanding_bn.initializations import Draw, conv_path

HISTOGRAM_LAYERS = (9, 45, 81, 83)
SUMMED_LAYERS = (18, 19, 54, 55, 90, 91)
READING_LAYERS = (19, 35, 55, 91)
PARAMETER_LAYERS = (35, 54)
# Every stage has at least this many channels.
HISTOGRAM_CHANNELS = tuple(range(16))
WEIGHT_55, WEIGHT_52 = (f"{conv_path(layer)}.weight" for layer in (55, 52))

# Two kinds of network in more draws than any budget has.
_MOST: Final = 64


@dataclass(frozen=True)
class Pass:
    """The tables of the watchers of one pass on the first minibatch of a draw.

    Attributes:
        moments: of channels, every layer.
        activations: histograms of channels, `HISTOGRAM_LAYERS`.
        contributions: of in-channels, `READING_LAYERS`.
        gradients: moments of every parameter's gradient.
        gradient_histogram: of layer 55.
        sums: of gradients' summands, `SUMMED_LAYERS`.
        parameters: of `PARAMETER_LAYERS`.
        summands: of two parameters of layer 90, the one with the largest gradient and one with a small gradient.
        pairs: of channels of layer 45.
        pair_structure: of those pairs' matrix.
        channels: gradients of every layer's channels.
        logits: gradients by class.
        logits_by_example: gradients by class and example.
    """

    moments: pd.DataFrame
    activations: pd.DataFrame
    contributions: pd.DataFrame
    gradients: pd.DataFrame
    gradient_histogram: pd.DataFrame
    sums: pd.DataFrame
    parameters: pd.DataFrame
    summands: pd.DataFrame
    pairs: pd.DataFrame
    pair_structure: pd.DataFrame
    channels: pd.DataFrame
    logits: pd.DataFrame
    logits_by_example: pd.DataFrame


@dataclass(frozen=True)
class ClassPass:
    """Gradients of the kernel of layer 52 with the logit gradients of all classes but one at zero.

    Attributes:
        sizes: `class`, `mean_abs`, `share` and `predicted_share`, a row per class.
        elements: `class`, `element` and `gradient`, a row per class and element.
    """

    sizes: pd.DataFrame
    elements: pd.DataFrame


_Cached = TypeVar("_Cached")
_passes: dict[object, Pass] = {}
_class_passes: dict[object, ClassPass] = {}


def pass_of(draw: Draw) -> Pass:
    """The pass of a draw, cached, since most artefacts use the same networks."""
    if draw.key not in _passes:
        _add(_passes, draw, _observed(draw))
    return _passes[draw.key]


def class_pass_of(draw: Draw) -> ClassPass:
    """The gradients of a draw by class, cached."""
    if draw.key not in _class_passes:
        _add(_class_passes, draw, _by_class(draw))
    return _class_passes[draw.key]


def _add(cache: dict[object, _Cached], draw: Draw, value: _Cached) -> None:
    """Add an entry, and drop the oldest ones above the limit."""
    while len(cache) >= _MOST:
        del cache[next(iter(cache))]
    cache[draw.key] = value


def _observed(draw: Draw) -> Pass:
    def paths(layers: tuple[int, ...]) -> list[str]:
        return [conv_path(layer) for layer in layers]

    pairs = ChannelPairs(paths((45,)))
    watchers: dict[str, Watcher] = {
        "moments": ChannelMoments(),
        "activations": ActivationHistograms(layers=paths(HISTOGRAM_LAYERS), channels=HISTOGRAM_CHANNELS),
        "contributions": ChannelContributions(paths(READING_LAYERS)),
        "gradients": GradientMoments(),
        "gradient_histogram": ParameterGradientHistograms(parameters=[WEIGHT_55]),
        "sums": GradientSums(paths(SUMMED_LAYERS)),
        "parameters": ParameterGradients(paths(PARAMETER_LAYERS)),
        "summands": SummandDistribution(conv_path(90), ("largest", "small")),
        "pairs": pairs,
        "channels": ChannelGradients(),
        "logits": LogitGradients(),
        "logits_by_example": LogitGradientMatrix(),
    }
    observe(draw.model, list(watchers.values()), draw.inputs, draw.targets)
    return Pass(pair_structure=pairs.structure(), **{name: watcher.table() for name, watcher in watchers.items()})


def _by_class(draw: Draw) -> ClassPass:
    sizes, elements = [], []

    def visit(index: int, predicted: float, gradients: dict[str, Tensor]) -> None:
        values = gradients[WEIGHT_52].double().flatten()
        sizes.append({"class": index, "mean_abs": float(values.abs().mean()), "predicted_share": predicted})
        rows = {"class": index, "element": range(len(values)), "gradient": values.numpy()}
        elements.append(pd.DataFrame(rows))

    for_each_class(draw.model, draw.inputs, draw.targets, visit, parameters=[WEIGHT_52])
    table = pd.DataFrame(sizes)
    return ClassPass(table.assign(share=table["mean_abs"] / table["mean_abs"].sum()), pd.concat(elements))
