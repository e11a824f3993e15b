"""One pass forward and back through a network at initialization, watched for everything that the figures show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pandas as pd
from torch import Tensor

from normless.probes import (
    ChannelGradients,
    ChannelMoments,
    GradientMoments,
    LogitGradientMatrix,
    LogitGradients,
    Watcher,
    observe,
)
from normless_papers.probes.channel_contributions import ChannelContributions
from normless_papers.probes.channel_pairs import ChannelPairs
from normless_papers.probes.class_gradients import for_each_class
from normless_papers.probes.gradient_sums import GradientSums
from normless_papers.probes.histograms import ActivationHistograms, ParameterGradientHistograms
from normless_papers.probes.parameter_gradients import ParameterGradients
from normless_papers.probes.summand_distribution import SummandDistribution
from normless_papers.understanding_bn.networks import Draw, conv_path

HISTOGRAM_LAYERS = (9, 45, 81, 83)
SUMMED_LAYERS = (18, 19, 54, 55, 90, 91)
READING_LAYERS = (19, 35, 55, 91)
PARAMETER_LAYERS = (35, 54)
# Every stage has at least so many; all of them would be slow and say the same.
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


_passes: dict[object, Pass] = {}
_class_passes: dict[object, ClassPass] = {}


def pass_of(draw: Draw) -> Pass:
    """The pass of a draw; made once for all artefacts, since most of them look at the same networks."""
    if draw.key not in _passes:
        _forget_oldest(_passes)
        _passes[draw.key] = _observed(draw)
    return _passes[draw.key]


def class_pass_of(draw: Draw) -> ClassPass:
    """The gradients of a draw by class; made once, as by `pass_of`."""
    if draw.key not in _class_passes:
        _forget_oldest(_class_passes)
        _class_passes[draw.key] = _by_class(draw)
    return _class_passes[draw.key]


def _forget_oldest(kept: dict[object, Pass] | dict[object, ClassPass]) -> None:
    while len(kept) >= _MOST:
        del kept[next(iter(kept))]


def _observed(draw: Draw) -> Pass:
    moments, gradients = ChannelMoments(), GradientMoments()
    activations = ActivationHistograms(
        layers=[conv_path(layer) for layer in HISTOGRAM_LAYERS], channels=HISTOGRAM_CHANNELS
    )
    contributions = ChannelContributions([conv_path(layer) for layer in READING_LAYERS])
    histogram = ParameterGradientHistograms(parameters=[WEIGHT_55])
    sums = GradientSums([conv_path(layer) for layer in SUMMED_LAYERS])
    parameters = ParameterGradients([conv_path(layer) for layer in PARAMETER_LAYERS])
    pairs = ChannelPairs([conv_path(45)])
    summands = SummandDistribution(conv_path(90), ("largest", "small"))
    channels, logits, by_example = ChannelGradients(), LogitGradients(), LogitGradientMatrix()
    forward: list[Watcher] = [moments, activations, contributions]
    back: list[Watcher] = [gradients, histogram, sums, parameters, summands, pairs, channels, logits, by_example]
    observe(draw.model, [*forward, *back], draw.inputs, draw.targets)
    return Pass(
        moments=moments.table(),
        activations=activations.table(),
        contributions=contributions.table(),
        gradients=gradients.table(),
        gradient_histogram=histogram.table(),
        sums=sums.table(),
        parameters=parameters.table(),
        summands=summands.table(),
        pairs=pairs.table(),
        pair_structure=pairs.structure(),
        channels=channels.table(),
        logits=logits.table(),
        logits_by_example=by_example.table(),
    )


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
