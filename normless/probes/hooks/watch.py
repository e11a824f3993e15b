"""The hooks that tell watchers what passes through a network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from normless.nn import ResidualSum
from normless.nn.channels import per_channel
from normless.probes.hooks.additions import met_additions
from normless.probes.hooks.watcher import Setting, Watcher, overrides
from normless.residual import Layer, ResidualBlock, Unresolved


@contextmanager
def watching(setting: Setting, watchers: Sequence[Watcher]) -> Iterator[None]:
    """Tell watchers all passes that the body makes through the network, forward and back; then take the hooks away.

    The network computes what it would without: nothing is changed, and only what a watcher overrides is hooked.
    What the watchers cannot be told of is in their `missed`.
    """
    with ExitStack() as stack:
        for watcher in watchers:
            watcher.missed.clear()
            watcher.on_start(setting)
        _watch_layers(setting, watchers, stack)
        _watch_sums(setting, watchers, stack)
        _watch_parameters(setting, watchers, stack)
        handle = setting.model.register_forward_hook(_logits_hook(watchers))
        stack.callback(handle.remove)
        yield


def _watch_layers(setting: Setting, watchers: Sequence[Watcher], stack: ExitStack) -> None:
    calls: dict[str, dict[int, Layer]] = {}
    for layer in setting.map.layers():
        interested = [watcher for watcher in watchers if _wants(watcher, layer)]
        if interested and (":" in layer.path or not layer.called):
            reason = "it is no module that is called, so what passes through it is not seen"
            for watcher in interested:
                watcher.missed.append(Unresolved(layer.path, reason))
        elif interested:
            calls.setdefault(layer.path, {})[layer.call] = layer
    counter: Counter[str] = Counter()

    def restart(*_: Any) -> None:
        counter.clear()

    if calls:
        stack.callback(setting.model.register_forward_pre_hook(restart).remove)
    for path, layers in calls.items():
        module = setting.model.get_submodule(path)
        hook = _LayerHook(layers, watchers, counter)
        stack.callback(module.register_forward_hook(hook, with_kwargs=True).remove)


def _wants(watcher: Watcher, layer: Layer) -> bool:
    concerned = overrides(watcher, "on_layer") or overrides(watcher, "on_layer_gradient")
    return concerned and watcher.wants(layer)


class _LayerHook:
    """Tells the calls of one module: a layer each."""

    def __init__(self, layers: Mapping[int, Layer], watchers: Sequence[Watcher], counter: Counter[str]) -> None:
        self.layers = layers
        self.path = next(iter(layers.values())).path
        self.counter = counter
        self.forward = [one for one in watchers if overrides(one, "on_layer")]
        self.back = [one for one in watchers if overrides(one, "on_layer_gradient")]

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        layer = self.layers.get(self.counter[self.path])
        self.counter[self.path] += 1
        x, y = first_tensor((args, kwargs)), first_tensor(output)
        if layer is None or x is None or y is None:
            return
        x = x.detach()
        for watcher in self.forward:
            if watcher.wants(layer):
                watcher.on_layer(layer, module, x, y.detach())
        for watcher in self.back:
            if watcher.wants(layer) and y.requires_grad:
                _on_gradient(y, partial(_tell_gradient, watcher.on_layer_gradient, layer, module, x))


def _on_gradient(tensor: Tensor, hook: Callable[[Tensor], None]) -> None:
    tensor.register_hook(hook)  # type: ignore[no-untyped-call]


def _tell_gradient(tell: Callable[..., None], *place_and_gradient: Any) -> None:
    *place, gradient = place_and_gradient
    tell(*place, gradient.detach())


def _watch_sums(setting: Setting, watchers: Sequence[Watcher], stack: ExitStack) -> None:
    forward = [one for one in watchers if overrides(one, "on_sum")]
    back = [one for one in watchers if overrides(one, "on_sum_gradient")]
    interested = list({id(one): one for one in (*forward, *back)}.values())
    if not interested:
        return

    def on_sum(block: ResidualBlock, skip: Tensor, branches: tuple[Tensor, ...], total: Tensor) -> None:
        for watcher in forward:
            watcher.on_sum(block, skip, branches, total.detach())
        for watcher in back:
            if total.requires_grad:
                _on_gradient(total, partial(_tell_gradient, watcher.on_sum_gradient, block))

    def on_missed(block: ResidualBlock, reason: str) -> None:
        for watcher in interested:
            watcher.on_missed(block, reason)

    for block in setting.map.walk():
        if block.sum is not None and len(block.branches) == 1:
            total = setting.model.get_submodule(block.sum)
            assert isinstance(total, ResidualSum)
            stack.callback(total.register_forward_hook(_sum_hook(block, on_sum)).remove)
        elif block.sum is not None or not block.sites:
            on_missed(block, "its residual sum is no addition of two tensors, so its summands are not seen")
    stack.enter_context(met_additions(setting.model, setting.map, on_sum, on_missed))


def _sum_hook(block: ResidualBlock, on_sum: Callable[..., None]) -> Callable[..., None]:
    def tell(module: ResidualSum, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        skip, branch = (side.detach() for side in inputs)
        if module.multiplier is not None:
            branch = branch * per_channel(module.multiplier.detach(), branch)
        if module.branch_factor != 1.0:
            branch = branch * module.branch_factor
        if module.skip_factor != 1.0:
            skip = skip * module.skip_factor
        on_sum(block, skip, (branch,), output)

    return tell


def _watch_parameters(setting: Setting, watchers: Sequence[Watcher], stack: ExitStack) -> None:
    interested = [one for one in watchers if overrides(one, "on_parameter_gradient")]
    if not interested:
        return
    for name, parameter in setting.model.named_parameters():
        if parameter.requires_grad:

            def tell(held: Tensor, name: str = name) -> None:
                assert held.grad is not None
                for watcher in interested:
                    watcher.on_parameter_gradient(name, held.detach(), held.grad)

            handle = parameter.register_post_accumulate_grad_hook(tell)  # type: ignore[no-untyped-call]
            stack.callback(handle.remove)


def _logits_hook(watchers: Sequence[Watcher]) -> Callable[..., None]:
    def tell(_: nn.Module, inputs: Any, output: Any) -> None:
        logits = logits_of(output)
        if logits is None:
            return
        for watcher in watchers:
            if overrides(watcher, "on_logits"):
                watcher.on_logits(logits.detach())
            if overrides(watcher, "on_logits_gradient") and logits.requires_grad:
                _on_gradient(logits, partial(_tell_gradient, watcher.on_logits_gradient, logits.detach()))

    return tell


def logits_of(output: Any) -> Tensor | None:
    """The logits in what a network returned: itself, its `logits`, or the first tensor in it."""
    named = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    return named if isinstance(named, Tensor) else first_tensor(output)


def first_tensor(value: Any) -> Tensor | None:
    """The first floating-point tensor in a nested value, or None."""
    if isinstance(value, Mapping):
        value = list(value.values())
    leaves = (leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor))
    return next((leaf for leaf in leaves if leaf.is_floating_point()), None)
