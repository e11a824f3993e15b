"""Watchers: measurements that receive the tensors of a pass through a network by hooks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from typing import Any, ClassVar

import pandas as pd
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from normless.nn import ResidualSum
from normless.nn._channels import per_channel
from normless.probes.hooks._additions import intercepted
from normless.recording._modules import ModuleRun, followed
from normless.registry import Registry
from normless.residual import Layer, ResidualBlock, ResidualMap, Unresolved

Tables = Mapping[str, pd.DataFrame]


@dataclass(frozen=True)
class Setting:
    """The network of a pass, its residual map, and the targets of the batch."""

    model: nn.Module
    map: ResidualMap
    targets: Any = None


@dataclass
class Watcher:
    """Base class of probes: receives the tensors of a pass at the locations of a residual map.

    A subclass overrides the methods it needs, and `table`; only overridden methods cost anything, and a backward
    pass is made if a `…_gradient` method is among them. Tensors are detached and the network's own: they must not be
    changed, nor stored beyond the pass.
    """

    missed: list[Unresolved] = field(default_factory=list, init=False, repr=False, compare=False)

    def on_start(self, setting: Setting) -> None:
        """Called before a pass; discards the results of earlier passes."""

    def wants(self, layer: Layer) -> bool:
        """Whether `on_layer` and `on_layer_gradient` are called for a layer."""
        return True

    def on_layer(self, layer: Layer, module: nn.Module, x: Tensor, y: Tensor) -> None:
        """Receive a layer's input and output."""

    def on_layer_gradient(self, layer: Layer, module: nn.Module, x: Tensor, gradient: Tensor) -> None:
        """Receive a layer's input and the gradient of the loss with respect to its output."""

    def on_sum(self, block: ResidualBlock, skip: Tensor, branches: tuple[Tensor, ...], total: Tensor) -> None:
        """Receive the summands of a residual sum, multipliers applied, and their total."""

    def on_sum_gradient(self, block: ResidualBlock, gradient: Tensor) -> None:
        """Receive the gradient of the loss with respect to a residual sum."""

    def on_logits(self, logits: Tensor) -> None:
        """Receive the network's output."""

    def on_logits_gradient(self, logits: Tensor, gradient: Tensor) -> None:
        """Receive the network's output and the gradient of the loss with respect to it."""

    def on_parameter_gradient(self, name: str, parameter: Tensor, gradient: Tensor) -> None:
        """Receive a parameter, by its qualified name, and the gradient of the loss with respect to it."""

    def on_missed(self, block: ResidualBlock, reason: str) -> None:
        """Called if a block's sum could not be identified; discards what `on_sum` received for it."""
        self.missed.append(Unresolved(block.name, reason))

    def table(self) -> pd.DataFrame:
        """Return the measurements, one observation per row."""
        raise NotImplementedError


PROBES: Registry[type[Watcher]] = Registry("probe")
"""Watchers by name, with those of entry points; filled when it is imported from `normless.probes`."""


@dataclass
class BlockWatcher(Watcher):
    """A watcher with a row for every outermost block, filled in by its methods with `add`.

    Attributes:
        columns: the columns of the table; cells that no method fills in are NaN.
        independent: the columns that do not depend on the block's sum.
        rows: the rows by the name of the block.
    """

    columns: ClassVar[tuple[str, ...]] = ("block", "name")
    independent: ClassVar[tuple[str, ...]] = ()
    rows: dict[str, dict[str, Any]] = field(default_factory=dict, init=False, repr=False)

    def on_start(self, setting: Setting) -> None:
        """Create an empty row per block."""
        blocks = setting.map.blocks
        if not blocks:
            self.missed.append(Unresolved("the network", "it has no residual block"))
        self.rows = {block.name: {"block": index, "name": block.name} for index, block in enumerate(blocks, 1)}

    def add(self, name: str, values: Mapping[str, float | Tensor]) -> None:
        """Fill in columns of a block's row, also from tensors of one element; inner blocks have no row."""
        if name in self.rows:
            self.rows[name] |= values

    def on_missed(self, block: ResidualBlock, reason: str) -> None:
        """Empty the columns of the block's row that depend on its sum."""
        super().on_missed(block, reason)
        row = self.rows.get(block.name, {})
        for name in row.keys() - {"block", "name", *self.independent}:
            del row[name]

    def table(self) -> pd.DataFrame:
        """Return a row per block in execution order; `block` counts from 1."""
        cells = [(row, name) for row in self.rows.values() for name in row if isinstance(row[name], Tensor)]
        # A device waits for one transfer instead of one for each cell.
        numbers = [row[name].double().to(cells[0][0][cells[0][1]].device) for row, name in cells]
        for (row, name), number in zip(cells, torch.stack(numbers).tolist() if numbers else (), strict=True):
            row[name] = number
        return pd.DataFrame(list(self.rows.values()), columns=list(self.columns))


def overrides(watcher: Watcher, *methods: str) -> bool:
    """Whether a watcher overrides any of these methods of `Watcher`."""
    return any(getattr(type(watcher), method) is not getattr(Watcher, method) for method in methods)


@contextmanager
def attach_hooks(setting: Setting, watchers: Sequence[Watcher]) -> Iterator[None]:
    """Pass the tensors of all passes of the body through the network to watchers; then remove the hooks.

    The network computes the same values as without hooks. Hooks are registered only for methods that a watcher
    overrides. Layers and blocks that cannot be observed are appended to the watchers' `missed`.
    """
    for watcher in watchers:
        watcher.missed.clear()
        watcher.on_start(setting)
    with ExitStack() as stack:
        _attach_to_layers(setting, watchers, stack)
        _attach_to_sums(setting, watchers, stack)
        _attach_to_parameters(setting, watchers, stack)
        stack.callback(setting.model.register_forward_hook(partial(_on_output, watchers)).remove)
        yield


