"""Adaptive gradient clipping: bound gradients by a fraction of the norm of their weights (Brock et al. 2021)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from normless._internal.arguments import forward_arguments, unwrapped
from normless.optim._uses import head_parameters
from normless.residual import ResidualMap, residual_map as find_residual_map


@torch.no_grad()
def adaptive_gradient_clipping(
    parameters: nn.Module | Iterable[Tensor],
    clip: float = 0.01,
    eps: float = 1e-3,
    *,
    exclude: nn.Module | Iterable[Tensor] = (),
) -> None:
    """Scale down, in place, gradients that are large relative to their weights; call it between backward and step.

        g_i ← g_i · min(1, λ · max(‖w_i‖, ε) / ‖g_i‖)

    for every unit i, a row of the weight along its first axis: an output of a linear layer or convolution. A
    parameter with at most one axis (biases, gains, multipliers) is one unit. Norms are Euclidean, in float32 or
    better.

    Args:
        parameters: a network or some of its parameters, shape (out, …); those without a gradient are ignored.
        clip: λ, the largest step of a unit relative to its norm, at a learning rate of 1.
        eps: ε, the least norm of a unit, so that weights that are zero can grow.
        exclude: a module or parameters with gradients that are not clipped; the papers exclude the classifier.

    Raises:
        TypeError: a parameter is not a tensor.
        ValueError: clip or eps is not above 0, or a gradient is sparse.
    """
    if not (clip > 0 and eps > 0):
        raise ValueError(f"Expected clip and eps above 0, got clip={clip} and eps={eps}.")
    left_out = {id(parameter) for parameter in _parameters(exclude)}
    scalars: dict[tuple[object, ...], list[tuple[Tensor, Tensor]]] = defaultdict(list)
    for parameter in _parameters(parameters):
        gradient = parameter.grad
        if gradient is None or id(parameter) in left_out:
            continue
        if gradient.layout != torch.strided:
            raise ValueError(
                f"Expected dense gradients, but that of a parameter of shape {tuple(parameter.shape)} is sparse; "
                "build its layer with sparse=False, or exclude it."
            )
        if parameter.numel() == 1:
            scalars[gradient.dtype, parameter.dtype, gradient.device].append((gradient, parameter))
        else:
            gradient.mul_(_factor(parameter, gradient, clip, eps).to(gradient.dtype))
    # Thousands of scalars are clipped at once as rows of a matrix; each is a unit.
    for pairs in scalars.values():
        gradients, values = (
            torch.cat([scalar.reshape(1, 1) for scalar in column]) for column in zip(*pairs, strict=True)
        )
        factors = _factor(values, gradients, clip, eps).to(gradients.dtype)
        torch._foreach_mul_([gradient for gradient, _ in pairs], factors.flatten().unbind())


def clip_in_step(
    optimizer: Optimizer,
    model: nn.Module,
    *inputs: Any,
    clip: float = 0.01,
    eps: float = 1e-3,
    residual_map: ResidualMap | None = None,
    example_inputs: Any = None,
) -> RemovableHandle:
    """Clip all gradients except those of the classifier adaptively at the start of every step of an optimizer.

    The excluded layers are those that compute the outputs (Brock et al. 2021, NFNets, section 4.1).

    Args:
        optimizer: any optimizer of torch, also one that keeps moments, such as Adam.
        model: the network that the optimizer trains.
        inputs, example_inputs, residual_map: as in `param_groups`.
        clip, eps: λ and ε of `adaptive_gradient_clipping`.

    Returns:
        A handle; its `remove()` ends the clipping.

    Raises:
        ValueError: clip or eps is not above 0.
        UnresolvedStructureError: the network must be traced, but there are no inputs or the forward pass fails.
    """
    if not (clip > 0 and eps > 0):
        raise ValueError(f"Expected clip and eps above 0, got clip={clip} and eps={eps}.")
    positional, named_inputs = forward_arguments(inputs, {}, example_inputs)
    if residual_map is None and not (positional or named_inputs):
        model = unwrapped(model)
    mapped = find_residual_map(model, *positional, **named_inputs) if residual_map is None else residual_map
    head = head_parameters(model, mapped)
    left_out = [parameter for name, parameter in model.named_parameters(remove_duplicate=False) if name in head]

    def before(stepped: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        parameters = [parameter for group in stepped.param_groups for parameter in group["params"]]
        adaptive_gradient_clipping(parameters, clip, eps, exclude=left_out)

    return optimizer.register_step_pre_hook(before)


def _factor(weights: Tensor, gradients: Tensor, clip: float, eps: float) -> Tensor:
    """Return min(1, λ · max(‖w_i‖, ε) / ‖g_i‖) of every unit, in a shape that broadcasts over the gradients."""
    limit = clip * _unit_norms(weights).clamp_min(eps)
    norms = _unit_norms(gradients)
    # Gradients within the limit have a factor of exactly 1: an infinite gradient must not turn others into NaN.
    return torch.where(norms > limit, limit / norms, torch.ones_like(norms))


def _parameters(source: nn.Module | Iterable[Tensor]) -> list[Tensor]:
    """Return the parameters of a network, listed parameters, or a single parameter as a list."""
    if isinstance(source, nn.Module):
        return list(source.parameters())
    listed = list(source) if isinstance(source, Iterable) and not isinstance(source, Tensor) else [source]
    for parameter in listed:
        if not isinstance(parameter, Tensor):
            where = "" if parameter is source else f" in a {type(source).__name__}"
            got = f"an object of type {type(parameter).__name__}{where}"
            raise TypeError(f"Expected a network or parameters, such as model.parameters(), got {got}.")
    return listed


def _unit_norms(x: Tensor) -> Tensor:
    """Return the Euclidean norm of every unit, in a shape that broadcasts over x."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    norms: Tensor = torch.linalg.vector_norm(wide, dim=tuple(range(1, x.dim())) or None, keepdim=True)
    return norms
