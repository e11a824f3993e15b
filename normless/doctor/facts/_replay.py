"""Repeat the pass of a training step without gradients, to measure the outputs of modules and units that are off."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from normless.doctor.facts._shards import local, reshard
from normless.nn._channels import channel_axis
from normless.probes import Setting, Watcher
from normless.probes.hooks._watcher import attach_hooks
from normless.residual import Layer, ResidualMap
from normless.residual._classify import kind_of
from normless.state import preserve_state


@dataclass
class Outputs(Watcher):
    """√E[y²] of the first output of every module that reads a float tensor, by path, in order of execution.

    Attributes:
        off: for each weight layer, a mask of the input units that are 0 for all examples and positions.
    """

    sizes: dict[str, Tensor] = field(default_factory=dict, init=False)
    off: dict[str, Tensor] = field(default_factory=dict, init=False)

    def on_layer(self, layer: Layer, module: nn.Module, x: Tensor, y: Tensor) -> None:
        """Measure an input and an output."""
        self.sizes[layer.path] = norm_of(y) / max(y.numel(), 1) ** 0.5
        if kind_of(module) == "weight" and x.dim() > 1:
            axis = channel_axis(module, x)
            others = [dim for dim in range(x.dim()) if dim != axis]
            self.off[layer.path] = torch.linalg.vector_norm(x, torch.inf, dim=others) == 0


def norm_of(x: Tensor) -> Tensor:
    """Return the Euclidean norm, in float32 or better."""
    norm: Tensor = torch.linalg.vector_norm(x, dtype=torch.promote_types(x.dtype, torch.float32))
    return norm


def gradient_norms(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the Euclidean norms of the gradients by name, in float32 or better; of sharded ones, of local parts."""
    norms: dict[str, Tensor] = {}
    for dtype in {parameter.dtype for parameter in parameters.values()}:
        part = {
            name: _dense(local(parameter.grad))
            for name, parameter in parameters.items()
            if parameter.dtype == dtype and parameter.grad is not None
        }
        wide = torch.float32 if dtype.itemsize < 4 else None
        norms |= dict(zip(part, torch._foreach_norm(list(part.values()), dtype=wide), strict=True))
    return {name: norms[name] for name in parameters if name in norms}


def rounded_away(step: Tensor, parameter: Tensor) -> tuple[Tensor, Tensor] | None:
    """Count the elements with a gradient that an update left unchanged, and all elements with a gradient.

    Returns None for a parameter without a gradient and for weights of 32 bits or more, which updates rarely leave
    unchanged. Nothing is read from the device.
    """
    if parameter.grad is None or parameter.element_size() >= 4:
        return None
    has = local(parameter.grad).to_dense() != 0
    return ((step == 0) & has).sum(), has.sum()


def _dense(gradient: Tensor) -> Tensor:
    return gradient.coalesce().values() if gradient.is_sparse else gradient


def as_floats(values: Mapping[str, Tensor]) -> dict[str, float]:
    """Convert tensors of one element to numbers, read from the device at once."""
    if not values:
        return {}
    device = next(iter(values.values())).device
    numbers = torch.stack([value.to(device, torch.float32) for value in values.values()]).tolist()
    return dict(zip(values, numbers, strict=True))


@dataclass(frozen=True)
class Replay:
    """The arguments and the precision of a forward pass."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    autocast: tuple[str, torch.dtype] | None

    @classmethod
    def of(cls, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Replay:
        """Record the arguments and the precision of a pass that begins."""
        device = next((parameter.device.type for parameter in model.parameters()), "cpu")
        enabled = torch.is_autocast_enabled(device)
        return cls(args, kwargs, (device, torch.get_autocast_dtype(device)) if enabled else None)

    def run(self, model: nn.Module) -> Outputs:
        """Repeat the pass in the current modes of the modules.

        Buffers, gradients and random states are restored.
        """
        # Every module is a layer of this map, so that blocks written as `x + f(x)` are seen too.
        layers = tuple(Layer(path, kind_of(module) or "scale") for path, module in model.named_modules())
        outputs = Outputs()
        hooks = attach_hooks(Setting(model, ResidualMap((), layers)), [outputs])
        with preserve_state(model, training=None), torch.no_grad(), self.precision(), hooks:
            model(*self.args, **self.kwargs)
        reshard(model)
        return outputs

    def precision(self) -> AbstractContextManager[Any]:
        """Return a context with the precision of the pass."""
        return nullcontext() if self.autocast is None else torch.autocast(*self.autocast)
