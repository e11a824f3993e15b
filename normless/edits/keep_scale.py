"""The edit that gives activations without norms the scale they have with norms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from normless.edits.edit import EDITS, Edit, Surgery
from normless.errors import MissingValuesError
from normless.residual import Layer
from normless.signal import gains, steps_of

Weights = Literal["fresh", "all"]


@EDITS.register()
@dataclass(frozen=True)
class KeepScale(Edit):
    """Multiplies weights so that activations have the same second moment without norms as with them.

    A norm makes the scale of its input irrelevant; without it a network's activations and logits start many times
    too small or too large. Each weight layer that a norm reads gets the factor

        g = √((γ² + β²) / E[y²]),    E[y²] = mean over outputs of (m Σw + b)² + v Σw²,

    with its weights w and bias b, and m and v the mean and variance of its input. For He's weights after a ReLU,
    m² + v = 1/2 and Σw² = 2, it is 1 (He et al. 2015, section 2.2: every layer keeps the variance). With these
    factors the second moment of the skip path stays about 1 where branches start at zero, doubles with every block
    where they have no multiplier, and grows to e where they start at 1/√L (De & Smith, sections 3 and 4). It is not
    the statistic of a batch, which grows along the stream; no data is used.

    A layer that begins a stream which norms read further on (stem, projection, embeddings and their positions, a
    class token) gets an output of second moment 1, and so does a layer at the end of a branch that reads a norm.
    Weights whose scale matters with norms are unchanged: a classifier, gates, attention, the feed-forward layers of a
    transformer. A γ of 0, which multipliers replace, counts as 1. An embedding tied to the classifier is multiplied
    by √g, which keeps the scale of the logits and leaves the stream too small.

    Inputs have second moment 1, and elements are independent, channel by channel (`normless.signal.Propagation`). n
    neighbours in a pooling count as √n independent ones, halfway between independent and equal; a mean over all
    positions is over independent ones. The zeros around an image count at the example inputs' size. Errors add up
    where a stream passes many SiLU and gates, which amplify deviations from layer to layer: the logits of an
    EfficientNet-B0 were 0.45 to 47 times those of the normalized network.

    It comes before the norms are removed. A network with trained norms is left unchanged, and the record says so.

    Args:
        weights: `fresh` leaves a trained network unchanged, `all` does not.
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
        steps = steps_of(surgery.model, surgery.map)
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
    """Whether a norm has been trained: its γ differs between channels, or its β is not zero.

    Running statistics, which a forward pass updates, count where the norm has no parameters.
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
    """A norm's running statistics and their initial values."""
    module = None if ":" in norm.path else model.get_submodule(norm.path)
    for name, fresh in (("running_mean", 0.0), ("running_var", 1.0)):
        value = getattr(module, name, None)
        if isinstance(value, Tensor):
            yield value, fresh
