"""Every batch norm of a network replaced by the affine map that it computes in evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from normless.arguments import require_network
from normless.copying import copied
from normless.errors import UnsupportedEditError
from normless.nn import FrozenAffine
from normless.nn.channels import per_channel

Model = TypeVar("Model", bound=nn.Module)

# These are known to do in evaluation what `affine_of` says, and nothing else.
_PLAIN = {nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm}


def freeze(model: Model) -> Model:
    """Replace every batch norm of a network by a fixed affine map per channel, in a copy, and return the copy.

    Each becomes a `normless.nn.FrozenAffine` in its place,

        y = γ / √(σ² + ε) · (x − μ) + β

    with the running μ and σ², in train mode as in eval mode; a norm fused with an activation or dropout keeps
    those under their names. Outputs in eval mode are those of the original up to rounding.

    Args:
        model: the network; it is left as it is.

    Raises:
        UnsupportedEditError: a batch norm has no running statistics, carries hooks, or computes something else.
    """
    require_network(model)
    network = copied(model)
    frozen: dict[nn.Module, nn.Module] = {
        norm: _frozen(path, norm) for path, norm in network.named_modules() if isinstance(norm, _BatchNorm)
    }
    if network in frozen:
        # A norm alone has no other class to keep.
        return frozen[network]  # type: ignore[return-value]
    replace_modules(network, frozen)
    return network


@torch.no_grad()
def affine_of(path: str, norm: nn.Module) -> tuple[Tensor, Tensor]:
    """The factor and the shift of every channel, both (C,) in float64, of a batch norm in evaluation or a frozen one.

        scale = γ / √(σ² + ε),   shift = β − μ · scale

    with the running μ and σ²; parts that the norm does not have are left out.
    """
    if isinstance(norm, FrozenAffine):
        return norm.scale.double(), norm.shift.double()
    assert isinstance(norm, _BatchNorm)
    if norm.running_mean is None or norm.running_var is None:
        raise UnsupportedEditError(
            f"{path or 'This norm'} is a {type(norm).__name__} without running statistics "
            "(track_running_stats=False): it normalizes by each batch in evaluation too, so there is nothing to "
            "freeze it at. Give it running statistics and let some batches pass in train mode first."
        )
    scale = torch.ones_like(norm.running_var, dtype=torch.float64)
    shift = torch.zeros_like(scale)
    if getattr(norm, "use_variance", True):
        scale /= (norm.running_var.double() + norm.eps).sqrt()
    if norm.weight is not None:
        scale *= norm.weight.double()
    if norm.bias is not None:
        shift += norm.bias.double()
    if getattr(norm, "use_mean", True):
        shift -= norm.running_mean.double() * scale
    return scale, shift


def replace_modules(model: nn.Module, replacements: Mapping[Any, nn.Module]) -> None:
    """Put other modules in the place of some of a network's, wherever these are, each in the mode of the old one."""
    for old, new in replacements.items():
        new.training = old.training
    for parent in [*model.modules(), *replacements.values()]:
        # One module may have several names, also in one parent.
        for name, child in list(parent._modules.items()):
            if child in replacements:
                setattr(parent, name, replacements[child])


def _frozen(path: str, norm: _BatchNorm) -> FrozenAffine:
    if norm._forward_hooks or norm._forward_pre_hooks or norm._backward_hooks or norm._backward_pre_hooks:
        raise UnsupportedEditError(
            f"{path or 'This norm'} carries hooks, which do not pass to another module: remove them first, and "
            "register them on what takes its place."
        )
    scale, shift = affine_of(path, norm)
    assert norm.running_mean is not None
    rest = {} if type(norm) in _PLAIN else _rest(path, norm)
    return FrozenAffine(scale.to(norm.running_mean), shift.to(norm.running_mean), rest)


def _rest(path: str, norm: _BatchNorm) -> dict[str, nn.Module]:
    """What a norm of another library does after the normalization: all of its children in order, or nothing.

    Both are tried on values about the norm's own mean, in float64 and eval mode.
    """
    children = dict(norm.named_children())
    original = copied(norm).double().eval()
    for rest in (children, {}) if children else ({},):
        trial = FrozenAffine(*affine_of(path, original), {name: copied(child) for name, child in rest.items()})
        if _agree(original, trial.double().eval()):
            return rest
    raise UnsupportedEditError(
        f"{path or 'This norm'} is a {type(norm).__name__}, which computes something else in eval mode than a batch "
        "norm followed by its child modules. Replace it by a torch.nn.BatchNorm and what it does besides, or make it "
        "a subclass of torch.nn.Module instead of a batch norm's to leave it unchanged."
    )


@torch.no_grad()
def _agree(original: _BatchNorm, trial: nn.Module) -> bool:
    assert original.running_mean is not None
    assert original.running_var is not None
    for dimensions in (4, 3, 2, 5):
        shape = (3, original.num_features, *[2] * (dimensions - 2))
        # Values of both signs about the mean of every channel, without a draw from the random state.
        steps = torch.arange(prod(shape)).to(original.running_mean)
        spread = 3 * torch.sin(1.7 * steps).reshape(shape)
        x = per_channel(original.running_mean, spread) + per_channel(original.running_var.sqrt(), spread) * spread
        try:
            expected = original(x)
        except Exception:
            continue  # A norm for inputs of another number of dimensions.
        try:
            return torch.allclose(trial(x.clone()), expected, rtol=1e-6, atol=1e-9)
        except Exception:
            return False  # A child that is no part of the forward pass, such as a list of norms.
    return False
