"""Convolutions, linear layers and attention with scalar multipliers and biases that cost next to nothing.

With a multiplier α, a bias b₁ before the layer and a bias b₂ after it, the layer computes

    α·(W ∗ (x + b₁) + b) + b₂ = (αW) ∗ (x + b₁) + (αb + b₂)

so α multiplies the weight and not the activations, and b₂ is added to the layer's own bias. Both sides have the
same gradients. Zero padding is applied after b₁ is added.
"""

from __future__ import annotations

import sys
from functools import cache, reduce
from itertools import chain
from operator import mul
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from normless._internal.copying import Model
from normless.errors import UnsupportedEditError
from normless.nn.kernels import multiplied, scaled, shifted, shifted_convolution


class TakesParts(nn.Module):
    """A module with optional parameters, `PARTS`, each None if absent."""

    PARTS: ClassVar[tuple[str, ...]] = ("input_bias",)

    input_bias: Tensor | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.start_parts()

    def start_parts(self) -> None:
        """Register every part that the module does not have yet as None."""
        for name in self.PARTS:
            self.register_parameter(name, self._parameters.get(name))

    def add_part(self, name: str, value: Tensor) -> None:
        """Add a part: a new parameter with the module's device and dtype, or a given parameter, which is shared."""
        called = name.replace("_", " ")
        if name not in self.PARTS:
            taken = " or ".join(self.PARTS).replace("_", " ")
            raise UnsupportedEditError(f"a {type(self).__name__} takes an {taken}, no {called}")
        if getattr(self, name) is not None:
            raise UnsupportedEditError(f"the layer already has its {called}")
        # The module's own parameters come first and need no walk over its children.
        own = (parameter for parameter in self._parameters.values() if parameter is not None)
        like = next(chain(own, self.parameters()), value)
        self.register_parameter(name, value if isinstance(value, nn.Parameter) else nn.Parameter(value.to(like)))


class ScalarAffine(TakesParts):
    """A layer of torch with scalar parts, each None if absent.

    Attributes:
        multiplier: α, one element.
        layer_scale: one factor per output channel, shape (out,), as in LayerScale.
        input_bias: b₁, one element, added to every input.
        output_bias: b₂, one element, added to every output.
        before: a module that is applied to the input (dropout or a norm before a classifier).
    """

    weight: Tensor
    multiplier: Tensor | None
    layer_scale: Tensor | None
    output_bias: Tensor | None
    before: nn.Module | None

    PARTS = ("multiplier", "layer_scale", "input_bias", "output_bias")

    def start_parts(self) -> None:
        """Register every part that the layer does not have yet as None."""
        super().start_parts()
        self.register_module("before", self._modules.get("before"))

    def prepared(self, x: Tensor) -> Tensor:
        """Return the input after `before` and `input_bias`."""
        if self.before is not None:
            x = self.before(x)
        return shifted(x, self.input_bias)

    def forward(self, x: Tensor) -> Tensor:
        parts, shift = self.folded(), self.input_bias
        if not isinstance(self, _ConvNd):
            return F.linear(self.prepared(x), *parts)
        is_plain = self.before is None and self.padding_mode == "zeros" and not isinstance(self.padding, str)
        if shift is not None and is_plain and x.dim() == self.weight.dim():
            settings = self.stride, self.padding, self.dilation
            if (y := shifted_convolution(x, shift, *parts, *settings, groups=self.groups)) is not None:
                return y
        return self._conv_forward(self.prepared(x), *parts)

    def folded(self) -> tuple[Tensor, Tensor | None]:
        """Return the weight αW, shape of `weight`, and the bias αb + b₂, shape (out,) or None."""
        # The factors have at most one element per output, so they are multiplied before the weight.
        parts = [part for part in (self.multiplier, self.layer_scale) if part is not None]
        factor = reduce(mul, parts) if parts else None
        weight, bias = self.scaled(factor), cast(Tensor | None, self.bias)
        bias = bias if bias is None or factor is None else bias * factor
        if self.output_bias is not None:
            shift = self.output_bias.expand(outputs_of(self, weight))
            bias = shift if bias is None else bias + shift
        return weight, bias

    def scaled(self, factor: Tensor | None) -> Tensor:
        """Return the weight times a factor of one element or one per output channel."""
        return self.weight if factor is None else scaled(self.weight, factor)

    def extra_repr(self) -> str:
        parts = [name for name in self.PARTS if getattr(self, name) is not None]
        return ", ".join([super().extra_repr(), *parts])


