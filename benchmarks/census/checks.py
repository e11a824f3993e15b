"""What must hold of a converted network whatever it is, checked without a stated truth.

Each check returns a sentence that says what is wrong, or "" where nothing is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from benchmarks.census.operators import count_operators
from normless._internal.copying import copied
from normless.residual import ResidualBlock, ResidualMap


class Given(NamedTuple):
    """Example inputs, by position and by name."""

    inputs: tuple[Any, ...]
    kwargs: dict[str, Any]

    def to(self, dtype: torch.dtype) -> Given:
        """The same with floating-point tensors of a type."""
        return Given(*tree_map(lambda one: one.to(dtype) if _floating(one) else one, tuple(self)))


def _floating(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


@torch.no_grad()
def outputs(model: nn.Module, given: Given) -> list[Tensor]:
    """The floating-point tensors of an output in evaluation mode, drawn with one seed."""
    model.eval()
    torch.manual_seed(0)
    copied = tree_map(lambda one: one.clone() if isinstance(one, Tensor) else one, tuple(given))
    return [leaf for leaf in tree_leaves(_plain(model(*copied[0], **copied[1]))) if _floating(leaf)]


def _plain(value: Any) -> Any:
    """An output whose containers torch's trees know: a data class or model output as a dictionary."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if hasattr(value, "__dict__") and not isinstance(value, Tensor):
        return {key: _plain(one) for key, one in vars(value).items() if not key.startswith("_")}
    return value


