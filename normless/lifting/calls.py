"""How modules are called in one pass through a network, which runs every module: no fused path skips any."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map


@dataclass(frozen=True)
class Call:
    """The arguments of one call of a module's forward."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def captured_calls(
    model: nn.Module, inputs: tuple[Any, ...], kwargs: Mapping[str, Any], paths: Iterable[str]
) -> dict[str, list[Call]]:
    """Run a network once, in eval mode and without gradients, and record how the modules at `paths` are called.

    The inputs go to the device of the parameters.
    """
    calls: dict[str, list[Call]] = {path: [] for path in paths}

    def recorder(path: str) -> Any:
        return lambda _, args, named: calls[path].append(Call(args, dict(named)))

    handles = [
        model.get_submodule(path).register_forward_pre_hook(recorder(path), with_kwargs=True) for path in calls
    ]
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    moved = tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, (inputs, dict(kwargs)))
    try:
        with evaluating(model):
            model(*moved[0], **moved[1])
    finally:
        for handle in handles:
            handle.remove()
    return calls


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode without gradients; afterwards every module's mode and the random state are what they were."""
    modes = {module: module.training for module in model.modules()}
    try:
        model.eval()
        with torch.no_grad(), unfused(), torch.random.fork_rng(devices=[]):
            yield
    finally:
        for module, training in modes.items():
            module.training = training


def holds_tensors(value: Any) -> bool:
    """Whether an argument is a tensor or contains one."""
    return any(isinstance(leaf, Tensor) for leaf in tree_leaves(value))


@contextmanager
def unfused() -> Iterator[None]:
    """Disable the fused path of torch's transformer layers and attention, which exists in evaluation mode only."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def never_fuse(model: nn.Module) -> None:
    """Disable the fused path of torch's encoder layers permanently: it runs none of their modules.

    Without norms torch fails when it checks for it, since it compares the norms' ε.
    """
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0
        elif isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False
