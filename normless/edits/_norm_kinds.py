"""Norms of one kind in place of another: batch, instance, group, layer and RMS norms with the same γ, β and ε."""

from __future__ import annotations

from itertools import chain
from math import gcd, prod
from typing import Any, Literal, get_args

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from normless.errors import UnsupportedEditError
from normless.residual._batch_statistics import BATCH_NORMS
from normless.residual._inside_norms import agree, is_plain

NormKind = Literal["batch", "instance", "group", "layer", "rms"]
KINDS: tuple[NormKind, ...] = get_args(NormKind)

_CLASSES: dict[NormKind, tuple[type[nn.Module], ...]] = {
    "batch": (_BatchNorm,),
    "instance": (_InstanceNorm,),
    "group": (nn.GroupNorm,),
    "layer": (nn.LayerNorm,),
    "rms": (nn.RMSNorm,),
}
_INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
# Wu & He's other setting: 16 channels per group.
_VALUES_PER_GROUP = 16


def is_of_kind(norm: nn.Module, kind: NormKind) -> bool:
    """Whether a norm is of this kind; a group norm with one group is a layer norm of images."""
    is_whole = kind == "layer" and isinstance(norm, nn.GroupNorm) and norm.num_groups == 1
    return is_whole or isinstance(norm, _CLASSES[kind])


def torch_norm(
    norm: nn.Module, gamma: nn.Parameter | None, beta: nn.Parameter | None, offset: float, shape: Any
) -> nn.Module | None:
    """Return the instance, group, layer or RMS norm of torch that a norm is or computes; None if it is another.

    The norm of another class is run to find out, with its γ, to which `offset` is added, and its β.
    """
    if is_plain(norm) or isinstance(norm, _BatchNorm):
        return norm
    given = (getattr(norm, name, None) for name in ("eps", "variance_epsilon", "epsilon"))
    eps = next((value for value in given if isinstance(value, float)), 1e-6)
    if gamma is None or gamma.dim() != 1:
        return None
    made: nn.Module
    for made in (nn.RMSNorm(len(gamma), eps), nn.LayerNorm(len(gamma), eps)):
        made.weight = nn.Parameter(gamma.detach() + offset, gamma.requires_grad)
        if isinstance(made, nn.LayerNorm):
            made.bias = beta  # type: ignore[assignment]
        if not gamma.is_meta and agree(norm, made.train(norm.training), shape, rtol=1e-4, atol=1e-4):
            return made
    return None


def reason_against(norm: Any, kind: NormKind, shape: tuple[int, ...] | None) -> str:
    """Say why a norm of torch has no counterpart of a kind for an input of this shape, or return ""."""
    is_last = isinstance(norm, (nn.LayerNorm, nn.RMSNorm))
    if is_last and len(norm.normalized_shape) > 1:
        return f"its γ has an element for each of {len(norm.normalized_shape)} axes"
    is_vector = shape is not None and len(shape) == 2
    if shape is None and not isinstance(norm, BATCH_NORMS):
        return "the shape of its input is not known"
    if is_vector and (kind == "instance" or (kind == "group" and not isinstance(norm, _BatchNorm))):
        return "it reads vectors, whose features have no positions over which statistics could be taken"
    if is_last and not is_vector and kind in ("batch", "instance", "group"):
        return f"its channels are the last axis, where {kind} norm would mix tokens of an example or of the batch"
    if kind == "rms" and not is_last and not is_vector:
        return "it takes its statistics over positions, which no RMS norm does"
    return ""


def norm_of_kind(norm: Any, kind: NormKind, shape: tuple[int, ...] | None, groups: int = 32) -> nn.Module:
    """Return a norm of another kind with the channels, γ, β and ε of a norm of torch, and fresh statistics.

    On images a layer norm is a group norm with one group (Wu & He 2018, section 3.1).

    Raises:
        UnsupportedEditError: groups or instances would have too few values.
    """
    is_last = isinstance(norm, (nn.LayerNorm, nn.RMSNorm))
    channels = norm.normalized_shape[0] if is_last else getattr(norm, "num_features", 0) or norm.num_channels
    eps = torch.finfo(torch.float32).eps if norm.eps is None else norm.eps
    has_affine = norm.weight is not None
    axes = (
        max(len(shape) - 3, 0) if shape else next(at for at, own in enumerate(BATCH_NORMS) if isinstance(norm, own))
    )
    new: Any
    if kind == "batch":
        new = BATCH_NORMS[axes](channels, eps=eps, affine=has_affine)
    elif kind == "instance":
        if shape is not None and prod(shape[2:]) < 2:
            raise UnsupportedEditError(
                "a channel of an example has one value there, which instance norm normalizes to nothing; put that "
                "norm elsewhere, or pass larger inputs"
            )
        new = _INSTANCE_NORMS[axes](channels, eps=eps, affine=has_affine)
    elif kind == "rms":
        new = nn.RMSNorm(channels, eps=eps, elementwise_affine=has_affine)
    elif kind == "layer" and (is_last or (shape is not None and len(shape) == 2)):
        has_bias = getattr(norm, "bias", None) is not None
        new = nn.LayerNorm(channels, eps=eps, elementwise_affine=has_affine, bias=has_bias)
    else:
        is_vector = isinstance(norm, nn.BatchNorm1d)
        count = 1 if kind == "layer" else number_of_groups(channels, groups, shape, is_vector)
        new = nn.GroupNorm(count, channels, eps=eps, affine=has_affine)
    take_over(norm, new)
    new.training = norm.training
    made: nn.Module = new
    return made


def number_of_groups(channels: int, groups: int, shape: tuple[int, ...] | None, is_vector: bool) -> int:
    """Return a number of at most `groups` groups, each with more than two values of an example."""
    if groups < 1:
        raise UnsupportedEditError(f"a layer has at least one group, got groups={groups}")
    known = None if shape is None or len(shape) < 2 else prod(shape[2:])
    # The input of a BatchNorm1d may be vectors.
    places = known if known is not None else 1 if is_vector else None
    used = gcd(groups, channels)
    if places is None or channels * places > 2 * used:
        return used
    counts = (count for count in range(used, 1, -1) if channels % count == 0)
    best = next((count for count in counts if channels // count >= _VALUES_PER_GROUP), 1)
    if (number := channels * places) <= 2 * best or (known is None and used == channels):
        raise UnsupportedEditError(
            f"with groups={groups} each of its {channels} features would be a group of its own, "
            "and a group of one value is normalized to nothing; take fewer groups"
            if known is None
            else f"an example has {number} {'value' if number == 1 else 'values'} there, and of a group of one or "
            "two values group norm leaves at most signs; put that norm elsewhere, or remove it"
        )
    return best


def take_over(old: nn.Module, new: nn.Module) -> None:
    """Copy the state of the old layer to the new, with its dtype, device and `requires_grad`."""
    reference = next(chain(old.parameters(), old.buffers()), None)
    if reference is not None:
        new.to(reference)
    new.load_state_dict(old.state_dict(), strict=False)
    for name, parameter in new.named_parameters():
        own = getattr(old, name, None)
        if own is None:
            setattr(new, name, None)
        else:
            parameter.requires_grad_(own.requires_grad)
