"""Optimizers by name: the classes of torch.optim, and those of files and other packages."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from inspect import Parameter, signature
from typing import Any

import torch.optim
from torch import nn
from torch.optim import Optimizer

from normless.optim._decay import Policy
from normless.optim._groups import param_groups
from normless.registry import Registry, check_arguments
from normless.residual import ResidualMap
from normless.spec import parse_call

OPTIMIZERS: Registry[type[Optimizer]] = Registry("optimizer")
"""Classes of optimizers by name."""
MUON: tuple[type[Optimizer], ...] = tuple(filter(None, [getattr(torch.optim, "Muon", None)]))
"""`torch.optim.Muon`, which torch has since 2.9."""

for _name, _kind in vars(torch.optim).items():
    if isinstance(_kind, type) and issubclass(_kind, Optimizer) and _kind is not Optimizer:
        OPTIMIZERS.register(_name)(_kind)


def parse_optimizer(text: str, *, given: Collection[str] = ()) -> tuple[type[Optimizer], dict[str, Any]]:
    """Return the class and the arguments that a text such as ``AdamW(lr=1e-3, weight_decay=0.05)`` names.

    `given` are arguments that the text may leave out although the class has no default for them.

    Raises:
        ValueError: there is no such class, or it does not take these arguments.
    """
    name, options = parse_call(text)
    kind = OPTIMIZERS.find(name)
    elsewhere = dict.fromkeys(set(given) & defaults_of(kind).keys(), 0.0)
    check_arguments(f"optimizer {name}", elsewhere | options, kind, given=("params",))
    return kind, options


def defaults_of(kind: type[Optimizer]) -> Mapping[str, Any]:
    """Return the defaults of the arguments of a class; None where there is no default."""
    stated = {name: parameter.default for name, parameter in signature(kind).parameters.items() if name != "params"}
    return {name: None if default is Parameter.empty else default for name, default in stated.items()}


def group_options(kind: type[Optimizer], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the further argument of `param_groups` for an optimizer, its own ε if it has one."""
    epsilon = options.get("eps", defaults_of(kind).get("eps"))
    return {"eps": epsilon} if isinstance(epsilon, float) else {}


def make_optimizer(
    text: str,
    model: nn.Module,
    *inputs: Any,
    policy: Policy = "guidelines",
    scalar_lr_scale: float = 1.0,
    residual_map: ResidualMap | None = None,
    example_inputs: Any = None,
) -> Optimizer:
    """Make the optimizer of a text, such as ``AdamW(lr=1e-3, weight_decay=0.05)``, on the groups of `param_groups`.

    The text names a class of `OPTIMIZERS`, or FILE.py:NAME or MODULE:NAME. Arguments that it leaves out have the
    defaults of the class.

    Args:
        text: class and arguments.
        model: the network, converted or not.
        policy, scalar_lr_scale, inputs, example_inputs, residual_map: as in `param_groups`.

    Raises:
        ValueError: there is no such class, it does not take these arguments, or not these parameters.
        UnresolvedStructureError: as in `param_groups`.
    """
    kind, options = parse_optimizer(text)
    defaults = defaults_of(kind)
    rate, decay = (options.pop(name, defaults.get(name) or 0.0) for name in ("lr", "weight_decay"))
    groups = param_groups(
        model,
        *inputs,
        lr=rate,
        weight_decay=decay,
        policy=policy,
        scalar_lr_scale=scalar_lr_scale,
        residual_map=residual_map,
        example_inputs=example_inputs,
        **group_options(kind, options),
    )
    return kind(groups, **{name: rate for name in ("lr",) if name in defaults}, **options)
