"""Copy a network for evaluation with its norms, computed weights, multipliers and scalar biases as plain weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized, remove_parametrizations
from torch.nn.utils.prune import BasePruningMethod, remove
from torch.nn.utils.spectral_norm import SpectralNorm, remove_spectral_norm
from torch.nn.utils.weight_norm import WeightNorm, remove_weight_norm

from normless._internal.arguments import carried_inputs, forward_arguments, require_network
from normless._internal.copying import Model, copied
from normless.affine._flow import pads_with_zeros
from normless.affine._folding import fold
from normless.affine._in_place import ConstantActivation, work_in_place
from normless.affine._maps import has_constants, replace_modules
from normless.errors import UnsupportedEditError
from normless.exclusive import exclusive
from normless.nn import FrozenAffine, ResidualSum, ScalarAffine
from normless.nn._activation import ShiftedActivation
from normless.nn._affine import ScalarOutside, ScalarTransposedLinear, TakesParts, of_class
from normless.residual._classify import NORMS

# Hooks that compute a weight before each call, and functions that make its last value a parameter.
_COMPUTING: dict[type, Callable[[nn.Module, Any], object]] = {
    WeightNorm: lambda module, hook: remove_weight_norm(module, hook.name),
    SpectralNorm: lambda module, hook: remove_spectral_norm(module, hook.name),
    BasePruningMethod: lambda module, hook: cast(Any, remove)(module, hook._tensor_name),
}


@exclusive
def fuse_for_inference(
    model: Model, *inputs: Any, example_inputs: Any = None, allow_partial: bool = False, **kwargs: Any
) -> Model:
    """Return a copy of a network in eval mode without norms and scalar parameters, with equal outputs up to rounding.

    Batch norms are folded as in `fold`. Weights that a layer computes in each pass (weight norm, spectral norm,
    pruning, any parametrization) are replaced by their values. In a layer
    α·(W ∗ (x + b₁) + b) + b₂ the weight becomes αW and the bias

        αb + b₂ + b₁ · Σ αW

    summed over the weights of each output; where x is padded with zeros, −b₁ is padded instead. A multiplier on a
    residual sum becomes a constant, and the biases of an activation become numbers; those of a ReLU are added to the
    bias of the layer before it if possible.

    Without gradients, a ReLU or residual sum that is a module overwrites its input if that was computed in the same
    call of the module around it, no other operation reads it, and no module there carries hooks. Operators in forward
    code are unchanged.

    Args:
        model: the network; it is not changed.
        inputs, kwargs, example_inputs: as in `residual_map`; needed to fold batch norms and to work in place.
        allow_partial: keep parts that cannot be folded, such as layer norms.

    Raises:
        UnsupportedEditError: a part cannot be folded exactly; or as in `fold`.
    """
    require_network(model)
    inputs, kwargs = forward_arguments(inputs, kwargs, example_inputs)
    if not (inputs or kwargs):
        inputs, kwargs = carried_inputs(model)
    fused = _with_plain_weights(copied(model).eval())
    if any(map(has_constants, fused.modules())):
        fused = fold(fused, *inputs, **kwargs)[0]
    fused.requires_grad_(False)
    with torch.no_grad():
        made = ((module, _fused(module)) for module in fused.modules())
        replace_modules(fused, {old: new for old, new in made if new is not None})
    for module in fused.modules():
        if isinstance(module, ResidualSum) and module.multiplier is not None and module.multiplier.numel() == 1:
            module.branch_factor *= module.multiplier.item()
            module.multiplier = None
    left = list(_left(fused))
    if left and not allow_partial:
        raise UnsupportedEditError(
            f"These parts cannot be folded into weights: {'; '.join(left)}. allow_partial=True keeps them."
        )
    if inputs or kwargs:
        work_in_place(fused, inputs, kwargs)
    return fused


def _with_plain_weights(model: Model) -> Model:
    """Replace the parametrized weights of a network's layers by plain parameters, and return the network."""
    for module in list(model.modules()):
        # A layer with scalar parts around it has a class of this package.
        if is_parametrized(module) and not isinstance(module, ScalarAffine):
            # torch removes the weight from the class, which the original shares.
            kind = type(module)
            module.__class__ = type(kind.__name__, kind.__bases__, dict(vars(kind)))
            for name in list(cast(nn.ModuleDict, module.parametrizations)):
                remove_parametrizations(module, name)
        for hook in list(module._forward_pre_hooks.values()):
            for known, stop in _COMPUTING.items():
                if isinstance(hook, known):
                    stop(module, hook)
    return model


def _fused(module: nn.Module) -> nn.Module | None:
    """Return the replacement of a module with scalar parts, None for other modules."""
    if isinstance(module, ShiftedActivation):
        scale = float(getattr(module, "scale", 1.0))
        before, after = (0.0 if part is None else part.item() for part in (module.input_bias, module.output_bias))
        is_plain = scale == 1 and not before and not after
        return module.activation if is_plain else ConstantActivation(module.activation, scale, before, after)
    if not isinstance(module, ScalarAffine) or isinstance(module, ScalarOutside):
        return None
    weight, bias = module.folded()
    shift = 0.0 if module.input_bias is None else module.input_bias.item()
    parts = [] if module.before is None else [module.before]
    if isinstance(module, ScalarTransposedLinear):
        weight = weight.T
        plain: Any = nn.Linear(weight.shape[1], weight.shape[0], device="meta").train(module.training)
    else:
        # Torch's own class, which a standardized layer has two classes away.
        kinds: Any = type(module).__mro__
        plain = of_class(module, next(kind for kind in kinds if not issubclass(kind, TakesParts)))
    plain._modules = {}
    if shift:
        moved = shift * weight.flatten(1).sum(1)
        bias = moved if bias is None else bias + moved
    if shift and pads_with_zeros(plain):
        pad: Any = getattr(nn, f"ConstantPad{len(plain.kernel_size)}d")
        parts.append(pad(tuple(plain._reversed_padding_repeated_twice), -shift))
        plain.padding = (0,) * len(plain.kernel_size)
    values: dict[str, Tensor | None] = {"weight": weight, "bias": bias}
    plain._parameters = {
        name: None if value is None else nn.Parameter(value.detach().contiguous(), requires_grad=False)
        for name, value in values.items()
    }
    return nn.Sequential(*parts, plain) if parts else plain


def _left(model: nn.Module) -> Iterator[str]:
    """List the norms, scalars and learned factors of sums that a network still has."""
    for path, module in model.named_modules():
        scalars = module.PARTS if isinstance(module, TakesParts) else ("multiplier",)
        is_scalar = isinstance(module, (TakesParts, ResidualSum))
        if is_scalar and any(module._parameters.get(name) is not None for name in scalars):
            yield f"{path or 'the network'} has scalars"
        elif isinstance(module, (*NORMS, FrozenAffine)):
            yield f"{path or 'the network'} is a {type(module).__name__}"
