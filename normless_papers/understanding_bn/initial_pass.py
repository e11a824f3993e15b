"""One watched forward and backward pass through a network at initialization, for all of the paper's figures."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Final, TypeAlias

import pandas as pd

from normless.probes import ChannelMoments, GradientMoments, LogitGradients, Watcher, observe
from normless_papers import probes
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

Pass: TypeAlias = Mapping[str, pd.DataFrame]
"""Tables by name."""

_passes: dict[Hashable, Pass] = {}


def pass_of(draw: Draw) -> Pass:
    """The tables of the watchers of one pass on the first minibatch of a draw, by the names in `_observed`."""
    return _cached("watchers", _observed, draw)


def class_pass_of(draw: Draw) -> Pass:
    """Gradients of the kernel of layer 52 with the logit gradients of all classes but one at zero.

    `sizes` has a row per class: `class`, `mean_abs`, `share` and `predicted_share`; `elements` one per class and
    element: `class`, `element` and `gradient`.
    """
    return _cached("classes", _by_class, draw)


def _cached(name: str, measure: Callable[[Draw], Pass], draw: Draw) -> Pass:
    """Measured once, since most artefacts use the same networks; the oldest ones above the limit are dropped."""
    key = (name, draw.key)
    if key not in _passes:
        while len(_passes) >= 2 * _MOST:
            del _passes[next(iter(_passes))]
        _passes[key] = measure(draw)
    return _passes[key]


def _observed(draw: Draw) -> Pass:
    def paths(layers: tuple[int, ...]) -> list[str]:
        return [conv_path(layer) for layer in layers]

    pairs = probes.ChannelPairs(paths((45,)))
    watchers: dict[str, Watcher] = {
        "moments": ChannelMoments(),
        "activations": probes.ActivationHistograms(layers=paths(HISTOGRAM_LAYERS), channels=HISTOGRAM_CHANNELS),
        "contributions": probes.ChannelContributions(paths(READING_LAYERS)),
        "gradients": GradientMoments(),
        "gradient_histogram": probes.ParameterGradientHistograms(parameters=[WEIGHT_55]),
        "sums": probes.GradientSums(paths(SUMMED_LAYERS)),
        "parameters": probes.ParameterGradients(paths(PARAMETER_LAYERS)),
        "summands": probes.SummandDistribution(conv_path(90), ("largest", "small")),
        "pairs": pairs,
        "channels": probes.ChannelGradients(),
        "logits": LogitGradients(),
        "logits_by_example": probes.LogitGradientMatrix(),
    }
    observe(draw.model, list(watchers.values()), draw.inputs, draw.targets)
    return {name: watcher.table() for name, watcher in watchers.items()} | {"pair_structure": pairs.structure()}


def _by_class(draw: Draw) -> Pass:
    batch = (draw.model, draw.inputs, draw.targets)
    sizes = probes.classwise_gradients(*batch, [WEIGHT_52])[["class", "mean_abs", "predicted_share", "share"]]
    return {"sizes": sizes, "elements": probes.classwise_elements(*batch, WEIGHT_52)}
