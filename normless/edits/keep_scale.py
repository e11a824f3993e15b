"""The edit that gives the weights of a network without norms the scale that its norms gave."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from normless.edits.edit import EDITS, Edit, Surgery
from normless.errors import MissingValuesError
from normless.residual import Layer
from normless.residual.declared import StatesStructure
from normless.signal.from_structure import steps_of_structure
from normless.signal.scale import gains
from normless.signal.steps import Steps

Weights = Literal["fresh", "all"]


@EDITS.register()
@dataclass(frozen=True)
class KeepScale(Edit):
    """Weights are multiplied so that activations have, without norms, the second moment that the norms gave.

    A norm makes the scale of what it reads irrelevant, so that without it a network's activations and logits start
    many times too small or too large. Each weight layer that a norm reads gets the factor

        g = √((γ² + β²) / E[y²]),    E[y²] = mean over outputs of (m Σw + b)² + v Σw²,

    by its own weights w and bias b, with m and v the mean and variance of its input where that comes from what the
    norms before it gave: for He's weights behind a ReLU, m² + v = 1/2 and Σw² = 2, it is 1 (He et al. 2015, section
    2.2: every layer keeps the variance). With it the skip path's second moment is about 1 all along where branches
    start at zero, doubles with every block where nothing is done about them, and comes to e where they start at
    1/√L (De & Smith, sections 3 and 4). These are not the statistics of a batch, which grow along the stream:
    no data is looked at.

    A layer that begins a stream which norms read further along (stem, projection, embeddings with the positions added
    to them, a class token) gets an output of second moment 1, and so does a layer at the end of a branch that reads a
    norm. What norms did not make irrelevant stays: a classifier, gates, attention, the feed-forward layers of a
    transformer. A γ of 0, which multipliers replace, counts as 1. An embedding that makes the logits too is scaled by
    √g, which leaves the logits their scale and the stream too small.

    Inputs are taken to have second moment 1, and elements to be independent, channel by channel. Neighbours under a
    pooling are halfway between independent and equal: n of them count as √n; a mean over all positions is one of
    independent ones. Zeros around an image count at the example inputs' size. Of gates, attention and products the
    mean squares are followed. What is not exact adds up where a stream passes many SiLU and gates, which make a
    deviation larger from layer to layer: an EfficientNet-B0's logits came out 0.45 to 47 times the normalized ones.

    It comes before the norms are removed. A network whose norms have been trained is left as it is, and the record
    says so.

    Args:
        weights: `fresh` leaves a trained network as it is, `all` does not.
    """

    weights: Weights = "fresh"

    def apply(self, surgery: Surgery) -> None:
        """Multiply the weights and record every factor."""
        if self.weights not in ("fresh", "all"):
            raise surgery.unsupported("", f"the weights are fresh or all, not {self.weights!r}")
        norms = [layer for layer in surgery.map.layers() if layer.kind == "norm"]
        if any(not surgery.is_left(layer) for layer in norms):
            raise surgery.unsupported("", "it reads the norms, and they are removed already; it comes before that")
        if not norms:
            surgery.record("", "left: no norm gave it a scale")
            return
        if any(parameter.is_meta for parameter in surgery.model.parameters()):
            if surgery.values_withheld:
                raise MissingValuesError("The factors are those of weights with values.")
            surgery.record("", "left: its weights have no values on the device meta")
            return
        trained = next((layer.path for layer in norms if is_trained(surgery.model, layer)), None)
        if self.weights == "fresh" and trained is not None:
            surgery.record(
                "",
                f"left: {trained} is trained, and so are the weights; keep_scale='all' scales them nevertheless, and "
                "nl.fold takes norms into trained weights exactly",
            )
            return
        steps = _steps(surgery)
        if steps is None:
            surgery.record("", "left: its dataflow is not known; pass example inputs")
            return
        for gain in gains(surgery.model, steps):
            self._multiply(surgery, gain.parameters, gain.factor, gain.rows)
            what = "weight" if gain.rows is None else f"rows {gain.rows[0]} to {sum(gain.rows) - 1}"
            surgery.record(gain.path, f"{what} × {gain.factor:.4g}: {gain.why}")

    @torch.no_grad()
    def _multiply(
        self, surgery: Surgery, names: tuple[str, ...], factor: float, rows: tuple[int, int] | None
    ) -> None:
        for name in names:
            parameter = surgery.model.get_parameter(name).detach()
            (parameter if rows is None else parameter.narrow(-2, *rows)).mul_(factor)


def is_trained(model: nn.Module, norm: Layer) -> bool:
    """Whether a norm is no longer as it was made: a γ that differs between channels, or a β that is not zero.

    Running statistics, which a forward pass alone moves, count where the norm has nothing to learn.
    """
    gamma, beta = _affine(model, norm)
    learnable = [one for one in (gamma, beta) if one is not None and one.requires_grad]
    if gamma is not None and gamma.numel() and bool((gamma != gamma.flatten()[0]).any()):
        return True
    if beta is not None and bool((beta != 0).any()):
        return True
    return not learnable and any(bool((value != fresh).any()) for value, fresh in _statistics(model, norm))


def _affine(model: nn.Module, norm: Layer) -> tuple[Tensor | None, Tensor | None]:
    gamma = None if norm.gamma is None else model.get_parameter(norm.gamma)
    shifts = [name for name in norm.parameters if name != norm.gamma and name.endswith(("bias", "beta"))]
    return gamma, model.get_parameter(shifts[0]) if shifts else None


def _statistics(model: nn.Module, norm: Layer) -> Iterator[tuple[Tensor, float]]:
    """A norm's running statistics, and what they start from."""
    module = None if ":" in norm.path else model.get_submodule(norm.path)
    for name, fresh in (("running_mean", 0.0), ("running_var", 1.0)):
        value = getattr(module, name, None)
        if isinstance(value, Tensor):
            yield value, fresh


def _steps(surgery: Surgery) -> Steps | None:
    """The steps of the network, from its dataflow or from the structure that it states."""
    if surgery.map.flow is not None:
        # torch.export takes a second to import.
        from normless.signal.from_flow import steps_of_flow

        return steps_of_flow(surgery.model, surgery.map.flow)
    if isinstance(surgery.model, StatesStructure):
        return steps_of_structure(surgery.model, surgery.model.residual_structure())
    return None
