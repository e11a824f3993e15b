"""Parameter groups by what a parameter is: weights, γ by role, biases, scalars (Kim et al., table 1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from normless.arguments import arguments_of
from normless.optim.roles import GROUPS, parameter_roles
from normless.residual import ResidualMap
from normless.residual import residual_map as find_residual_map

POLICIES: Mapping[str, frozenset[str]] = {
    # The guidelines 1 to 4: decay weights, γ_last and γ_others; neither γ_down nor γ_0, nor β, biases and scalars.
    # The guidelines do not speak of the other groups. Gains and layer scales are multipliers, as scalars are: a decay
    # would pull a whole channel to zero, whatever its weights. In `rest`, tokens and positions are added to
    # activations, as biases are, and torch advises against a decay of PReLU's slopes.
    "guidelines": frozenset({"weights", "gamma_last", "gamma_other"}),
    # PyTorch's default: everything.
    "all": frozenset(GROUPS),
    # TensorFlow's practice: weights only.
    "weights": frozenset({"weights"}),
}

# The roles of a γ as the residual map names them.
_SHORT = {name.removeprefix("gamma_"): name for name in GROUPS if name.startswith("gamma_")}


def param_groups(
    model: nn.Module,
    *,
    lr: float,
    weight_decay: float,
    policy: str | Mapping[str, bool | float] = "guidelines",
    scalar_lr_scale: float = 1.0,
    residual_map: ResidualMap | None = None,
    example_inputs: Any = None,
) -> list[dict[str, Any]]:
    """Named parameter groups for any torch optimizer, every trainable parameter in exactly one of them.

    What a group holds is told in `normless.optim.roles`. Torch's schedulers scale every group's own rate and so
    keep the proportion; those of timm multiply by `lr_scale` once more and expect it with the base rate in `lr`.

    Args:
        model: the network, converted or not.
        lr: the base learning rate; a group's own is lr · lr_scale, and `lr_scale` stays in the group so that a
            schedule can multiply the base rate.
        weight_decay: λ of the groups that the policy decays; 0 for the others.
        policy: `guidelines` (weights, γ_last and γ_others decayed, nothing else), `all`, or `weights`; or a mapping
            from names in `GROUPS`, or roles of γ (`last`, `down`, `stem`, `other`), to whether that group is
            decayed, or to a λ of its own. Groups that a mapping leaves out are not decayed.
        scalar_lr_scale: factor on the rate of multipliers and scalar biases; 0.1 is the Fixup paper's with Mixup.
        residual_map: the network's map where it is known; else it is found, by `example_inputs` if need be.
        example_inputs: what the network's forward takes: one tensor, a tuple of positional arguments, or a mapping
            of keyword arguments.

    Returns:
        Dictionaries with keys params, name, lr, lr_scale, weight_decay; empty groups are left out.

    Raises:
        ValueError: an unknown policy or group name, a negative rate or decay, or a map of another network.
        UnresolvedStructureError: the network must be traced, and no inputs came or it cannot be exported.
    """
    if not (lr >= 0 and weight_decay >= 0 and scalar_lr_scale >= 0):
        raise ValueError(
            f"Rates and decay are not negative, got lr={lr}, weight_decay={weight_decay}, "
            f"scalar_lr_scale={scalar_lr_scale}."
        )
    decays = _decays(policy, weight_decay)
    found = _map(model, example_inputs) if residual_map is None else residual_map
    named = dict(model.named_parameters())
    members: dict[str, list[nn.Parameter]] = {name: [] for name in GROUPS}
    for name, group in parameter_roles(model, found).items():
        members[group].append(named[name])
    groups = []
    for name, parameters in members.items():
        if parameters:
            scale = scalar_lr_scale if name == "scalars" else 1.0
            groups.append(
                {
                    "params": parameters,
                    "name": name,
                    "lr": lr * scale,
                    "lr_scale": scale,
                    "weight_decay": decays.get(name, 0.0),
                }
            )
    return groups


def _map(model: nn.Module, example_inputs: Any) -> ResidualMap:
    positional, named = arguments_of(example_inputs)
    return find_residual_map(model, *positional, **named)


def _decays(policy: str | Mapping[str, bool | float], weight_decay: float) -> dict[str, float]:
    """λ by group; a group that is not decayed may be missing."""
    if isinstance(policy, str):
        if policy not in POLICIES:
            raise ValueError(f"There is no decay policy {policy!r}; the policies are {', '.join(POLICIES)}.")
        return dict.fromkeys(POLICIES[policy], weight_decay)
    unknown = sorted(set(policy) - set(GROUPS) - set(_SHORT))
    if unknown:
        raise ValueError(
            f"There is no parameter group {', '.join(unknown)}; the groups are {', '.join(GROUPS)}, "
            f"and {', '.join(_SHORT)} for those of γ."
        )
    decays: dict[str, float] = {}
    for key, decay in policy.items():
        name = _SHORT.get(key, key)
        if name in decays:
            raise ValueError(f"The policy names the group {name} twice, once by its short name {key!r}: keep one.")
        decays[name] = weight_decay * decay if isinstance(decay, bool) else float(decay)
        if not decays[name] >= 0:
            raise ValueError(f"A decay is not negative, got {decay} for the group {name}.")
    return decays
