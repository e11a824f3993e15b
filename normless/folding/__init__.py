"""Trained networks without their batch norms: folded into weights, or frozen, with the same outputs in evaluation."""

from __future__ import annotations

from typing import Any, TypeVar

from torch import nn

from normless.arguments import forward_arguments
from normless.folding.frozen_norms import freeze as freeze
from normless.folding.report import FoldReport as FoldReport
from normless.folding.report import NormFate as NormFate

Model = TypeVar("Model", bound=nn.Module)


def fold(model: Model, *inputs: Any, example_inputs: Any = None, **kwargs: Any) -> tuple[Model, FoldReport]:
    """Fold every batch norm of a trained network into the weights next to it, in a copy.

    A norm that alone reads the output of a convolution or linear layer goes into that layer, with the running μ, σ²:

        γ / √(σ² + ε) · (W ∗ x + b − μ) + β = (sW) ∗ x + (s(b − μ) + β),   s = γ / √(σ² + ε) per channel

    and one whose output such a layer alone reads goes into that one, where that is exact: without padding with
    zeros, or without a shift. Any other becomes a `normless.nn.FrozenAffine` in its place. Outputs in eval mode are
    those of the original up to rounding, and no batch norm's statistics enter in train mode. Norms that are no
    subclass of torch's batch norm are kept as they are.

    Args:
        model: the network; it is left as it is. The copy has its class, its layers' names and its mode.
        inputs: what its forward takes, positional; values do not matter.
        example_inputs: in the place of `inputs` and `kwargs`: a tensor, a tuple of positional or a dictionary of
            keyword arguments.
        kwargs: what its forward takes by name.

    Returns:
        The copy, and the outcome for every norm, printable.

    Raises:
        UnsupportedEditError: a batch norm has no running statistics, carries hooks, or computes something else.
        UnresolvedStructureError: the network cannot be exported on these inputs.
    """
    # torch.export takes a second to import; freezing must not pay for it.
    from normless.folding.network import fold_network

    return fold_network(model, *forward_arguments(inputs, kwargs, example_inputs))


__all__ = ["FoldReport", "NormFate", "fold", "freeze"]
