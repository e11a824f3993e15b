"""Replace batch norms, and norms that a removal froze, by the affine maps that they compute."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from normless._internal.arguments import require_network
from normless._internal.copying import copied
from normless._internal.warn import warn
from normless.errors import EvaluationOnlyWarning, LiftError, UnsupportedEditError
from normless.nn import FreezableNorm, FrozenAffine, FrozenLayerNorm, Tokens
from normless.nn.channels import scale_and_shift
from normless.nn.freezable import original_of
from normless.residual.batch_statistics import as_batch_norm, keeps_statistics, require_finite
from normless.residual.inside_norms import Inside, agree, inside, is_plain
from normless.residual.sub_batches import is_sub_batch_norm

Model = TypeVar("Model", bound=nn.Module)

FROZEN = "normless_frozen"
"""The attribute that marks a network whose batch norms were frozen or folded, for `normless.save`."""


def freeze(model: Model) -> Model:
    """Replace every batch norm of a network by a fixed affine map per channel, in a copy, and return the copy.

    Each batch norm becomes a `normless.nn.FrozenAffine`,

        y = γ / √(σ² + ε) · (x − μ) + β

    with the running μ and σ², in train mode and in eval mode. Child modules and functions that a norm's module
    applies after normalizing are kept. Modules with running statistics that do not derive from torch's batch norm are
    frozen too. A layer, RMS or group norm that `remove_norms` froze becomes a `normless.nn.FrozenLayerNorm` or a
    `FrozenAffine`; one that it did not freeze becomes the original norm again. Outputs in eval mode equal those of
    the original up to rounding.

    Args:
        model: the network; it is not changed.

    Warns:
        EvaluationOnlyWarning: a norm has another operation in training, which the copy does not have.

    Raises:
        UnsupportedEditError: a batch norm has no running statistics, or statistics that are not finite, carries
            hooks, or computes something else; or a removal left the first token a constant of its own.
    """
    require_network(model)
    require_finite(model)
    network = copied(model)
    without_removal(network)
    frozen: dict[nn.Module, nn.Module] = {norm: frozen_norm(path, norm) for path, norm in whole_norms(network)}
    if network in frozen:
        # The network is itself a norm, so its class changes.
        return frozen[network]  # type: ignore[return-value]
    replace_modules(network, frozen)
    setattr(network, FROZEN, True)
    return network


def whole_norms(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Iterate over the norms with running statistics by path, without norms inside another, as a sub-batch norm."""
    inside_another = set[nn.Module]()
    for path, module in model.named_modules():
        is_fixed = isinstance(module, FreezableNorm) or keeps_statistics(module) or is_sub_batch_norm(module)
        if module not in inside_another and is_fixed:
            inside_another |= {*module.modules()}
            yield path, module


@torch.no_grad()
def affine_of(path: str, norm: nn.Module) -> tuple[Tensor, Tensor]:
    """Return factor and shift per channel, (C,) in float64, of a batch norm in evaluation or a frozen norm."""
    if isinstance(norm, FrozenAffine):
        return norm.scale.double(), norm.shift.double()
    if isinstance(norm, FreezableNorm):
        return norm.constants()
    norm = _as_in_evaluation(path, norm)
    mean, variance = getattr(norm, "running_mean", None), getattr(norm, "running_var", None)
    if mean is None or variance is None:
        raise UnsupportedEditError(
            f"{path or 'This norm'} is a {type(norm).__name__} without running statistics "
            "(track_running_stats=False): it normalizes by each batch in evaluation too, so it cannot be "
            "frozen. Give it running statistics, and run some batches in train mode first."
        )
    if bool((variance < 0).any()):
        raise UnsupportedEditError(
            f"The running variance of {path or 'this norm'}, a {type(norm).__name__}, is negative, so its "
            "output in evaluation is not finite. Load an earlier state."
        )
    return scale_and_shift(
        mean if getattr(norm, "use_mean", True) else None,
        variance if getattr(norm, "use_variance", True) else None,
        getattr(norm, "eps", 1e-5),
        getattr(norm, "weight", None),
        getattr(norm, "bias", None),
        like=mean.double(),
    )


def _as_in_evaluation(path: str, norm: nn.Module) -> nn.Module:
    """Return a norm, or for a sub-batch norm the batch norm that it applies in evaluation."""
    if keeps_statistics(norm) or not is_sub_batch_norm(norm):
        return norm
    try:
        return as_batch_norm(norm)
    except LiftError as error:
        raise UnsupportedEditError(f"The statistics of {path or 'this norm'} cannot be fixed: {error}.") from error


