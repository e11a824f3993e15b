"""The pass of a training step once more, without gradients: the output of every module, and units that are off."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from normless.nn.channels import channel_axis
from normless.probes import Setting, Watcher, attach_hooks, preserve_state
from normless.residual import Layer, ResidualMap
from normless.residual.classify import kind_of


@dataclass
class Outputs(Watcher):
    """√E[y²] of the first output of every module that reads a float tensor, by path and in order of execution.

    Attributes:
        off: of weight layers, which units of their input are 0 for all examples and positions.
    """

    sizes: dict[str, Tensor] = field(default_factory=dict, init=False)
    off: dict[str, Tensor] = field(default_factory=dict, init=False)

    def on_layer(self, layer: Layer, module: nn.Module, x: Tensor, y: Tensor) -> None:
        """Reduce an input and an output to their numbers."""
        self.sizes[layer.path] = norm_of(y) / max(y.numel(), 1) ** 0.5
        if kind_of(module) == "weight" and x.dim() > 1:
            axis = channel_axis(module, x)
            others = [dim for dim in range(x.dim()) if dim != axis]
            self.off[layer.path] = torch.linalg.vector_norm(x, torch.inf, dim=others) == 0


def norm_of(x: Tensor) -> Tensor:
    """The Euclidean norm, in float32 or better."""
    norm: Tensor = torch.linalg.vector_norm(x, dtype=torch.promote_types(x.dtype, torch.float32))
    return norm


def gradient_norms(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The Euclidean norms of gradients, in float32 or better."""
    norms: dict[str, Tensor] = {}
    for dtype in {parameter.dtype for parameter in parameters.values()}:
        part = {
            name: _dense(parameter.grad)
            for name, parameter in parameters.items()
            if parameter.dtype == dtype and parameter.grad is not None
        }
        wide = torch.float32 if dtype.itemsize < 4 else None
        norms |= dict(zip(part, torch._foreach_norm(list(part.values()), dtype=wide), strict=True))
    return {name: norms[name] for name in parameters if name in norms}


def update_ratio(before: Tensor, parameter: Tensor) -> Tensor:
    """‖Δw‖/‖w‖ of an update; overwrites `before`."""
    size = norm_of(before)
    return norm_of(before.sub_(parameter)) / size


def rounded_away(step: Tensor, parameter: Tensor) -> tuple[Tensor, Tensor] | None:
    """Of a parameter's update: how many elements with a gradient it left as they were, and how many have one.

    None without a gradient, and for weights of 32 bits or more, whose steps rarely are that small. Nothing is read
    from the device.
    """
    if parameter.grad is None or parameter.element_size() >= 4:
        return None
    has = parameter.grad.to_dense() != 0
    return ((step == 0) & has).sum(), has.sum()


def _dense(gradient: Tensor) -> Tensor:
    return gradient.coalesce().values() if gradient.is_sparse else gradient


def as_floats(values: Mapping[str, Tensor]) -> dict[str, float]:
    """Tensors of one element as numbers, read from the device at once."""
    if not values:
        return {}
    device = next(iter(values.values())).device
    numbers = torch.stack([value.to(device, torch.float32) for value in values.values()]).tolist()
    return dict(zip(values, numbers, strict=True))


@dataclass(frozen=True)
class Replay:
    """The arguments of a forward pass, with the precision that it was made in."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    autocast: tuple[str, torch.dtype] | None

    @classmethod
    def of(cls, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Replay:
        """The pass that a network begins."""
        device = next((parameter.device.type for parameter in model.parameters()), "cpu")
        enabled = torch.is_autocast_enabled(device)
        return cls(args, kwargs, (device, torch.get_autocast_dtype(device)) if enabled else None)

    def run(self, model: nn.Module) -> Outputs:
        """Make the pass again, in the modes that the modules are in.

        Buffers, gradients and random states are restored.
        """
        # Every module is a layer of this map, so that blocks written as `x + f(x)` are seen too.
        layers = tuple(Layer(path, kind_of(module) or "scale") for path, module in model.named_modules())
        outputs = Outputs()
        hooks = attach_hooks(Setting(model, ResidualMap((), layers)), [outputs])
        with preserve_state(model, training=None), torch.no_grad(), self.precision(), hooks:
            model(*self.args, **self.kwargs)
        return outputs

    def precision(self) -> AbstractContextManager[Any]:
        """The precision that the pass was made in."""
        return nullcontext() if self.autocast is None else torch.autocast(*self.autocast)
