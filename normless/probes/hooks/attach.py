"""The hooks that pass the tensors of a network to watchers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from normless.nn import ResidualSum
from normless.nn.channels import per_channel
from normless.probes.hooks.additions import OnSum, intercept_additions
from normless.probes.hooks.watcher import Setting, Watcher, overrides
from normless.residual import Layer, ResidualBlock, Unresolved


@contextmanager
def attach_hooks(setting: Setting, watchers: Sequence[Watcher]) -> Iterator[None]:
    """Pass the tensors of all passes that the body makes through the network to watchers; then remove the hooks.

    The network computes the same values as without hooks; only what a watcher overrides is hooked. What cannot be
    observed is appended to the watchers' `missed`.
    """
    for watcher in watchers:
        watcher.missed.clear()
        watcher.on_start(setting)
    with ExitStack() as stack:
        _attach_to_layers(setting, watchers, stack)
        _attach_to_sums(setting, watchers, stack)
        _attach_to_parameters(setting, watchers, stack)
        stack.callback(setting.model.register_forward_hook(_logits_hook(watchers)).remove)
        yield


def _attach_to_layers(setting: Setting, watchers: Sequence[Watcher], stack: ExitStack) -> None:
    calls: dict[str, dict[int, Layer]] = {}
    concerned = [one for one in watchers if overrides(one, "on_layer") or overrides(one, "on_layer_gradient")]
    for layer in setting.map.layers():
        interested = [watcher for watcher in concerned if watcher.wants(layer)]
        if interested and (":" in layer.path or not layer.called):
            missed = Unresolved(layer.path, "it is no module that is called, so its tensors are not seen")
            for watcher in interested:
                watcher.missed.append(missed)
        elif interested:
            calls.setdefault(layer.path, {})[layer.call] = layer
    counter: Counter[str] = Counter()
    if calls:
        stack.callback(setting.model.register_forward_pre_hook(lambda *_: counter.clear()).remove)
    for path, layers in calls.items():
        module = setting.model.get_submodule(path)
        hook = _layer_hook(path, layers, concerned, counter)
        stack.callback(module.register_forward_hook(hook, with_kwargs=True).remove)


def _layer_hook(
    path: str, layers: Mapping[int, Layer], watchers: Sequence[Watcher], counter: Counter[str]
) -> Callable[..., None]:
    """A hook for the calls of one module, each of which is a layer."""

    def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        layer = layers.get(counter[path])
        counter[path] += 1
        x, y = first_tensor((args, kwargs)), first_tensor(output)
        if layer is None or x is None or y is None:
            return
        x = x.detach()
        interested = [watcher for watcher in watchers if watcher.wants(layer)]
        for watcher in interested:
            if overrides(watcher, "on_layer"):
                watcher.on_layer(layer, module, x, y.detach())
        for watcher in interested:
            if overrides(watcher, "on_layer_gradient"):
                _on_gradient(y, watcher.on_layer_gradient, layer, module, x)

    return hook


def _on_gradient(tensor: Tensor, method: Callable[..., None], *arguments: Any) -> None:
    """Call a watcher's method with arguments and the tensor's gradient, if it gets one."""

    def hook(gradient: Tensor) -> None:
        method(*arguments, gradient.detach())

    if tensor.requires_grad:
        tensor.register_hook(hook)  # type: ignore[no-untyped-call]


def _attach_to_sums(setting: Setting, watchers: Sequence[Watcher], stack: ExitStack) -> None:
    forward = [one for one in watchers if overrides(one, "on_sum")]
    backward = [one for one in watchers if overrides(one, "on_sum_gradient")]
    interested = list({id(one): one for one in (*forward, *backward)}.values())
    if not interested:
        return

    def on_sum(block: ResidualBlock, skip: Tensor, branches: tuple[Tensor, ...], total: Tensor) -> None:
        for watcher in forward:
            watcher.on_sum(block, skip, branches, total.detach())
        for watcher in backward:
            _on_gradient(total, watcher.on_sum_gradient, block)

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
    stack.enter_context(intercept_additions(setting.model, setting.map, on_sum, on_missed))


def _sum_hook(block: ResidualBlock, on_sum: OnSum) -> Callable[..., None]:
    def hook(module: ResidualSum, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        skip, branch = (side.detach() for side in inputs)
        if module.multiplier is not None:
            branch = branch * per_channel(module.multiplier.detach(), branch)
        if module.branch_factor != 1.0:
            branch = branch * module.branch_factor
        if module.skip_factor != 1.0:
            skip = skip * module.skip_factor
        on_sum(block, skip, (branch,), output)

    return hook


def _attach_to_parameters(setting: Setting, watchers: Sequence[Watcher], stack: ExitStack) -> None:
    interested = [one for one in watchers if overrides(one, "on_parameter_gradient")]
    for name, parameter in setting.model.named_parameters():
        if parameter.requires_grad and interested:

            def hook(parameter: Tensor, name: str = name) -> None:
                assert parameter.grad is not None
                for watcher in interested:
                    watcher.on_parameter_gradient(name, parameter.detach(), parameter.grad)

            handle = parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
            stack.callback(handle.remove)


def _logits_hook(watchers: Sequence[Watcher]) -> Callable[..., None]:
    def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
        logits = logits_of(output)
        if logits is None:
            return
        for watcher in watchers:
            if overrides(watcher, "on_logits"):
                watcher.on_logits(logits.detach())
            if overrides(watcher, "on_logits_gradient"):
                _on_gradient(logits, watcher.on_logits_gradient, logits.detach())

    return hook


def logits_of(output: Any) -> Tensor | None:
    """The logits in a network's output: its `logits`, or else its first floating-point tensor."""
    named = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    return named if isinstance(named, Tensor) else first_tensor(output)


def first_tensor(value: Any) -> Tensor | None:
    """The first floating-point tensor in a nested value, or None."""
    if isinstance(value, Mapping):
        value = list(value.values())
    leaves = (leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor))
    return next((leaf for leaf in leaves if leaf.is_floating_point()), None)
