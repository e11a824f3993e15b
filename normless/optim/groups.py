"""Parameter groups by what a parameter is: weights, γ by role, biases, scalars (Kim et al., table 1)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from normless.nn import ResidualSum, ScalarAffine, ShiftedActivation
from normless.residual import ResidualMap
from normless.residual import residual_map as find_residual_map
from normless.residual.classify import NORMS, kind_of

GROUPS = ("weights", "gamma_last", "gamma_down", "gamma_stem", "gamma_other", "biases", "scalars", "rest")

POLICIES: Mapping[str, frozenset[str]] = {
    # The guidelines 1 to 4: decay γ_last and γ_others, neither γ_down nor γ_0, nor β, biases and scalars.
    "guidelines": frozenset({"weights", "gamma_last", "gamma_other", "rest"}),
    # PyTorch's default: everything.
    "all": frozenset(GROUPS),
    # TensorFlow's practice: weights only.
    "weights": frozenset({"weights"}),
}


def param_groups(
    model: nn.Module,
    *,
    lr: float,
    weight_decay: float,
    policy: str | Mapping[str, bool] = "guidelines",
    scalar_lr_scale: float = 1.0,
    residual_map: ResidualMap | None = None,
    example_inputs: tuple[Any, ...] = (),
) -> list[dict[str, Any]]:
    """Named parameter groups for any torch optimizer, every trainable parameter in exactly one of them.

    Args:
        model: the network, converted or not.
        lr: the base learning rate; a group's own is lr · lr_scale, and `lr_scale` stays in the group so that a
            schedule can multiply the base rate.
        weight_decay: λ of the groups that the policy decays; 0 for the others.
        policy: `guidelines` (γ_last and γ_others decayed, γ_down, γ_0, biases and scalars not), `all`, or
            `weights`; or a mapping from names in `GROUPS` to whether that group is decayed.
        scalar_lr_scale: factor on the rate of multipliers and scalar biases; 0.1 is the Fixup paper's with Mixup.
        residual_map: the network's map where it is known; else it is found, by `example_inputs` if need be.

    Returns:
        Dictionaries with keys params, name, lr, lr_scale, weight_decay; empty groups are left out.

    Raises:
        ValueError: an unknown policy or group name, or a negative rate or decay.
    """
    decayed = _decayed(policy)
    if not (lr >= 0 and weight_decay >= 0 and scalar_lr_scale >= 0):
        raise ValueError(
            f"Rates and decay are not negative, got lr={lr}, weight_decay={weight_decay}, "
            f"scalar_lr_scale={scalar_lr_scale}."
        )
    found = find_residual_map(model, *example_inputs) if residual_map is None else residual_map
    members: dict[str, list[nn.Parameter]] = {name: [] for name in GROUPS}
    for group, parameter in _classified(model, found):
        members[group].append(parameter)
    groups = []
    for name, parameters in members.items():
        if parameters:
            scale = scalar_lr_scale if name == "scalars" else 1.0
            decay = weight_decay if name in decayed else 0.0
            groups.append(
                {"params": parameters, "name": name, "lr": lr * scale, "lr_scale": scale, "weight_decay": decay}
            )
    return groups


def _decayed(policy: str | Mapping[str, bool]) -> frozenset[str]:
    if isinstance(policy, str):
        if policy not in POLICIES:
            raise ValueError(f"There is no decay policy {policy!r}; the policies are {', '.join(POLICIES)}.")
        return POLICIES[policy]
    unknown = sorted(set(policy) - set(GROUPS))
    if unknown:
        raise ValueError(f"There is no parameter group {', '.join(unknown)}; the groups are {', '.join(GROUPS)}.")
    return frozenset(name for name, decay in policy.items() if decay)


def _classified(model: nn.Module, found: ResidualMap) -> Iterator[tuple[str, nn.Parameter]]:
    """Every trainable parameter once, with its group; a tied one goes by its first owner."""
    seen: set[int] = set()
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad and id(parameter) not in seen:
                seen.add(id(parameter))
                yield _group_of(path, module, name, parameter, found), parameter


def _group_of(path: str, module: nn.Module, name: str, parameter: Tensor, found: ResidualMap) -> str:
    if isinstance(module, (ScalarAffine, ShiftedActivation, ResidualSum)) and name not in ("weight", "bias"):
        return "scalars"
    # Recurrent layers call theirs bias_ih_l0 and so on.
    if name.endswith("bias") or name.startswith("bias"):
        return "biases"
    if isinstance(module, NORMS):
        return f"gamma_{found.norms.get(path, 'other')}"
    if kind_of(module) == "weight" or parameter.dim() >= 2:
        return "weights"
    return "rest"
