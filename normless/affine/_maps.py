"""From a norm with fixed statistics to the affine map that it computes, and `freeze`, which puts it in its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normless._internal.arguments import require_network
from normless._internal.copying import Model, copied
from normless._internal.warn import warn
from normless.errors import EvaluationOnlyWarning, LiftError, UnsupportedEditError
from normless.nn import FreezableNorm, FrozenAffine
from normless.nn._channels import scale_and_shift
from normless.nn._freezable import Tokens, original_of
from normless.residual._batch_statistics import as_batch_norm, keeps_statistics, require_finite
from normless.residual._inside_norms import Inside, agree, inside, is_plain
from normless.residual._sub_batches import is_sub_batch_norm

FROZEN = "normless_frozen"
"""The attribute that marks a network whose batch norms were frozen or folded, for `normless.save`."""


@dataclass(frozen=True)
class Affine:
    """The map x ↦ scale ⊙ P x + shift of a norm with fixed statistics, in float64; see `normless.nn.FrozenAffine`."""

    scale: Tensor
    shift: Tensor
    centred: bool = False
    channels_last: bool = False

    @staticmethod
    @torch.no_grad()
    def of(path: str, norm: nn.Module) -> Affine:
        """Return the map of a norm by its running statistics, its measured divisors, or its fixed factor and shift.

        Raises:
            UnsupportedEditError: it has none of these, or they are not finite in evaluation.
        """
        if isinstance(norm, FrozenAffine):
            return Affine(norm.scale.double(), norm.shift.double(), norm.centred, norm.channels_last)
        if isinstance(norm, FreezableNorm):
            if bool((norm.constant[0] != norm.constant[1]).any()):
                raise UnsupportedEditError(
                    f"{path or 'This norm'} divides the first token of a sequence by a constant of its own. Train on "
                    "until removal.done, which makes the constants equal, or begin with "
                    "remove_norms(…, first_token=False)."
                )
            is_last = norm.over in ("features", "example")
            return Affine(*norm.constants(), norm.centres and not norm.spans_positions, is_last)
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
        scale, shift = scale_and_shift(
            mean if getattr(norm, "use_mean", True) else None,
            variance if getattr(norm, "use_variance", True) else None,
            getattr(norm, "eps", 1e-5),
            getattr(norm, "weight", None),
            getattr(norm, "bias", None),
            like=mean.double(),
        )
        return Affine(scale, shift)

    def module(
        self, like: Tensor, rest: Mapping[str, nn.Module] | None = None, *, learned: bool = False
    ) -> FrozenAffine:
        """Return the map as a module with the dtype and device of a tensor, followed by other modules."""
        options = {"centred": self.centred, "channels_last": self.channels_last, "learned": learned}
        return FrozenAffine(self.scale.to(like), self.shift.to(like), rest, **options)


def freeze(model: Model) -> Model:
    """Replace every batch norm of a network by a fixed affine map per channel, in a copy, and return the copy.

    Each batch norm becomes a `normless.nn.FrozenAffine`,

        y = γ / √(σ² + ε) · (x − μ) + β

    with the running μ and σ², in train mode and in eval mode. Child modules and functions that a norm's module
    applies after normalizing are kept. Modules with running statistics that do not derive from torch's batch norm are
    frozen too, and layer, RMS and group norms that `remove_norms` froze; one that it did not freeze becomes the
    original norm again. Outputs in eval mode equal those of the original up to rounding.

    Args:
        model: the network; it is not changed.

    Warns:
        EvaluationOnlyWarning: a norm has another operation in training, which the copy does not have, or is part of a
            TorchScript module, which stays as it is.

    Raises:
        UnsupportedEditError: a batch norm has no running statistics, or statistics that are not finite, carries
            hooks, or computes something else; or a removal left the first token a constant of its own.
    """
    require_network(model)
    if has_constants(model):
        # The network is itself a norm, so its class changes.
        require_finite(model)
        return _frozen("", copied(model), Affine.of("", model))  # type: ignore[return-value]
    return frozen_copy(model)[0]


def frozen_copy(model: Model) -> tuple[Model, dict[str, Affine]]:
    """Return a copy of a network with the maps of norms in their places, and the maps by path."""
    require_network(model)
    require_finite(model)
    for path, module in model.named_modules():
        is_scripted = isinstance(module, torch.jit.ScriptModule)
        if is_scripted and any(name.rpartition(".")[2] == "running_mean" for name, _ in module.named_buffers()):
            warn(
                f"{path} is TorchScript, whose norms stay as they are, with the statistics of the batch in training.",
                EvaluationOnlyWarning,
            )
            break
    network = copied(model)
    without_removal(network)
    maps = freeze_norms(network)
    setattr(network, FROZEN, True)
    return network, maps


def freeze_norms(network: nn.Module, covers: Callable[[str], bool] = lambda _: True) -> dict[str, Affine]:
    """Replace the norms with constant statistics, at the paths that are covered, in place; return their maps by path.

    Nothing is replaced if one of them is refused.
    """
    norms = {path: norm for path, norm in norms_with_constants(network) if covers(path)}
    maps = {path: Affine.of(path, norm) for path, norm in norms.items()}
    replace_modules(network, {norm: _frozen(path, norm, maps[path]) for path, norm in norms.items()})
    return maps


def has_constants(norm: nn.Module) -> bool:
    """Whether a module is a norm whose statistics may be fixed: running ones, measured divisors, or constants."""
    is_own = isinstance(norm, (FreezableNorm, FrozenAffine))
    return is_own or keeps_statistics(norm) or is_sub_batch_norm(norm)


def norms_with_constants(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Iterate by path over the norms with constants, without those inside other norms or TorchScript."""
    passed = set[nn.Module]()
    for path, module in model.named_modules():
        is_scripted = isinstance(module, torch.jit.ScriptModule)
        if module not in passed and (is_scripted or has_constants(module)):
            passed |= {*module.modules()}
            if not is_scripted:
                yield path, module


