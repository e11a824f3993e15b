"""Positively homogeneous networks and parameter sets, and lower bounds of their gradients (Fixup, theorems 1 and 2).

Gradient norms of block inputs and of parameter sets, and their lower bounds (Fixup, theorems 1 and 2).

With cross entropy l(z, y) = −yᵀ(z − logsumexp z), probabilities p = softmax(z) and entropy H(p) = −pᵀ log p, any z
has ⟨∂l/∂z, z⟩ = l − H(p). If z is positively homogeneous of degree one in v, Euler's identity gives
⟨∂l/∂v, v⟩ = l − H(p), and Cauchy–Schwarz ‖∂l/∂v‖ ≥ (l − H(p))/‖v‖.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import log
from typing import Any, Literal

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normless.probes import Setting, Watcher
from normless.residual import Layer, ResidualBlock, ResidualMap
from normless_papers.probes.network_function import as_function, last_stem_layer, map_of

ParameterPlace = Literal["stem", "shared", "projection", "branch", "skip", "after_sum", "trunk", "head"]

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

    place: ParameterPlace
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


def input_homogeneity(model: nn.Module, x: Tensor, *, factors: Sequence[float] = FACTORS) -> pd.DataFrame:
    """Test whether a network is positively homogeneous, f(a·x) = a·f(x) (Fixup, definition 1 and proposition 1).

    The network's state is restored; dropout draws the same masks in all passes.

    Returns:
        One row per factor: `relative_error` is ‖f(ax) − a·f(x)‖/‖a·f(x)‖, 0 if both are zero; `output_norm` is
        ‖f(x)‖, at 0 any network is homogeneous; `homogeneous` is whether the error is rounding.
    """
    with torch.no_grad(), as_function(model, training=True) as logits:
        plain = logits({}, x)
        rows = [{"factor": factor} | _compared(plain, {factor: logits({}, factor * x)}) for factor in factors]
    return pd.DataFrame(rows, columns=list(INPUT_COLUMNS))


def homogeneous_sets(model: nn.Module, inputs: Any) -> pd.DataFrame:
    """Find the positively homogeneous sets, f(x; a·θ_ph) = a·f(x; θ_ph) (Fixup, definition 2 and figure 2).

    Costs a forward pass per set of `candidate_sets` and factor; the network's state is restored.

    Returns:
        One row per set in execution order: its place, its block, the tuples of its layers and parameters, the largest
        `relative_error` over the factors as in `input_homogeneity`, and whether the error is rounding.
    """
    own = dict(model.named_parameters(remove_duplicate=False))
    rows: list[dict[str, Any]] = []
    with torch.no_grad(), as_function(model, training=True) as logits:
        plain = logits({}, inputs)
        for members in candidate_sets(map_of(model, inputs, None)):
            outputs = {a: logits({name: a * own[name] for name in members.parameters}, inputs) for a in FACTORS}
            rows.append({"set": members.name, **vars(members), **_compared(plain, outputs)})
    return pd.DataFrame(rows, columns=list(SET_COLUMNS))


def _single_layers(layers: Iterable[Layer], place: ParameterPlace, block: str = "") -> Iterator[ParameterSet]:
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


def _compared(plain: Tensor, scaled: Mapping[float, Tensor]) -> dict[str, Any]:
    """Return ‖f‖, the largest ‖f(a·) − a·f‖/‖a·f‖ over factors a (0 if both are zero), and whether it is rounding."""
    wide = plain.double()
    errors = torch.stack([(output.double() - factor * wide).norm() for factor, output in scaled.items()])
    sizes = torch.stack([(factor * wide).norm() for factor in scaled])
    # Python's max would not propagate NaN.
    worst = float(torch.where(errors == 0, 0.0, errors / sizes).max())
    rounding = _ROUNDINGS * torch.finfo(plain.dtype).eps
    return {"output_norm": float(wide.norm()), "relative_error": worst, "homogeneous": worst <= rounding}


INPUT_BOUND_COLUMNS = (
    *("block", "name", "example"),
    *("gradient_norm", "input_norm", "inner_product", "loss", "entropy", "bound"),
)
SET_BOUND_COLUMNS = (
    *("set", "place", "block", "parameters"),
    *("gradient_norm", "set_norm", "inner_product", "excess", "bound", "logit_bound"),
)


@dataclass
class InputGradientBounds(Watcher):
    """Norm of each example's gradient with respect to every block's input, and its bound (theorem 1, eq. 2).

    The input of the first block is the output of the stem's last layer, that of a later block the preceding residual
    sum. The gradient must be that of the mean cross entropy, the default of `observe`; an example's own gradient is B
    times as large.
    """

    def on_start(self, setting: Setting) -> None:
        """Number the blocks."""
        names = [block.name for block in setting.map.blocks]
        # Keyed by the preceding block, whose sum is the input of the next block or of the head.
        self._places = dict(zip(["", *names], enumerate([*names, "head"], 1), strict=True))
        self._stem = last_stem_layer(setting.map)
        # A later layer may overwrite an input in place.
        self._copies = any(layer.in_place for layer in setting.map.layers())
        self._targets = setting.targets
        self._values: dict[str, tuple[Tensor, Tensor]] = {}
        self._output: tuple[Tensor, Tensor] | None = None
        self._rows: dict[str, list[tuple[Any, ...]]] = {}

    def wants(self, layer: Layer) -> bool:
        """Whether it is the stem's last layer."""
        return layer == self._stem

    def on_layer(self, layer: Layer, module: nn.Module, x: Tensor, y: Tensor) -> None:
        """Record the first block's input."""
        self._keep("", y)

    def on_sum(self, block: ResidualBlock, skip: Tensor, branches: tuple[Tensor, ...], total: Tensor) -> None:
        """Record the next block's input."""
        self._keep(block.name, total)

    def on_logits(self, logits: Tensor) -> None:
        """Record loss and entropy of every example."""
        self._output = _loss_and_entropy(logits, self._targets)

    def on_layer_gradient(self, layer: Layer, module: nn.Module, x: Tensor, gradient: Tensor) -> None:
        """Measure the gradient at the first block's input."""
        self._measure("", gradient)

    def on_sum_gradient(self, block: ResidualBlock, gradient: Tensor) -> None:
        """Measure the gradient at the next block's input."""
        self._measure(block.name, gradient)

    def on_missed(self, block: ResidualBlock, reason: str) -> None:
        """Remove the values of a block whose sum may have been another addition."""
        super().on_missed(block, reason)
        self._values.pop(block.name, None)
        self._rows.pop(block.name, None)

    def table(self) -> pd.DataFrame:
        """Return by block input and example norms, ⟨gradient, input⟩, l, H(p), and the bound (l − H(p))/‖x‖.

        `block` counts from 1; L + 1 is the input of the head. If the network after the input is positively
        homogeneous, `inner_product` = `loss` − `entropy` and `gradient_norm` ≥ `bound`.
        """
        rows = [row for place in self._places for row in self._rows.get(place, ())]
        return pd.DataFrame(rows, columns=list(INPUT_BOUND_COLUMNS))

    def _keep(self, place: str, value: Tensor) -> None:
        if place in self._places:
            self._values[place] = (value.clone() if self._copies else value, _norms(value))

    def _measure(self, place: str, gradient: Tensor) -> None:
        if place not in self._values or self._output is None or len(gradient) != len(self._output[0]):
            return
        (value, size), (loss, entropy), batch = self._values.pop(place), self._output, len(gradient)
        products = batch * (gradient.double() * value.double()).flatten(1).sum(1)
        columns = (batch * _norms(gradient), size, products, loss, entropy, (loss - entropy) / size)
        examples = enumerate(torch.stack(columns, 1).tolist())
        self._rows[place] = [(*self._places[place], example, *values) for example, values in examples]


