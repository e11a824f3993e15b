"""torch's attention with scalar biases before its projections."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from normless.nn.affine import TakesParts, of_class


class BiasedProjection(TakesParts, NonDynamicallyQuantizableLinear):
    """An attention's output projection with a scalar bias b before it, for code that reads its weight and bias.

    W (x + b) + c = W x + (c + b·W1): what is read as its bias is c + b·W1, W1 the sums of the weight's rows.
    """

    @property
    def bias(self) -> Tensor | None:  # type: ignore[override]
        """What is added to the output, shape (out,), or None."""
        own, shift = self._parameters["bias"], self._parameters.get("input_bias")
        if shift is None:
            return own
        moved: Tensor = self.weight.sum(1) * shift
        return moved if own is None else own + moved


class ScalarMultiheadAttention(TakesParts, nn.MultiheadAttention):
    """`nn.MultiheadAttention` with one scalar bias before its projections of query, key and value."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Any]:
        bias = self.input_bias
        if bias is None:
            return super().forward(query, key, value, *args, **kwargs)
        moved = query + bias
        # torch projects at once what is one tensor.
        keys = moved if key is query else key + bias
        values = moved if value is query else keys if value is key else value + bias
        return super().forward(moved, keys, values, *args, **kwargs)


def with_input_bias(layer: nn.Module) -> TakesParts:
    """The same attention, or output projection of one, able to take an `input_bias`; the given one stays as it is."""
    if isinstance(layer, TakesParts):
        return layer
    kind = ScalarMultiheadAttention if isinstance(layer, nn.MultiheadAttention) else BiasedProjection
    biased: TakesParts = of_class(layer, kind)
    return biased


def is_attention(layer: nn.Module) -> bool:
    """Whether a module is torch's attention, with or without a bias before it, and no subclass with other code."""
    return type(layer) in (nn.MultiheadAttention, ScalarMultiheadAttention)
