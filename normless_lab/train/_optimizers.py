"""The optimizer of a run, and its state as it was saved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Adam, AdamW, Optimizer

from normless.optim import defaults_of, group_options, parse_optimizer
from normless.residual import ResidualMap
from normless_lab.train._settings import FIELDS, SGD
from normless_lab.train._task import groups_of


class CapturableSGD(torch.optim.SGD):
    """`torch.optim.SGD` with momentum, without dampening, and with a step for CUDA graphs at any precision.

        m ← μ·m + (g + λ·w),  w ← w − η·m, or by Nesterov w ← w − η·((g + λ·w) + μ·m)

    with the rate η a number or a tensor of one element on the device of the weights. torch's fused kernel reads a
    tensor in single precision, and its other kernels bring a tensor to the host.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take one step; closures are not supported."""
        for group in self.param_groups:
            trained = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not trained:
                continue
            gradients: Any = [parameter.grad for parameter in trained]
            updates: Any = torch._foreach_add(gradients, trained, alpha=group["weight_decay"])
            if group["momentum"]:
                moments = [self.state[parameter]["momentum_buffer"] for parameter in trained]
                torch._foreach_mul_(moments, group["momentum"])
                torch._foreach_add_(moments, updates)
                ahead = group["nesterov"]
                updates = torch._foreach_add(updates, moments, alpha=group["momentum"]) if ahead else moments
            torch._foreach_sub_(trained, torch._foreach_mul(updates, group["lr"]))


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


# How a step is computed; depends on the device and on how parameters are sharded.
_COMPUTED_BY = ("fused", "foreach", "capturable")


@contextmanager
def restored_exactly(optimizer: Optimizer) -> Iterator[None]:
    """Within the context a loaded state becomes that which was saved, for the kernels that the optimizer has here.

    torch converts a loaded state to the types of the parameters, and takes over the kernels of the checkpoint. Here
    numbers keep the types in which they were saved, the kernels stay, and so does the place of the count of steps
    that they read. Tensors of the shape of a parameter have its memory order, which a fused kernel relies on; the
    checkpoint may be of sharded parameters, which have another.
    """
    # Fabric's wrapper hands the state on to torch's optimizer.
    inner = getattr(optimizer, "optimizer", optimizer)
    kernels = [{name: group[name] for name in _COMPUTED_BY if name in group} for group in inner.param_groups]
    saved: list[Mapping[int, Mapping[str, Any]]] = []
    handle = inner.register_load_state_dict_pre_hook(lambda _, state: saved.append(state["state"]))
    try:
        yield
    finally:
        handle.remove()
    if not saved:
        return
    # A state dictionary numbers the parameters in the order of the groups.
    numbers = count()
    for group, kernel in zip(optimizer.param_groups, kernels, strict=True):
        group.update(kernel)
        # A captured step reads its rate from a tensor, of a card that this process may not have.
        group["lr"] = float(group["lr"])
        counts_here = group.get("fused") or group.get("capturable")
        for parameter in group["params"]:
            values = optimizer.state.get(parameter, {})
            as_saved = saved[0].get(next(numbers), {})
            for name, value in values.items():
                if isinstance(value, Tensor):
                    device = torch.device("cpu") if name == "step" and not counts_here else parameter.device
                    values[name] = _restored(value, as_saved.get(name), parameter, device)


def _restored(value: Tensor, saved: Any, parameter: Tensor, device: torch.device) -> Tensor:
    """Return a loaded tensor of the state of a parameter with the saved numbers, on a device."""
    if isinstance(saved, Tensor) and saved.dtype != value.dtype and saved.shape == value.shape:
        value = saved
    if value.shape == parameter.shape and value.stride() != parameter.stride():
        value = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
    return value.to(device)