def difference(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """The largest difference relative to the largest value; infinite where numbers, shapes or NaNs differ."""
    if [one.shape for one in ours] != [one.shape for one in theirs]:
        return float("inf")
    worst = 0.0
    for one, other in zip(ours, theirs, strict=True):
        finite = one.isfinite()
        if not torch.equal(finite, other.isfinite()):
            return float("inf")
        if finite.any():
            gap = (one[finite] - other[finite]).abs().max()
            worst = max(worst, float(gap / other[finite].abs().max().clamp_min(1e-30)))
    return worst


def norms_left(model: nn.Module, given: Given, training: Given | None) -> tuple[str, str]:
    """Norm operators on activations in evaluation and training mode; and what norms written by hand are made of."""
    left: list[str] = []
    suspect: list[str] = []
    for mode, one in (("evaluation", given), ("training", training)):
        if one is None:
            continue
        model.train(mode == "training")
        counted = count_operators(model, one.inputs, one.kwargs)
        left += [f"{number} {name} in {mode}" for name, number in counted.norms.items()]
        suspect += [f"{number} {name} in {mode}" for name, number in counted.statistics.items()]
    return ", ".join(left), ", ".join(suspect)


def branch_parameters(mapped: ResidualMap, *, ends: bool = False) -> set[str]:
    """Names of the parameters that are read on branches and nowhere else; on request those at their ends alone."""
    branches = [branch for block in mapped.blocks for branch in block.branches]
    inside = {layer for branch in branches for layer in branch}
    outside = {name for layer in mapped.layers() if layer not in inside for name in layer.parameters}
    if ends:
        weights = [[one for one in branch if one.kind == "weight" and not one.gating] for branch in branches]
        inside = {layers[-1] for layers in weights if layers}
    return {name for layer in inside for name in layer.parameters} - outside


def every_name(model: nn.Module, names: set[str]) -> set[str]:
    """All names of the parameters that have one of these, where modules are children of several others."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    chosen = {id(parameters[name]) for name in names}
    return {name for name, one in parameters.items() if id(one) in chosen}


@contextmanager
def changed(model: nn.Module, names: set[str]) -> Iterator[int]:
    """Random values added to the parameters of these names that the network has; yields how many."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    others = {id(one) for name, one in parameters.items() if name not in names}
    chosen = {id(one): one for name, one in parameters.items() if name in names and id(one) not in others}
    before = {key: one.detach().clone() for key, one in chosen.items()}
    torch.manual_seed(1)
    with torch.no_grad():
        for one in chosen.values():
            one.add_(0.1 * torch.randn_like(one))
    try:
        yield len(chosen)
    finally:
        with torch.no_grad():
            for key, one in chosen.items():
                one.copy_(before[key])


def inert(closed: nn.Module, opened: nn.Module, original: nn.Module, given: Given, mapped: ResidualMap) -> str:
    """With α = 0 the weights of branches must not matter, and with α = 1 they must if they do in the original.

    Where something else reads what a branch has computed halfway, as in a WaveNet, only the layers at the ends of
    branches are asked.
    """
    names = every_name(original, branch_parameters(mapped))
    effect = _effect(closed, given, names)
    if effect is None:
        return "no parameters of branches to change" if mapped.blocks else ""
    if effect > 0:
        names = every_name(original, branch_parameters(mapped, ends=True))
        effect = _effect(closed, given, names)
    if effect is None or effect > 0:
        return f"with α = 0 branch weights change the output by {effect or float('nan'):.1e}"
    # A classifier that starts at zero hides them.
    if _effect(opened, given, names) or not _effect(original, given, names):
        return ""
    return "with α = 1 branch weights do not change the output"


def _effect(model: nn.Module, given: Given, names: set[str]) -> float | None:
    """How much changed parameters change the output; None where the network has none of them."""
    before = outputs(model, given)
    with changed(model, names) as number:
        after = outputs(model, given)
    return difference(after, before) if number else None


def equal(ours: nn.Module, theirs: nn.Module, given: Given, tolerance: float) -> str:
    """Two networks must compute the same in evaluation mode."""
    gap = difference(outputs(ours, given), outputs(theirs, given))
    return "" if gap <= tolerance else f"outputs differ by {gap:.1e}"


def rounding(model: nn.Module, given: Given) -> float:
    """How much an output changes where the inputs change by a few units in their last place, relatively."""

    def nudged(one: Any) -> Any:
        return one * (1 + 8 * torch.finfo(one.dtype).eps) if _floating(one) else one

    return difference(outputs(model, Given(*tree_map(nudged, tuple(given)))), outputs(model, given))


def per_example(model: nn.Module, given: Given, tolerance: float) -> str:
    """The output of a batch must be those of its examples, in evaluation mode."""
    whole = outputs(model, given)
    size = _batch_size(given)
    whole = [one for one in whole if one.dim() and len(one) == size]
    for number in range(size):
        alone = outputs(model, _example(given, size, number))
        if len(alone) != len(whole):
            return f"{len(whole)} batched outputs, {len(alone)} of an example"
        gap = difference(alone, [one[number : number + 1] for one in whole])
        if gap > tolerance:
            return f"example {number} alone differs by {gap:.1e}"
    return ""


def _batch_size(given: Given) -> int:
    return next(len(leaf) for leaf in tree_leaves(tuple(given)) if isinstance(leaf, Tensor) and leaf.dim())


def _example(given: Given, size: int, number: int) -> Given:
    def take(one: Any) -> Any:
        batched = isinstance(one, Tensor) and one.dim() and len(one) == size
        return one[number : number + 1] if batched else one

    return Given(*tree_map(take, tuple(given)))


def same_blocks(ours: ResidualMap, theirs: ResidualMap) -> str:
    """The blocks of a converted network must be those of the original."""
    # Without its norm a skip path may be the identity.
    free = {block.name for block in theirs.walk() if any(layer.kind == "norm" for layer in block.skip_layers)}
    # And what is left of a norm side by side with a layer is a skip path.
    fresh = {block.name for block in ours.walk()} - {block.name for block in theirs.walk()}
    read_by_norms = {layer.input for layer in theirs.layers() if layer.kind == "norm"} - {None}
    first = {block.name: theirs.by_path.get(block.branch_layers[0].path) for block in ours.walk()}
    dropped = {name for name in fresh if (layer := first[name]) is not None and layer.input in read_by_norms}
    mine, yours = (_signatures(one.blocks, free, dropped) for one in (ours, theirs))
    if mine == yours:
        return ""
    if len(mine) != len(yours):
        return f"{len(mine)} blocks, the original has {len(yours)}"
    at = next(number for number, pair in enumerate(zip(mine, yours, strict=True)) if pair[0] != pair[1])
    kinds = ("name", "branches", "skip path", "identity", "inner blocks")
    what = next(kind for kind, one, other in zip(kinds, mine[at], yours[at], strict=True) if one != other)
    return f"block {yours[at][0]} has another {what}"


def _signatures(blocks: tuple[ResidualBlock, ...], free: set[str], dropped: set[str]) -> list[tuple[Any, ...]]:
    return [_signature(block, free, dropped) for block in blocks if block.name not in dropped]


def _signature(block: ResidualBlock, free: set[str], dropped: set[str]) -> tuple[Any, ...]:
    branches = [tuple(layer.path for layer in branch if layer.kind == "weight") for branch in block.branches]
    is_identity = block.identity_skip or block.name in free
    return (block.name, branches, block.skip, is_identity, _signatures(block.inner, free, dropped))


def in_use(model: nn.Module) -> nn.Module:
    """A copy whose batch norms have seen data: other statistics, γ and β than the initial ones."""
    used = copied(model)
    torch.manual_seed(2)
    with torch.no_grad():
        for module in used.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                if module.running_mean is not None and module.running_var is not None:
                    module.running_mean.normal_(0, 0.1)
                    module.running_var.uniform_(0.5, 1.5)
                if module.weight is not None:
                    module.weight.uniform_(0.5, 1.5)
                    module.bias.normal_(0, 0.1)
    return used