def replace_modules(model: nn.Module, replacements: Mapping[Any, nn.Module]) -> None:
    """Replace modules of a network under all of their names, keeping the mode of each."""
    for old, new in replacements.items():
        new.training = old.training
    for parent in [*model.modules(), *replacements.values()]:
        # A module may have several names, even in one parent.
        for name, child in list(parent._modules.items()):
            if child in replacements:
                setattr(parent, name, replacements[child])


def without_removal(network: nn.Module) -> None:
    """Replace the norms of a removal that are not frozen by the original norms, and remove the removal's hook."""
    begun = [module for module in network.modules() if isinstance(module, FreezableNorm) and not module.frozen]
    replace_modules(network, {module: original_of(module) for module in begun})
    for module in network.modules():
        hooks = module._forward_pre_hooks
        for number in [key for key, hook in hooks.items() if isinstance(getattr(hook, "__self__", None), Tokens)]:
            del hooks[number]
            module._forward_pre_hooks_with_kwargs.pop(number, None)


def has_hooks(module: nn.Module) -> bool:
    """Whether a module carries hooks, which do not move to another module."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(hooks)


def _as_in_evaluation(path: str, norm: nn.Module) -> nn.Module:
    """Return a norm, or for a sub-batch norm the batch norm that it applies in evaluation."""
    if keeps_statistics(norm) or not is_sub_batch_norm(norm):
        return norm
    try:
        return as_batch_norm(norm)
    except LiftError as error:
        raise UnsupportedEditError(f"The statistics of {path or 'this norm'} cannot be fixed: {error}.") from error


def _frozen(path: str, norm: nn.Module, affine: Affine) -> nn.Module:
    """Return the module of a norm's map, with the other modules of the norm."""
    if isinstance(norm, FrozenAffine):
        return norm
    if has_hooks(norm):
        raise UnsupportedEditError(
            f"{path or 'This norm'} carries hooks, which do not move to another module: remove them first, and "
            "register them on its replacement."
        )
    if isinstance(norm, FreezableNorm):
        return affine.module(next(norm.parameters(recurse=False), norm.constant), dict(norm.named_children()))
    norm = _as_in_evaluation(path, norm)
    return affine.module(Tensor(norm.running_mean), {} if is_plain(norm) else _rest(path, norm))


def _rest(path: str, norm: nn.Module) -> dict[str, nn.Module]:
    """Return the modules that a norm applies after the normalization, by name; refuse any other operation.

    The norm is compared with its replacement on values around its mean, in float64 and eval mode.
    """
    name, reason = type(norm).__name__, "in eval mode it computes something other than a batch norm and these"
    original, found = copied(norm).double(), Inside()
    try:
        found = inside(norm, evaluation_only=True)
        if found.before:
            reason = f"{found.before[0].name} comes before its normalization"
    except LiftError as error:
        reason = str(error)
    rest = {part.name: part.module for part in found.after if not isinstance(part.module, nn.Identity)}
    affine = Affine.of(path, original)
    trial = affine.module(affine.scale, {key: copied(module).double() for key, module in rest.items()})
    if found.before or not agree(original, trial, None, rtol=1e-6, atol=1e-9):
        raise UnsupportedEditError(
            f"{path or 'This norm'} is a {name}, which does more than a batch norm followed by functions of its "
            f"output: {reason}. Replace it by a torch.nn.BatchNorm and separate modules."
        )
    if not type(norm).__module__.startswith("normless.nn"):
        try:
            inside(norm)
        except LiftError as error:
            warn(
                f"{path or 'This norm'} is a {name} with operations in training that the frozen copy does not have; "
                f"the copy is right in evaluation only: {error}.",
                EvaluationOnlyWarning,
            )
    return rest
