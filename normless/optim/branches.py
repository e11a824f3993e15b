"""What the learning rates of parameters on residual branches are multiplied by, as the residual sums state it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from torch import nn

from normless.nn import ResidualSum
from normless.residual import ResidualMap

Factors = tuple[float, float]
UNSCALED: Factors = (1.0, 1.0)


def branch_factors(model: nn.Module, residual_map: ResidualMap) -> dict[str, Factors]:
    """The factors on the learning rate and on Adam's ε of parameters by name; empty where no branch has any.

    A parameter that no layer reads goes with the smallest module around it that has layers. One that is not on
    branches of the same factors alone keeps its rate. A map without the scaled sums raises ValueError.
    """
    sums = ((path, module) for path, module in model.named_modules() if isinstance(module, ResidualSum))
    stated = ((path, (one.branch_rate, one.branch_epsilon)) for path, one in sums)
    scaled = {path: factors for path, factors in stated if factors != UNSCALED}
    blocks = [block for block in residual_map.walk() if block.sum in scaled]
    if scaled and not blocks:
        raise ValueError(
            f"The residual map is not this network's: it does not have the residual sum {min(scaled)}. "
            "Map the network as it is now, or leave residual_map out."
        )
    on_branch = {layer: scaled[block.sum or ""] for block in blocks for layer in block.branch_layers}
    seen: dict[str, set[Factors]] = defaultdict(set)
    for layer in residual_map.layers() if scaled else ():
        for place in (*layer.parameters, *_around(layer.path.partition(":")[0])):
            seen[place].add(on_branch.get(layer, UNSCALED))
    names = [name for name, _ in model.named_parameters()]
    nearest = {name: next((seen[at] for at in _around(name) if at in seen), set()) for name in names}
    return {name: one for name, factors in nearest.items() for one in factors if len(factors) == 1}


def _around(path: str) -> Iterator[str]:
    """A path and those of the modules around it."""
    while path:
        yield path
        path = path.rpartition(".")[0]