class ScalarConv1d(ScalarAffine, nn.Conv1d):
    """`nn.Conv1d` with scalar parts. Shapes: (B, in, T) to (B, out, T')."""


class ScalarConv2d(ScalarAffine, nn.Conv2d):
    """`nn.Conv2d` with scalar parts. Shapes: (B, in, H, W) to (B, out, H', W')."""


class ScalarConv3d(ScalarAffine, nn.Conv3d):
    """`nn.Conv3d` with scalar parts. Shapes: (B, in, D, H, W) to (B, out, D', H', W')."""


class ScalarLinear(ScalarAffine, nn.Linear):
    """`nn.Linear` with scalar parts. Shapes: (…, in) to (…, out)."""


class ScalarTransposedLinear(ScalarAffine):
    """The `Conv1D` of transformers' GPT-2, a linear layer with a weight (in, out). Shapes: (…, in) to (…, out)."""

    def scaled(self, factor: Tensor | None) -> Tensor:
        return self.weight if factor is None else self.weight * factor

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.folded()
        return F.linear(self.prepared(x), weight.T, bias)


class ScalarOutside(ScalarAffine):
    """Scalar parts around a layer with a weight that is not a plain parameter: α · layer(x + b₁) + b₂."""

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        y: Tensor = super(ScalarAffine, self).forward(self.prepared(x), *args, **kwargs)
        for factor in (self.multiplier, self.layer_scale):
            y = y if factor is None else multiplied(y, factor)
        return shifted(y, self.output_bias)

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        return _restored_outside, (type(self).__bases__[-1],), self.__dict__.copy()


@cache
def _outside(kind: Any) -> type[ScalarAffine]:
    """Return the class of a layer with scalar parts around it."""
    return type(f"Scalar{kind.__name__}", (ScalarOutside, kind), {"__module__": kind.__module__})


def _restored_outside(kind: Any) -> ScalarAffine:
    made = _outside(kind)
    return made.__new__(made)


class BiasedProjection(TakesParts, NonDynamicallyQuantizableLinear):
    """An attention's output projection with a scalar bias b before it, for code that reads its weight and bias.

    W (x + b) + c = W x + (c + b·W1): its `bias` is c + b·W1, with W1 the sums of the weight's rows.
    """

    @property
    def bias(self) -> Tensor | None:  # type: ignore[override]
        """The bias of the output, shape (out,), or None."""
        own, shift = self._parameters["bias"], self._parameters.get("input_bias")
        if shift is None:
            return own
        moved: Tensor = self.weight.sum(1) * shift
        return moved if own is None else own + moved


