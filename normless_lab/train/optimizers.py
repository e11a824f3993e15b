"""The optimizer of a run, built on the groups of its parameters for the device that they are on."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Adam, AdamW, Optimizer

from normless.optim import defaults_of, group_options, parse_optimizer
from normless.residual import ResidualMap
from normless_lab.train.capturable import CapturableSGD
from normless_lab.train.optimizer_settings import FIELDS, SGD
from normless_lab.train.task import groups_of

# Arguments by which a text chooses them.
_KERNELS = {"fused", "foreach", "capturable", "differentiable"}


def build(config: Any, network: nn.Module, structure: ResidualMap) -> Optimizer:
    """Build the optimizer of a configuration on the groups of its decay policy, for the device of the network.

    Where torch has a fused kernel it is used, else on a card a step that can be captured, if the class has one.

    Raises:
        ValueError: as in `normless.optim.make_optimizer`.
    """
    kind, options = parse_optimizer(config.optimizer, given=("lr",))
    parameter = next(network.parameters())
    is_sharded = isinstance(parameter, DTensor)
    # Fused kernels read a rate that is a tensor in single precision.
    is_exact = not (config.precision == "64-true" and parameter.is_cuda)
    groups = groups_of(config, network, structure, **group_options(kind, options))
    if config.optimizer == SGD:
        return _sgd(config, groups, is_sharded, is_exact)
    takes = defaults_of(kind)
    chosen = {argument: getattr(config, field) for field, argument in FIELDS.items() if argument in takes}
    if kind in (Adam, AdamW) and not is_sharded and is_exact:
        chosen |= {} if _KERNELS & options.keys() else {"fused": True}
    elif "capturable" in takes and parameter.device.type != "cpu":
        chosen |= {} if _KERNELS & options.keys() else {"capturable": True}
    return kind(groups, **chosen | options)


def _sgd(config: Any, groups: list[dict[str, Any]], is_sharded: bool, is_exact: bool) -> Optimizer:
    """Build stochastic gradient descent with heavy-ball momentum."""
    # On a CPU core the fused kernel takes 0.3 of the time of `foreach` for the 1,195 tensors of a 400-layer
    # Wide-ResNet, and no longer on any network. Of parameters that are sharded there is none.
    moves: dict[str, Any] = {"momentum": config.momentum, "nesterov": config.nesterov}
    if is_exact or is_sharded:
        optimizer = torch.optim.SGD(groups, lr=config.rate, **moves, fused=not is_sharded)
    else:
        optimizer = CapturableSGD(groups, lr=config.rate, **moves)
    if not is_sharded and config.momentum:
        # The fused kernel refuses a parameter that gets its first gradient after others.
        for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimizer
