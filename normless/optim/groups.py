"""Parameter groups by what a parameter is: weights, γ by role, biases, scalars (Kim et al., table 1)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch import nn

from normless.arguments import forward_arguments
from normless.decay import GROUPS, Policy, decays_of
from normless.optim.roles import parameter_roles
from normless.residual import ResidualMap
from normless.residual import residual_map as find_residual_map


def param_groups(
    model: nn.Module,
    *inputs: Any,
    lr: float,
    weight_decay: float,
    policy: Policy = "guidelines",
    scalar_lr_scale: float = 1.0,
    residual_map: ResidualMap | None = None,
    example_inputs: Any = None,
) -> list[dict[str, Any]]:
    """Named parameter groups for any torch optimizer, every trainable parameter in exactly one of them.

    Groups are defined in `normless.optim.roles`. Torch's schedulers scale every group's lr and so keep
    the proportions; those of timm multiply by `lr_scale` again and expect the base rate in `lr`.

    Args:
        model: the network, converted or not.
        lr: the base learning rate; a group's own is lr · lr_scale, and `lr_scale` stays in the group so that a
            schedule can multiply the base rate.
        weight_decay: λ of the groups that the policy decays; 0 for the others.
        policy: `guidelines` (weights, γ_last and γ_others decayed, nothing else), `all`, or `weights`; several of
            them, groups, roles of γ and patterns of parameters' names joined by +, as in `weights+last`; or a mapping
            from these to whether they decay, or to a λ of their own: see `normless.decay.decays_of`.
        scalar_lr_scale: factor on the rate of multipliers and scalar biases; 0.1 is the Fixup paper's with Mixup.
        residual_map: the network's map where it is known; else it is found, by `example_inputs` if need be.
        example_inputs: what the network's forward takes, where that is not given by position as `inputs`: one tensor,
            a tuple of positional arguments, or a mapping of keyword arguments.

    Returns:
        Dictionaries with keys params, name, lr, lr_scale, weight_decay; empty groups are left out. What a pattern
        takes out of a group is one of its own, named `GROUP:PATTERN`.

    Raises:
        ValueError: an unknown policy or group name, a pattern that no parameter matches, a negative rate or decay,
            or a map of another network.
        UnresolvedStructureError: the network must be traced, and no inputs came or it cannot be exported.
    """
    if not (lr >= 0 and weight_decay >= 0 and scalar_lr_scale >= 0):
        raise ValueError(
            f"Rates and decay are not negative, got lr={lr}, weight_decay={weight_decay}, "
            f"scalar_lr_scale={scalar_lr_scale}."
        )
    decays = decays_of(policy, weight_decay)
    positional, named_inputs = forward_arguments(inputs, {}, example_inputs)
    residual_map = find_residual_map(model, *positional, **named_inputs) if residual_map is None else residual_map
    named = dict(model.named_parameters())
    members: dict[tuple[str, str | None], list[nn.Parameter]] = {(name, None): [] for name in GROUPS}
    for name, group in parameter_roles(model, residual_map).items():
        members.setdefault((group, decays.pattern_of(name)), []).append(named[name])
    _check_matched(decays.patterns, {pattern for _, pattern in members}, named)
    groups = []
    for (group, pattern), parameters in sorted(members.items(), key=lambda member: GROUPS.index(member[0][0])):
        if parameters:
            scale = scalar_lr_scale if group == "scalars" else 1.0
            name = group if pattern is None else f"{group}:{pattern}"
            decay = decays.groups.get(group, 0.0) if pattern is None else decays.patterns[pattern]
            groups.append(
                {"params": parameters, "name": name, "lr": lr * scale, "lr_scale": scale, "weight_decay": decay}
            )
    return groups


def _check_matched(patterns: Collection[str], matched: Collection[str | None], names: Collection[str]) -> None:
    idle = [pattern for pattern in patterns if pattern not in matched]
    if idle:
        raise ValueError(
            f"No trained parameter of this network has a name like {', '.join(idle)} that no later pattern takes; "
            f"its names are such as {', '.join(list(names)[:3])}."
        )