class ScalarMultiheadAttention(TakesParts, nn.MultiheadAttention):
    """`nn.MultiheadAttention` with a scalar bias before its projections of query, key and value."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Any]:
        bias = self.input_bias
        if bias is None:
            return super().forward(query, key, value, *args, **kwargs)
        moved = shifted(query, bias)
        # torch projects equal tensors at once.
        keys = moved if key is query else shifted(key, bias)
        values = moved if value is query else keys if value is key else shifted(value, bias)
        return super().forward(moved, keys, values, *args, **kwargs)


# By the layer of torch, the last base of each.
_SCALAR_LAYERS: dict[type[nn.Module], type[ScalarAffine]] = {
    kind.__bases__[-1]: kind for kind in (ScalarConv1d, ScalarConv2d, ScalarConv3d, ScalarLinear)
}


def _scalar_kind(layer: nn.Module) -> type[ScalarAffine] | None:
    """Return the scalar class for a layer of torch or transformers, None for other layers."""
    return ScalarTransposedLinear if is_transposed(layer) else _SCALAR_LAYERS.get(type(layer))


def is_transposed(layer: nn.Module) -> bool:
    """Whether a layer is the `Conv1D` of transformers, a linear layer with a weight (in, out), or its scalar form."""
    library = sys.modules.get("transformers.pytorch_utils")
    return isinstance(layer, ScalarTransposedLinear) or (library is not None and type(layer) is library.Conv1D)


def outputs_of(layer: nn.Module, weight: Tensor) -> int:
    """Return the number of output channels of a weight layer, by the shape of its weight."""
    if isinstance(layer, _ConvTransposeNd):
        return layer.out_channels
    return weight.shape[1 if is_transposed(layer) else 0]


def takes_scalars(layer: nn.Module) -> bool:
    """Whether `scalar_affine` accepts a layer."""
    return isinstance(layer, ScalarAffine) or _scalar_kind(layer) is not None


def scalar_affine(layer: nn.Module) -> ScalarAffine:
    """Convert a layer to a scalar layer with the same parameters, hooks and mode; return a scalar layer unchanged.

    Raises:
        UnsupportedEditError: the weight of this type of layer cannot simply be multiplied.
    """
    if isinstance(layer, ScalarAffine):
        return layer
    kind = _scalar_kind(layer)
    if kind is None:
        kinds = ", ".join(known.__name__ for known in _SCALAR_LAYERS)
        raise UnsupportedEditError(f"scalars can be folded into {kinds}, not into a {class_name(layer)}")
    return of_class(layer, kind)


def class_name(layer: nn.Module) -> str:
    """Return the name of the class of a layer as it was before it became one of this package."""
    return next(kind.__name__ for kind in type(layer).__mro__ if not issubclass(kind, TakesParts))


def with_scalars(layer: nn.Module) -> ScalarAffine:
    """Convert a layer by `scalar_affine`, or put scalar parts around it if its weight cannot be multiplied.

    The latter applies to transposed, bilinear and parametrized layers and to subclasses, which keep their code.

    Raises:
        UnsupportedEditError: the layer is not a convolution, linear or bilinear layer.
    """
    if takes_scalars(layer) or not isinstance(layer, (_ConvNd, nn.Linear, nn.Bilinear)):
        return scalar_affine(layer)
    return of_class(layer, _outside(cast(Any, type(layer))))


def with_input_bias(layer: nn.Module) -> TakesParts:
    """Copy an attention, or its output projection, as a module that takes an `input_bias`; share the parameters."""
    if isinstance(layer, TakesParts):
        return layer
    kind = ScalarMultiheadAttention if isinstance(layer, nn.MultiheadAttention) else BiasedProjection
    biased: TakesParts = of_class(layer, kind)
    return biased


def is_attention(layer: nn.Module) -> bool:
    """Whether a module is torch's attention, with or without a bias before it, and not another subclass."""
    return type(layer) in (nn.MultiheadAttention, ScalarMultiheadAttention)


def of_class(layer: nn.Module, kind: type[Model]) -> Model:
    """Return a layer of another class with the same parameters, parts, children, hooks and mode."""
    new = kind.__new__(kind)
    new.__dict__.update(layer.__dict__)
    new.__dict__.update(_parameters=dict(layer._parameters), _modules=dict(layer._modules))
    if isinstance(new, TakesParts):
        new.start_parts()
    return new


def one_element(value: float) -> Tensor:
    """Return a tensor of shape (1,), as of every scalar part, since some optimizers refuse tensors without axes."""
    return torch.tensor([value])
