"""Fold the batch norms of a trained network, and norms that a removal froze, into the weights next to them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from normless._internal.arguments import carried_inputs, forward_arguments, inputs_missing, on_device_of
from normless._internal.copying import without_values
from normless._internal.exclusive import exclusive
from normless._internal.html import html_table
from normless._internal.state import in_mode
from normless.errors import UnsupportedEditError
from normless.folding.frozen_norms import affine_of, freeze, replace_modules
from normless.folding.into_layers import fold_into
from normless.folding.neighbours import Neighbour, Neighbours, Side, names_of
from normless.nn import FrozenAffine
from normless.recording import Tape, recorded
from normless.residual.batch_statistics import keeps_statistics
from normless.residual.classify import NORMS

Model = TypeVar("Model", bound=nn.Module)
Outcome = Literal["folded", "affine", "kept"]


@dataclass(frozen=True)
class FoldedNorm:
    """The outcome for one norm.

    Attributes:
        path: the norm's qualified name.
        outcome: `folded` into the weights of a layer; `affine`, replaced by a fixed factor and shift per channel;
            `kept`, since it normalizes.
        layers: the qualified names of the layers into which it was folded.
        side: whether these layers come `before` or `after` the norm.
        reason: why the norm was not folded, else empty.
    """

    path: str
    outcome: Outcome
    layers: tuple[str, ...] = ()
    side: Side | None = None
    reason: str = ""

    def __str__(self) -> str:
        if self.outcome == "folded":
            return f"{self.path}: folded into {', '.join(self.layers)} {self.side} it"
        return f"{self.path}: {self.outcome}: {self.reason}"


@dataclass(frozen=True)
class FoldReport:
    """The outcome for every norm of a network in the order of its modules, with kept norms at the end; printable."""

    norms: tuple[FoldedNorm, ...]

    @property
    def counts(self) -> dict[Outcome, int]:
        """The number of norms with each outcome."""
        outcomes = [norm.outcome for norm in self.norms]
        return {outcome: outcomes.count(outcome) for outcome in ("folded", "affine", "kept")}

    def __str__(self) -> str:
        total = ", ".join(f"{count} {outcome}" for outcome, count in self.counts.items())
        return "\n".join([f"{len(self.norms)} norms: {total}", *map(str, self.norms)])

    def _repr_html_(self) -> str:
        rows = (
            (norm.path, norm.outcome, ", ".join(norm.layers) + (f" {norm.side} it" if norm.side else norm.reason))
            for norm in self.norms
        )
        return html_table(str(self).partition("\n")[0], ("norm", "outcome", "into, or why not"), rows)


@exclusive
def fold(model: Model, *inputs: Any, example_inputs: Any = None, **kwargs: Any) -> tuple[Model, FoldReport]:
    """Fold every norm with constant statistics into the weights next to it; return the folded copy and a report.

    These are the batch norms of a trained network, and the norms that `remove_norms` froze. If only a norm reads the
    output of a convolution or linear layer, it is folded into it, with running μ and σ²:

        γ / √(σ² + ε) · (W ∗ x + b − μ) + β = (sW) ∗ x + (s(b − μ) + β),   s = γ / √(σ² + ε) per channel

    If only such layers read the norm's output, the norm is folded into them where this is exact: without zero
    padding, or without a shift. Any other norm becomes a `normless.nn.FrozenAffine` or `FrozenLayerNorm`. A frozen
    layer norm with constant c, which subtracts the mean of n features by P = I − 11ᵀ/n, is folded likewise:

        W (γ/c ⊙ P x + β) + b = (W diag(γ/c) P) x + (W β + b)

    A weight that an embedding looks up too is copied for the layer that reads the norm. Outputs in eval mode equal
    those of the original up to rounding, and train mode does not use batch statistics. Other norms are kept.

    Args:
        model: the network; it is not changed. The copy has the same class, names of layers and mode.
        inputs, kwargs, example_inputs: as in `residual_map`.

    Raises:
        UnsupportedEditError: as in `freeze`.
        UnresolvedStructureError: inputs are missing, or the forward pass fails.
    """
    inputs, kwargs = forward_arguments(inputs, kwargs, example_inputs)
    if keeps_statistics(model) or isinstance(model, FrozenAffine):
        raise UnsupportedEditError(
            f"This {type(model).__name__} is a norm alone, without a layer into which it could be folded; "
            "normless.freeze makes a batch norm a fixed affine map."
        )
    # After freezing, train mode shows dropout, which eval mode hides, and any remaining batch statistics.
    frozen = freeze(model)
    if not (inputs or kwargs):
        inputs, kwargs = carried_inputs(model)
    if not (inputs or kwargs):
        raise inputs_missing(model, "fold")
    neighbours = neighbours_of(frozen, inputs, kwargs)
    kept = _kept(frozen, neighbours)
    # The numbers of the original, which the frozen norm has rounded to its dtype.
    affines = (path for path, module in frozen.named_modules() if isinstance(module, FrozenAffine))
    values = {path: affine_of(path, model.get_submodule(path)) for path in affines}
    return frozen, FoldReport((*fold_affines(frozen, values, neighbours), *kept))


def neighbours_of(frozen: nn.Module, inputs: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Neighbours]:
    """Return the neighbours of the frozen norms of a network in evaluation and in training."""
    # The pass with values comes first, so that caches of forward code keep tensors with values.
    with in_mode(frozen, False):
        evaluation = recorded(frozen, inputs, kwargs)
    return [Neighbours(frozen, tape) for tape in (evaluation, _recorded_in_training(frozen, inputs, kwargs))]


def _recorded_in_training(frozen: nn.Module, inputs: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tape:
    """Record a pass in training, without values unless forward code reads them."""
    empty = without_values(frozen).train()
    with suppress(Exception):
        return recorded(empty, *on_device_of(empty, inputs, kwargs))
    with in_mode(frozen, True):
        return recorded(frozen, inputs, kwargs)


def fold_affines(
    frozen: nn.Module,
    values: Mapping[str, tuple[Tensor, Tensor]],
    neighbours: list[Neighbours],
    *,
    trained: Mapping[str, bool] | None = None,
) -> list[FoldedNorm]:
    """Fold the frozen norms of a network at the paths of `values` into the weights next to them.

    The values are the factor and shift of each norm in float64. If weights go on training, `trained` says of a norm
    whether its γ or β was: such a norm is not folded into a weight without gradient. And then no norm is folded into
    a layer that pads its input, even if its shift is zero now.
    """
    affines: dict[str, Any] = {path: frozen.get_submodule(path) for path in values}
    # All places are found before the first weight changes, since a layer may get a bias.
    places = {
        path: _beside_idle(frozen, path, neighbours)
        or _place(path, affines[path], bool(shift.any()) if trained is None else True, neighbours)
        for path, (_, shift) in values.items()
    }
    outcomes: list[FoldedNorm] = []
    replacements: dict[nn.Module, nn.Module] = {}
    for path, place in places.items():
        if not isinstance(place, str) and (trained or {}).get(path):
            layers = [frozen.get_submodule(own.layer) for own in place]
            fixed = not any(getattr(own, names_of(own)[0]).requires_grad for own in layers)
            place = f"{place[0].layer} has no gradient, and the norm is trained" if fixed else place
        if isinstance(place, str):
            outcomes.append(FoldedNorm(path, "affine", reason=place))
            continue
        centred = getattr(affines[path], "centred", False)
        for neighbour in place:
            fold_into(frozen.get_submodule(neighbour.layer), neighbour, *values[path], centred=centred)
        outcomes.append(FoldedNorm(path, "folded", tuple(layer for layer, *_ in place), place[0].side))
        # The modules that a fused norm applies after its normalization are kept under the same names.
        rest = OrderedDict(affines[path].named_children())
        replacements[affines[path]] = nn.Sequential(rest) if rest else nn.Identity()
    replace_modules(frozen, replacements)
    return outcomes


def _beside_idle(model: nn.Module, path: str, modes: list[Neighbours]) -> str:
    """Say why a norm in a list with norms of other domains cannot be folded, or return ""."""
    parent = path.rpartition(".")[0]
    around = model.get_submodule(parent)
    if not isinstance(around, (nn.ModuleList, nn.ModuleDict)):
        return ""
    siblings = (f"{parent}.{name}" for name, module in around.named_children() if isinstance(module, FrozenAffine))
    idle = next((sibling for sibling in siblings if not any(mode.runs(sibling) for mode in modes)), None)
    return "" if idle in (None, path) else f"on other inputs {idle} may run in its place, on the same layer's output"


def _place(path: str, norm: FrozenAffine, shifts: bool, modes: list[Neighbours]) -> tuple[Neighbour, ...] | str:
    """Return the layers into which the norm at `path` can be folded exactly in every mode, or the reason why not."""
    if not any(mode.runs(path) for mode in modes):
        return "it does not run on these inputs"
    reasons = []
    for side in get_args(Side):
        follows = side == "after" and next(norm.children(), None) is not None
        place = "a function follows it inside its module" if follows else _neighbours(path, side, modes)
        if isinstance(place, str):
            reasons.append(place)
            continue
        padded = next((layer.layer for layer in place if layer.sees_border), None)
        grouped = next((layer.layer for layer in place if _has_groups(modes[0].names.modules[layer.layer])), None)
        if padded is not None and shifts:
            reasons.append(
                f"{padded} pads its input or is transposed, so a shift would not reach all outputs equally"
            )
        elif grouped is not None and getattr(norm, "centred", False):
            reasons.append(f"{grouped} has groups, and the mean is over all channels")
        else:
            return place
    return "; ".join(dict.fromkeys(reasons))


def _has_groups(layer: nn.Module) -> bool:
    return isinstance(layer, _ConvNd) and layer.groups > 1


def _neighbours(path: str, side: Side, modes: list[Neighbours]) -> tuple[Neighbour, ...] | str:
    """Return the layers next to a norm in every mode in which they run, or the reason why there are none."""
    found = [mode.find(path, side) for mode in modes if mode.runs(path)]
    first, last = found[0], found[-1]
    if isinstance(last, str) or isinstance(first, str):
        return first if isinstance(first, str) else last
    if first != last:
        return "train mode and eval mode differ"
    for neighbour in first:
        if any(mode.uses(neighbour.layer) and not mode.runs(path) for mode in modes):
            return f"{neighbour.layer} runs in a mode in which the norm does not"
    return first


def _kept(model: nn.Module, modes: list[Neighbours]) -> Iterable[FoldedNorm]:
    """Return the norms in either mode that are not batch norms; refuse functions with batch statistics."""
    kept: dict[str, FoldedNorm] = {}
    for mode in modes:
        for operation in mode.flow.operations:
            if operation.name == "batch_norm" and operation.arguments[5]:
                raise UnsupportedEditError(
                    f"The forward code of {operation.module or 'the network'} normalizes by the statistics of the "
                    "batch in a function call, not in a module that could be frozen. Make it a torch.nn.BatchNorm."
                )
        for path in (run.layer.path for run in mode.layers.runs if run.layer.kind in ("norm", "direction")):
            alone = isinstance(model.get_submodule(path.partition(":")[0]), NORMS)
            why = "it normalizes each example separately" if alone else "it is not a batch norm of torch.nn"
            kept.setdefault(path, FoldedNorm(path, "kept", reason=why))
    return kept.values()