def _attach_to_layers(setting: Setting, watchers: Sequence[Watcher], stack: ExitStack) -> None:
    calls: dict[tuple[str, int], tuple[Layer, list[Watcher]]] = {}
    concerned = [watcher for watcher in watchers if overrides(watcher, "on_layer", "on_layer_gradient")]
    for layer in setting.map.layers():
        interested = [watcher for watcher in concerned if watcher.wants(layer)]
        if interested and layer.called and ":" not in layer.path:
            calls[layer.path, layer.call] = layer, interested
            continue
        for watcher in interested:
            reason = "it is not a module that is called, so its tensors are not seen"
            watcher.missed.append(Unresolved(layer.path, reason))

    def leave(run: ModuleRun, output: Any) -> None:
        if (run.path, run.number) not in calls:
            return
        layer, interested = calls[run.path, run.number]
        x, y = first_tensor((run.inputs, run.keywords)), first_tensor(output)
        if x is None or y is None:
            return
        for watcher in interested:
            watcher.on_layer(layer, run.module, x.detach(), y.detach())
            _on_gradient(y, watcher, "on_layer_gradient", layer, run.module, x.detach())

    if calls:
        stack.enter_context(followed(setting.model, leave=leave))


def _on_gradient(tensor: Tensor, watcher: Watcher, method: str, *arguments: Any) -> None:
    """Call a watcher's method, if it overrides it, with arguments and the tensor's gradient, if it gets one."""
    if tensor.requires_grad and overrides(watcher, method):
        receive = getattr(watcher, method)

        def on_gradient(gradient: Tensor | None) -> None:
            # One part of a split may get no gradient while another does.
            if gradient is not None:
                receive(*arguments, gradient.detach())

        tensor.register_hook(on_gradient)  # type: ignore[no-untyped-call]


def _attach_to_sums(setting: Setting, watchers: Sequence[Watcher], stack: ExitStack) -> None:
    interested = [watcher for watcher in watchers if overrides(watcher, "on_sum", "on_sum_gradient")]
    if not interested:
        return

    def on_sum(block: ResidualBlock, skip: Tensor, branches: tuple[Tensor, ...], total: Tensor) -> None:
        for watcher in interested:
            watcher.on_sum(block, skip, branches, total.detach())
            _on_gradient(total, watcher, "on_sum_gradient", block)

    def on_missed(block: ResidualBlock, reason: str) -> None:
        for watcher in interested:
            watcher.on_missed(block, reason)

    def hook(block: ResidualBlock, module: ResidualSum, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        skip, branch = (side.detach() for side in inputs)
        if module.multiplier is not None:
            branch = branch * per_channel(module.multiplier.detach(), branch)
        # A factor of 1 would be a pass over the activations.
        skip = skip if module.skip_factor == 1.0 else skip * module.skip_factor
        on_sum(block, skip, (branch if module.branch_factor == 1.0 else branch * module.branch_factor,), output)

    for block in setting.map.walk():
        if block.sum is not None and len(block.branches) == 1:
            total = setting.model.get_submodule(block.sum)
            assert isinstance(total, ResidualSum)
            stack.callback(total.register_forward_hook(partial(hook, block)).remove)
        elif block.sum is not None or not block.additions:
            on_missed(block, "its residual sum is not an addition of two tensors, so its summands are not seen")
    if any(block.additions for block in setting.map.walk()):
        stack.enter_context(intercepted(setting.model, setting.map, on_sum, on_missed))


def _attach_to_parameters(setting: Setting, watchers: Sequence[Watcher], stack: ExitStack) -> None:
    interested = [watcher for watcher in watchers if overrides(watcher, "on_parameter_gradient")]

    def hook(name: str, parameter: Tensor) -> None:
        assert parameter.grad is not None
        for watcher in interested:
            watcher.on_parameter_gradient(name, parameter.detach(), parameter.grad)

    for name, parameter in setting.model.named_parameters():
        if parameter.requires_grad and interested:
            handle = parameter.register_post_accumulate_grad_hook(partial(hook, name))  # type: ignore[no-untyped-call]
            stack.callback(handle.remove)


def _on_output(watchers: Sequence[Watcher], _module: nn.Module, _inputs: Any, output: Any) -> None:
    logits = logits_of(output)
    if logits is not None:
        for watcher in watchers:
            watcher.on_logits(logits.detach())
            _on_gradient(logits, watcher, "on_logits_gradient", logits.detach())


def logits_of(output: Any) -> Tensor | None:
    """Return the logits in a network's output: its `logits`, or else its first tensor of floats or complex numbers.

    Complex numbers are returned as pairs of real ones.
    """
    named = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    return named if isinstance(named, Tensor) else first_tensor(output)


def first_tensor(value: Any) -> Tensor | None:
    """Return the first tensor of floats in a nested value (with dataclasses), or else complex numbers as pairs."""
    if isinstance(value, Mapping):
        value = list(value.values())
    elif is_dataclass(value) and not isinstance(value, type):
        value = [getattr(value, each.name) for each in fields(value)]
    leaves = [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
    pairs = (torch.view_as_real(leaf) for leaf in leaves if leaf.is_complex())
    return next((leaf for leaf in leaves if leaf.is_floating_point()), next(pairs, None))
