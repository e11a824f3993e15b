"""The batch norms of a trained network folded into the weights next to them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeVar

from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from normless.arguments import forward_arguments
from normless.errors import UnsupportedEditError
from normless.folding.frozen_norms import affine_of, freeze, replace_modules
from normless.folding.neighbours import Neighbour, Neighbours
from normless.folding.report import FoldReport, NormFate, Side
from normless.folding.weights import fold_into_input, fold_into_output
from normless.nn import FrozenAffine
from normless.residual.classify import NORMS
from normless.residual.export import exported
from normless.residual.layers import find_layers
from normless.residual.reader import read_dataflow

Model = TypeVar("Model", bound=nn.Module)


class Place(NamedTuple):
    """Where a norm is folded to: a layer, and on which side of the norm it is."""

    layer: str
    side: Side


def fold(model: Model, *inputs: Any, example_inputs: Any = None, **kwargs: Any) -> tuple[Model, FoldReport]:
    """Fold every batch norm of a trained network into the weights next to it, in a copy.

    A norm that alone reads the output of a convolution or linear layer goes into that layer, with the running μ, σ²:

        γ / √(σ² + ε) · (W ∗ x + b − μ) + β = (sW) ∗ x + (s(b − μ) + β),   s = γ / √(σ² + ε) per channel

    and one whose output such a layer alone reads goes into that one, where that is exact: without padding with
    zeros, or without a shift. Any other becomes a `normless.nn.FrozenAffine` in its place. Outputs in eval mode are
    those of the original up to rounding, and no batch norm's statistics enter in train mode. Norms that are no
    subclass of torch's batch norm are kept as they are.

    Args:
        model: the network; it is left as it is. The copy has its class, its layers' names and its mode.
        inputs: what its forward takes, positional; values do not matter.
        example_inputs: in the place of `inputs` and `kwargs`: a tensor, a tuple of positional or a dictionary of
            keyword arguments.
        kwargs: what its forward takes by name.

    Returns:
        The copy, and the outcome for every norm, printable.

    Raises:
        UnsupportedEditError: a batch norm has no running statistics, carries hooks, or computes something else.
        UnresolvedStructureError: the network cannot be exported on these inputs.
    """
    inputs, kwargs = forward_arguments(inputs, kwargs, example_inputs)
    if isinstance(model, (_BatchNorm, FrozenAffine)):
        raise UnsupportedEditError(
            f"This {type(model).__name__} is a norm by itself, with no layer beside it to fold it into; "
            "normless.freeze makes a batch norm a fixed affine map."
        )
    # Frozen first: then train mode shows what dropout hides in eval mode, and whether a batch statistic is left.
    frozen = freeze(model)
    modes = {module: module.training for module in frozen.modules()}
    programs = [exported(frozen.train(training), inputs, kwargs) for training in (False, True)]
    for module, training in modes.items():
        module.training = training
    kept = tuple(_kept(frozen, programs))
    neighbours = [Neighbours(frozen, program) for program in programs]
    affines = {path: module for path, module in frozen.named_modules() if isinstance(module, FrozenAffine)}
    # The original's own numbers, where the frozen norm has rounded them to its dtype.
    values = {path: _affine(path, model.get_submodule(path)) for path in affines}
    # Every place is found before the first weight changes, since a layer may get a bias.
    places = {path: _place(path, shift, neighbours) for path, (_, shift) in values.items()}
    fates: list[NormFate] = []
    for path, place in places.items():
        if isinstance(place, Place):
            layer = frozen.get_submodule(place.layer)
            assert isinstance(layer, (_ConvNd, nn.Linear))
            (fold_into_output if place.side == "before" else fold_into_input)(layer, *values[path])
            fates.append(NormFate(path, "folded", place.layer, place.side))
        else:
            fates.append(NormFate(path, "affine", reason=place))
    folded = [affines[fate.path] for fate in fates if fate.outcome == "folded"]
    replace_modules(frozen, {affine: _without_affine(affine) for affine in folded})
    return frozen, FoldReport((*fates, *kept))


def _affine(path: str, norm: nn.Module) -> tuple[Tensor, Tensor]:
    """The factor and shift per channel, in float64, of a batch norm or of one that is frozen already."""
    if isinstance(norm, _BatchNorm):
        return affine_of(path, norm)
    assert isinstance(norm, FrozenAffine)
    return norm.scale.double(), norm.shift.double()


def _place(path: str, shift: Tensor, modes: list[Neighbours]) -> Place | str:
    """Where the norm at `path` can go, exactly and in every mode, or the reason why nowhere."""
    if not any(mode.runs(path) for mode in modes):
        return "it does not run on these inputs"
    reasons = []
    sides: tuple[Side, ...] = ("before", "after")
    for side in sides:
        neighbour = _neighbour(path, side, modes)
        if isinstance(neighbour, Neighbour) and neighbour.sees_border and shift.any():
            neighbour = (
                f"{neighbour.layer} pads its input or is transposed, "
                "so that a shift would not reach all outputs equally"
            )
        if isinstance(neighbour, Neighbour):
            return Place(neighbour.layer, side)
        reasons.append(neighbour)
    return "; ".join(dict.fromkeys(reasons))


def _neighbour(path: str, side: Side, modes: list[Neighbours]) -> Neighbour | str:
    """The layer on one side of a norm that has it there whenever either of them runs, or why there is none."""
    neighbours = [mode.find(path, side) for mode in modes if mode.runs(path)]
    first = neighbours[0]
    for other in neighbours:
        if isinstance(other, str):
            return other
        if other != first:
            return "train mode and eval mode differ"
    if isinstance(first, Neighbour) and any(mode.uses(first.layer) and not mode.runs(path) for mode in modes):
        return f"{first.layer} runs in a mode in which the norm does not"
    return first


def _without_affine(module: FrozenAffine) -> nn.Module:
    """The modules of a fused norm after its normalization, under the same names."""
    rest = OrderedDict(module.named_children())
    return nn.Sequential(rest) if rest else nn.Identity()


def _kept(model: nn.Module, programs: list[ExportedProgram]) -> Iterator[NormFate]:
    """The norms that are no batch norms, in either mode.

    Raises:
        UnsupportedEditError: forward code calls torch's batch norm function on the statistics of the batch.
    """
    seen: set[str] = set()
    for program in programs:
        flow = read_dataflow(program)
        for operation in flow.operations:
            if operation.name == "batch_norm" and operation.arguments[5]:
                raise UnsupportedEditError(
                    f"The forward code of {operation.module or 'the network'} normalizes by the statistics of the "
                    "batch in a function call, not in a module that could be frozen. Make it a torch.nn.BatchNorm."
                )
        for call, layer in find_layers(model, flow).layers.items():
            if layer.kind == "norm" and call.path not in seen:
                seen.add(call.path)
                alone = isinstance(model.get_submodule(call.path.partition(":")[0]), NORMS)
                why = "it normalizes every example by itself" if alone else "it is no batch norm of torch.nn"
                yield NormFate(call.path, "kept", reason=why)