def replace_modules(model: nn.Module, replacements: Mapping[Any, nn.Module]) -> None:
    """Replace modules of a network under all of their names, keeping the mode of each."""
    for old, new in replacements.items():
        new.training = old.training
    for parent in [*model.modules(), *replacements.values()]:
        # A module may have several names, even in one parent.
        for name, child in list(parent._modules.items()):
            if child in replacements:
                setattr(parent, name, replacements[child])


def frozen_norm(path: str, norm: nn.Module) -> nn.Module:
    """Return the fixed affine map, with the norm's other modules, by which `freeze` replaces a norm."""
    if norm._forward_hooks or norm._forward_pre_hooks or norm._backward_hooks or norm._backward_pre_hooks:
        raise UnsupportedEditError(
            f"{path or 'This norm'} carries hooks, which do not move to another module: remove them first, and "
            "register them on its replacement."
        )
    if isinstance(norm, FreezableNorm):
        return _of_removal(path, norm)
    norm = _as_in_evaluation(path, norm)
    scale, shift = affine_of(path, norm)
    mean: Any = norm.running_mean
    return FrozenAffine(scale.to(mean), shift.to(mean), {} if is_plain(norm) else _rest(path, norm))


def without_removal(network: nn.Module) -> None:
    """Replace the norms of a removal that are not frozen by the original norms, and remove the removal's hook."""
    unfrozen = {
        module: original_of(module)
        for module in network.modules()
        if isinstance(module, FreezableNorm) and not module.frozen
    }
    replace_modules(network, unfrozen)
    for module in network.modules():
        hooks = module._forward_pre_hooks
        for number in [
            number for number, hook in hooks.items() if isinstance(getattr(hook, "__self__", None), Tokens)
        ]:
            del hooks[number]
            module._forward_pre_hooks_with_kwargs.pop(number, None)


def _of_removal(path: str, norm: FreezableNorm) -> nn.Module:
    """Return the affine map of a norm that a removal froze."""
    if bool((norm.constant[0] != norm.constant[1]).any()):
        raise UnsupportedEditError(
            f"{path or 'This norm'} divides the first token of a sequence by a constant of its own. Train on until "
            "removal.done, which makes the constants equal, or begin with remove_norms(…, first_token=False)."
        )
    scale, shift = (part.to(norm.constant) for part in norm.constants())
    like = next(norm.parameters(recurse=False), norm.constant)
    scale, shift, rest = scale.to(like), shift.to(like), dict(norm.named_children())
    if norm.over == "groups":
        return FrozenAffine(scale, shift, rest)
    centred = norm.centres and not norm.spans_positions
    return FrozenLayerNorm(scale, shift, rest, centred=centred, channels_first=norm.over == "channels")


def _rest(path: str, norm: nn.Module) -> dict[str, nn.Module]:
    """Return the modules that a norm applies after the normalization, by name; refuse any other operation.

    The norm is compared with its replacement on values around its mean, in float64 and eval mode.
    """
    name, reason = type(norm).__name__, "in eval mode it computes something other than a batch norm and these"
    original = copied(norm).double()
    found = Inside()
    try:
        found = inside(norm, evaluation_only=True)
        if found.before:
            reason = f"{found.before[0].name} comes before its normalization"
    except LiftError as error:
        reason = str(error)
    rest = {part.name: part.module for part in found.after if not isinstance(part.module, nn.Identity)}
    trial = FrozenAffine(*affine_of(path, original), {key: copied(module) for key, module in rest.items()})
    if found.before or not agree(original, trial.double(), None, rtol=1e-6, atol=1e-9):
        raise UnsupportedEditError(
            f"{path or 'This norm'} is a {name}, which does more than a batch norm followed by functions of its "
            f"output: {reason}. Replace it by a torch.nn.BatchNorm and separate modules."
        )
    _warn_of_training(path, norm)
    return rest


def _warn_of_training(path: str, norm: nn.Module) -> None:
    """Warn if a norm has an operation in training that it does not have in evaluation."""
    if type(norm).__module__.startswith("normless.nn"):
        return
    try:
        inside(norm)
    except LiftError as error:
        warn(
            f"{path or 'This norm'} is a {type(norm).__name__} with operations in training that the frozen copy does "
            f"not have; the copy is right in evaluation only: {error}.",
            EvaluationOnlyWarning,
        )
