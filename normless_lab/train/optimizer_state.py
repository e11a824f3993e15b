"""The state of an optimizer as it was saved: numbers, kinds and places, on another device too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

# How a step is computed; depends on the device and on how parameters are sharded.
_KERNELS = ("fused", "foreach", "capturable")


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
    kernels = [{name: group[name] for name in _KERNELS if name in group} for group in inner.param_groups]
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