@dataclass
class SetGradientBounds(Watcher):
    """Norm of the gradient with respect to sets of parameters, and its lower bounds (theorem 2, eq. 3 and 4).

    The gradient must be that of the mean cross entropy over the batch, the default of `observe`. If `sets` is None,
    they are those of `candidate_sets` except single layers of a block.
    """

    sets: Iterable[ParameterSet] | None = None

    def on_start(self, setting: Setting) -> None:
        """Choose the sets."""
        self._sets = list(candidate_sets(setting.map, single=False) if self.sets is None else self.sets)
        members = {name for members in self._sets for name in members.parameters}
        self._sizes = {
            name: float(parameter.detach().double().square().sum())
            for name, parameter in setting.model.named_parameters()
            if name in members
        }
        self._targets = setting.targets
        self._products: dict[str, tuple[float, float]] = {}
        self._output: tuple[float, float] | None = None

    def on_logits(self, logits: Tensor) -> None:
        """Record the means over the batch of l − H(p) and of max_i z_i − log c."""
        loss, entropy = _loss_and_entropy(logits, self._targets)
        largest = float(logits.double().amax(1).mean())
        self._output = float((loss - entropy).mean()), largest - log(logits.shape[1])

    def on_parameter_gradient(self, name: str, parameter: Tensor, gradient: Tensor) -> None:
        """Record the contribution of a parameter to ‖∂l/∂θ‖² and ⟨∂l/∂θ, θ⟩."""
        if name in self._sizes:
            wide = gradient.double()
            self._products[name] = (float(wide.square().sum()), float((wide * parameter.double()).sum()))

    def table(self) -> pd.DataFrame:
        """Return a row per set; homogeneous sets have `inner_product` = `excess` and `gradient_norm` ≥ `bound`.

        `excess` is the mean of l − H(p) over the batch, and `bound` is excess/‖θ_ph‖. `logit_bound`, which is
        (mean max_i z_i − log c)/‖θ_ph‖, bounds the mean of `bound` over draws of the classifier's weights from a
        symmetric distribution, but not `bound` of a single draw.
        """
        rows: list[tuple[Any, ...]] = []
        if self._output is not None:
            excess, room = self._output
            for members in self._sets:
                sums = [self._products.get(name, (0.0, 0.0)) for name in members.parameters]
                squares, products = zip(*sums, strict=True)
                size = sum(self._sizes.get(name, 0.0) for name in members.parameters) ** 0.5
                bounds = (excess / size, room / size) if size else (float("nan"), float("nan"))
                measured = (sum(squares) ** 0.5, size, sum(products), excess, *bounds)
                rows.append((members.name, members.place, members.block, members.parameters, *measured))
        return pd.DataFrame(rows, columns=list(SET_BOUND_COLUMNS))


def _loss_and_entropy(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Compute l and H(p) in nats, (B,), of logits (B, classes) and classes (B,) or probabilities (B, classes)."""
    if logits.dim() != 2:
        raise ValueError(
            f"The bounds hold for a vector of logits per example, shape (B, classes), but these logits have shape "
            f"{tuple(logits.shape)}. Measure a classifier."
        )
    wide = logits.double()
    labels = targets.double() if targets.is_floating_point() else targets
    return F.cross_entropy(wide, labels, reduction="none"), torch.special.entr(wide.softmax(1)).sum(1)


def _norms(x: Tensor) -> Tensor:
    """Return the Euclidean norm of each example, shape (B,)."""
    norms: Tensor = torch.linalg.vector_norm(x.flatten(1).double(), dim=1)
    return norms
