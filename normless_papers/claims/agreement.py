"""Deviations of our code from the paper's formula, quantity by quantity."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from normless_papers.claims.checks import Claim, check

# The inputs and the output of a module.
PassOutputs = tuple[tuple[Tensor, ...], Tensor]
# The tolerance for a network in float64 with some hundred roundings in sequence.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Agreement:
    """The deviation between two computations of a quantity, and the tolerance; 0 means bit for bit.

    The quantity is the start of a sentence.
    """

    quantity: str
    deviation: float
    tolerance: float = 0.0

    @property
    def agrees(self) -> bool:
        """Whether the deviation is within the tolerance; NaN is not."""
        return self.deviation <= self.tolerance

    def check(self) -> Claim:
        """Return the agreement as a check."""
        bound = "bit for bit" if self.tolerance == 0 else f"to {self.tolerance:g}"
        return check(f"{self.quantity}, {bound}.", self.agrees, deviation=self.deviation, tolerance=self.tolerance)


def deviation(measured: Tensor, expected: Tensor) -> float:
    """Return max |measured - expected| / max |expected| in float64; the numerator alone if all expected are 0.

    Raises:
        ValueError: the shapes differ.
    """
    if measured.shape != expected.shape:
        raise ValueError(
            f"Expected two tensors of one shape, got {tuple(measured.shape)} and {tuple(expected.shape)}."
        )
    if not measured.numel():
        return 0.0
    expected = expected.detach().double()
    size = expected.abs().max()
    return float((measured.detach().double() - expected).abs().max() / torch.where(size > 0, size, 1.0))


def agreement(quantity: str, measured: Tensor, expected: Tensor, tolerance: float = 0.0) -> Agreement:
    """Compare two computations of a quantity by `deviation`."""
    return Agreement(quantity, deviation(measured, expected), tolerance)


def worst_agreement(quantity: str, pairs: Iterable[tuple[Tensor, Tensor]], tolerance: float = 0.0) -> Agreement:
    """Return the largest deviation over pairs of measured and expected values."""
    return Agreement(quantity, max((deviation(*pair) for pair in pairs), default=0.0), tolerance)


def unscaled_weights(original: nn.Module, network: nn.Module) -> Agreement:
    """Check that a converted network has the weights of the original, none of them rescaled."""
    weights = {name: weight.flatten() for name, weight in original.named_parameters() if weight.dim() > 1}
    own = torch.cat([network.get_parameter(name).flatten() for name in weights])
    return agreement("Weights are those of the standard initialization", own, torch.cat(list(weights.values())))


@torch.no_grad()
def observed(network: nn.Module, modules: Iterable[nn.Module], *inputs: Any) -> tuple[list[PassOutputs], Tensor]:
    """Return inputs and output of each call of the modules in a pass, in their order, and the network's output."""
    calls: list[PassOutputs] = []
    handles = [
        module.register_forward_hook(
            # Cloned, as later modules may work in place.
            lambda _, sides, output: calls.append((tuple(side.clone() for side in sides), output.clone()))
        )
        for module in modules
    ]
    try:
        return calls, network(*inputs)
    finally:
        for handle in handles:
            handle.remove()


def agreement_table(agreements: Sequence[Agreement]) -> pd.DataFrame:
    """Return a row per quantity: `quantity`, `deviation`, `tolerance`."""
    return pd.DataFrame(agreements, columns=["quantity", "deviation", "tolerance"])
