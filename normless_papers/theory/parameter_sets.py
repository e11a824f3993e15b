"""Positively homogeneous networks, and the parameter sets in which a network is positively homogeneous."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import pandas as pd
import torch
from torch import Tensor, nn

from normless.probes import map_tensors
from normless.residual import Layer, ResidualBlock, ResidualMap
from normless_papers.probes.network_function import as_function, map_of

Place = Literal["stem", "shared", "projection", "branch", "skip", "after_sum", "trunk", "head"]

INPUT_COLUMNS = ("factor", "output_norm", "relative_error", "homogeneous")
SET_COLUMNS = ("set", "place", "block", "layers", "parameters", "output_norm", "relative_error", "homogeneous")

# A power of two, which scales floating-point numbers exactly, and another factor.
FACTORS = (0.5, 3.0)
# The rounding error of a deep network in units of the machine epsilon, far below the effect of a bias or a norm.
_ROUNDINGS = 2000.0


@dataclass(frozen=True)
class ParameterSet:
    """A set of parameters in which a network may be positively homogeneous: weights and biases of `layers`.

    The place `projection` is the union of a layer on the skip path and a layer on each branch; `block` is empty
    outside blocks.
    """

    place: Place
    block: str
    layers: tuple[str, ...]
    parameters: tuple[str, ...]

    @property
    def name(self) -> str:
        """The layers, joined by a plus."""
        return " + ".join(self.layers)


def candidate_sets(residual_map: ResidualMap, *, single: bool = True) -> list[ParameterSet]:
    """List parameter sets in which a network without normalization may be positively homogeneous (Fixup, figure 2).

    These are single weight layers with their biases in the stem, between blocks and in the head, through which the
    whole signal passes, and in blocks with weights on the skip path one of these together with one from each branch.
    With `single`, also every single weight layer inside a block, which is such a set if the block has no other path.
    """
    sets = [*_single_layers(residual_map.stem_layers, "stem")]
    for block in residual_map.blocks:
        sets += _single_layers(block.shared_layers, "shared", block.name)
        sets += _projections(block)
        if single:
            sets += _single_layers(block.branch_layers, "branch", block.name)
            sets += _single_layers(block.skip_layers, "skip", block.name)
        sets += _single_layers(block.after_sum, "after_sum", block.name)
    sets += _single_layers(residual_map.trunk_layers, "trunk")
    sets += _single_layers(residual_map.head_layers, "head")
    return sets


def input_homogeneity(
    model: nn.Module, inputs: Any, *, factors: Sequence[float] = FACTORS, training: bool = True
) -> pd.DataFrame:
    """Test whether a network is positively homogeneous, f(a·x) = a·f(x) (Fixup, definition 1 and proposition 1).

    All floating-point tensors among the inputs are scaled by each factor a. The network's state is restored; dropout
    draws the same masks in all passes. Other arguments are those of `normless.probes.observe`.

    Returns:
        One row per factor: `relative_error` is ‖f(ax) − a·f(x)‖/‖a·f(x)‖, 0 if both are zero; `output_norm` is
        ‖f(x)‖, at 0 any network is homogeneous; `homogeneous` is whether the error is rounding. ValueError if a
        factor is not positive, or no input is a floating-point tensor.
    """
    _check_factors(factors)
    with torch.no_grad(), as_function(model, training=training) as logits:
        plain = logits({}, inputs)
        rows = [
            {"factor": factor} | _compared(plain, {factor: logits({}, _scaled(inputs, factor))}) for factor in factors
        ]
    return pd.DataFrame(rows, columns=list(INPUT_COLUMNS))


def homogeneous_sets(
    model: nn.Module,
    inputs: Any,
    residual_map: ResidualMap | None = None,
    *,
    sets: Iterable[ParameterSet] | None = None,
    factors: Sequence[float] = FACTORS,
    training: bool = True,
) -> pd.DataFrame:
    """Find the positively homogeneous sets, f(x; a·θ_ph) = a·f(x; θ_ph) (Fixup, definition 2 and figure 2).

    Costs a forward pass per set and factor; `sets` defaults to `candidate_sets` of the map, and other arguments are
    those of `input_homogeneity`.

    Returns:
        One row per set in execution order: its place, its block, the tuples of its layers and parameters, the largest
        `relative_error` over the factors as in `input_homogeneity`, and whether the error is rounding.
    """
    _check_factors(factors)
    if sets is None:
        sets = candidate_sets(map_of(model, inputs, residual_map))
    own = dict(model.named_parameters(remove_duplicate=False))
    rows: list[dict[str, Any]] = []
    with torch.no_grad(), as_function(model, training=training) as logits:
        plain = logits({}, inputs)
        for members in sets:
            outputs = {a: logits({name: a * own[name] for name in members.parameters}, inputs) for a in factors}
            rows.append({"set": members.name, **vars(members), **_compared(plain, outputs)})
    return pd.DataFrame(rows, columns=list(SET_COLUMNS))


def _single_layers(layers: Iterable[Layer], place: Place, block: str = "") -> Iterator[ParameterSet]:
    """Yield each weight layer as a set."""
    for layer in _weight_layers(layers):
        yield ParameterSet(place, block, (layer.path,), _scaling(layer))


def _projections(block: ResidualBlock) -> Iterator[ParameterSet]:
    """Yield every union of a weight layer on the skip path and a weight layer on each branch."""
    sides = [_weight_layers(block.skip_layers), *map(_weight_layers, block.branches)]
    for layers in product(*sides):
        names = tuple(dict.fromkeys(name for layer in layers for name in _scaling(layer)))
        yield ParameterSet("projection", block.name, tuple(layer.path for layer in layers), names)


def _weight_layers(layers: Iterable[Layer]) -> list[Layer]:
    """Return the weight layers on the path of the signal, and only the first call of a module."""
    weights = (layer for layer in layers if layer.kind == "weight" and not layer.gating and layer.call == 0)
    return [layer for layer in weights if _scaling(layer)]


def _scaling(layer: Layer) -> tuple[str, ...]:
    """Return the weights and bias of a layer, without its gain and the scalars that edits add."""
    last = {name: name.rpartition(".")[2] for name in layer.parameters if name != layer.gamma}
    scalars = ("multiplier", "layer_scale", "input_bias", "output_bias")
    return tuple(name for name, own in last.items() if own not in scalars)


def _check_factors(factors: Sequence[float]) -> None:
    if not factors or not all(factor > 0 for factor in factors):
        raise ValueError(f"Positive homogeneity is defined for factors above 0, got {list(factors)}.")


def _scaled(inputs: Any, factor: float) -> Any:
    scaled: list[Tensor] = []

    def scale(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        scaled.append(tensor * factor)
        return scaled[-1]

    result = map_tensors(scale, inputs)
    if not scaled:
        raise ValueError(
            "Homogeneity scales the inputs, so one of them must be a floating-point tensor; token indices cannot be "
            "scaled. Test the parameter sets with homogeneous_sets instead."
        )
    return result


def _compared(plain: Tensor, scaled: Mapping[float, Tensor]) -> dict[str, Any]:
    """Return ‖f‖, the largest ‖f(a·) − a·f‖/‖a·f‖ over factors a (0 if both are zero), and whether it is rounding."""
    wide = plain.double()
    errors = torch.stack([(output.double() - factor * wide).norm() for factor, output in scaled.items()])
    sizes = torch.stack([(factor * wide).norm() for factor in scaled])
    # Python's max would not propagate NaN.
    worst = float(torch.where(errors == 0, 0.0, errors / sizes).max())
    rounding = _ROUNDINGS * torch.finfo(plain.dtype).eps
    return {"output_norm": float(wide.norm()), "relative_error": worst, "homogeneous": worst <= rounding}
