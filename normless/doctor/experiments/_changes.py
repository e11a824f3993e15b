"""Changes of a training for experiments: other data, and forward passes without some of their calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from normless.doctor.facts._flow import KINDS, MOVES, TensorCall
from normless.doctor.facts._tracer import Seen, Tracer
from normless.probes.hooks._observe import compute_output
from normless.recording._modules import Observer
from normless.state import preserve_state

# The arguments of attentions that mask positions, by position and by name.
_MASKS: dict[str, tuple[int, dict[str, Any]]] = {
    "scaled_dot_product_attention": (3, {"attn_mask": None, "is_causal": False}),
    "multi_head_attention_forward": (99, {"attn_mask": None, "key_padding_mask": None, "is_causal": False}),
}
# Functions of two values; with a constant they can be left out.
PAIRS = {"add", "sub", "mul", "div", "__add__", "__radd__", "__sub__", "__mul__", "__rmul__", "__truediv__"}
# A constant with values below this masks what it is added to.
LOW = -1e3
Site = tuple[str, int]
"""The name of a function, and the number of its call in a pass."""


class _Counted(Tracer):
    """Records the calls that can be left out: their result has the shape and the type of their first argument."""

    def __init__(self) -> None:
        super().__init__()
        self.sites: dict[Site, TensorCall] = {}
        self.masks: set[Site] = set()
        self._counts = Counter[str]()

    def before_call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Count the call."""
        self._counts[name] += 1
        return self._counts[name]

    def on_call(self, seen: Seen) -> None:
        """Record the call if it can be left out."""
        name, site = seen.call.name, (seen.call.name, seen.before)
        first = seen.args[0] if seen.args else None
        source = self.flow.of(first) if isinstance(first, Tensor) and first.is_floating_point() else None
        if source is None or not source.is_signal or isinstance(first, nn.Parameter) or not self._can_go(seen, first):
            return
        self.sites[site] = seen.call
        constants = (other for other in seen.args[1:] if isinstance(other, Tensor) and other.is_floating_point())
        is_added = any(float(other.min()) < LOW for other in constants if other.numel())
        if name in _MASKS or name.startswith("masked") or is_added:
            self.masks.add(site)

    def _can_go(self, seen: Seen, first: Any) -> bool:
        """Whether a call has a mask, or is no layer and keeps shape and type."""
        name = seen.call.name
        if name in _MASKS:
            position, masks = _MASKS[name]
            given = [seen.kwargs.get(mask) for mask in masks] + [*seen.args[position:]]
            return any(isinstance(value, Tensor) or value is True for value in given)
        if seen.made[0].shape != first.shape or seen.made[0].dtype != first.dtype:
            return False
        if name in PAIRS:
            other = seen.args[1] if len(seen.args) > 1 else None
            added = self.flow.of(other) if isinstance(other, Tensor) else None
            return not isinstance(other, Tensor) or (added is not None and not added.is_trained)
        is_layer = KINDS.get(name) in ("weight", "attention")
        return not is_layer and (name in ("dropout", "detach") or name not in MOVES)


class _Leaving(Observer):
    """Returns the first argument of the chosen calls, or calls an attention without its masks."""

    def __init__(self, chosen: frozenset[Site]) -> None:
        super().__init__()
        self._chosen, self._counts = chosen, Counter[str]()

    def on_function(self, name: str, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call that is not chosen."""
        self._counts[name] += 1
        if (name, self._counts[name]) not in self._chosen:
            return function(*args, **kwargs)
        if name not in _MASKS:
            return args[0]
        position, masks = _MASKS[name]
        return function(*args[:position], **kwargs | {key: value for key, value in masks.items() if key in kwargs})


class Altered(nn.Module):
    """A network without some calls of its forward pass."""

    def __init__(self, inner: nn.Module, chosen: Iterable[Site]) -> None:
        super().__init__()
        self.inner, self.chosen = inner, frozenset(chosen)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the network, and leave out the chosen calls."""
        with _Leaving(self.chosen):
            return self.inner(*args, **kwargs)


def removable(model: nn.Module, inputs: Any) -> tuple[dict[Site, TensorCall], set[Site]]:
    """Return the calls of a pass in training mode that can be left out, and those of them that mask values."""
    counted = _Counted()
    with preserve_state(model, training=True), torch.enable_grad(), counted.follow(model, inputs):
        compute_output(model, inputs)
    return counted.sites, counted.masks


def standardized(value: Any) -> Any:
    """Return a tensor of floats with mean 0 and variance 1 in each column or channel; other values as they are."""
    if not isinstance(value, Tensor) or not value.is_floating_point() or value.dim() < 2:
        return value
    axes = [0] if value.dim() == 2 else [0, *range(2, value.dim())]
    deviation = value.std(axes, keepdim=True)
    return (value - value.mean(axes, keepdim=True)) / torch.where(deviation > 0, deviation, 1.0)


def drawn(value: Any) -> Any:
    """Return normal numbers, or integers drawn from those of the tensor, in the shape of a tensor."""
    if not isinstance(value, Tensor) or not value.numel():
        return value
    generator = torch.Generator().manual_seed(0)
    if value.is_floating_point():
        return torch.randn(value.shape, generator=generator).to(value)
    return value.flatten()[torch.randint(value.numel(), value.shape, generator=generator).to(value.device)]


def shuffled(value: Any) -> Any:
    """Return a tensor with its examples in another order."""
    if not isinstance(value, Tensor) or not value.dim():
        return value
    order = torch.randperm(len(value), generator=torch.Generator().manual_seed(0))
    return value[order.to(value.device)]
