"""Layer-wise learning rates, and the parameters that a network itself keeps from decay."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from normless.residual import ResidualMap


def layer_scales(model: nn.Module, residual_map: ResidualMap, layer_decay: float) -> dict[str, float]:
    """Return the factor d^(L + 1 - k) on the rate of every parameter, by name (Clark et al. 2020; Bao et al. 2022).

    Of L blocks in execution order, the k-th has the factor of k, what comes before them that of 0, and the head that
    of L + 1. Sums of one module, as of attention and MLP, are one block, and layers between two blocks belong to the
    later one, as in timm. Parameters that no layer reads, such as tokens, come before the blocks unless they are in
    one.
    """
    modules = dict.fromkeys(block.module for block in residual_map.blocks)
    blocks = {module: number for number, module in enumerate(modules, 1)}
    last = len(blocks) + 1

    def block_of(name: str) -> int | None:
        return next((blocks[module] for module in around(name) if module in blocks), None)

    # In the order in which the operations of a pass read them.
    operations = residual_map.flow.operations
    read = dict.fromkeys(name for at in operations for name in (*at.parameters, *at.factors, *at.added))
    depths: dict[str, int] = {}
    reached = 0
    for name in read:
        own = block_of(name)
        reached = max(reached, own or 0)
        depths[name] = own or (reached + 1 if reached else 0)
    named = model.named_parameters()
    return {name: layer_decay ** (last - (block_of(name) or depths.get(name, 0))) for name, _ in named}


def around(path: str) -> Iterator[str]:
    """Yield a path and the paths of the modules around it."""
    while path:
        yield path
        path = path.rpartition(".")[0]


def kept_from_decay(model: nn.Module) -> set[str]:
    """Return the names of the parameters that must not decay, by the network's own word.

    These are what `no_weight_decay()` of a module returns (timm), names relative to it, and the parameters whose
    attribute `_no_weight_decay` is true (Mamba).
    """
    names = {name for name, parameter in model.named_parameters() if getattr(parameter, "_no_weight_decay", False)}
    for path, module in model.named_modules():
        stated = getattr(module, "no_weight_decay", None)
        if callable(stated):
            names |= {f"{path}.{name}" if path else name for name in stated()}
    return names
