"""Fold the norms of a trained network that have constant statistics into the weights next to them."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from normless._internal.arguments import carried_inputs, forward_arguments, inputs_missing, on_device_of
from normless._internal.calling import Call, with_call
from normless._internal.copying import Model, copied, without_values
from normless._internal.html import html_table
from normless._internal.warn import warn
from normless.affine._flow import Neighbour, NormFlow, Side, names_of
from normless.affine._into_layers import fold_into
from normless.affine._maps import Affine, frozen_copy, has_constants, has_hooks, replace_modules
from normless.errors import EvaluationOnlyWarning, NormlessError, UnsupportedEditError
from normless.exclusive import exclusive
from normless.nn import FrozenAffine
from normless.nn._channels import channel_axis
from normless.recording._passes import recorded
from normless.residual import Layer
from normless.residual._classify import NORMS
from normless.residual._graph import Operation
from normless.residual._inside_norms import agree
from normless.state import in_mode


@dataclass(frozen=True)
class NormOutcome:
    """What became of one norm, or of a layer that was fitted.

    Attributes:
        path: its qualified name.
        outcome: `folded` into the weights of a layer; `affine`, replaced by a factor and shift per channel; `kept`,
            since it normalizes; in a trained conversion also `fitted` to the norm's outputs, `same`, without a fit
            since nothing changed, or `left` without a fit.
        layers: the qualified names of the layers into which it, or only γ and β of a kept norm, was folded.
        side: whether these layers come `before` or `after` the norm.
        reason: why it was not folded or fitted, else empty.
        before, after: the distance of the outputs there from those before the conversion, ‖y' − y‖ / ‖y‖ over the
            calibration batches, before and after all fits; None if it was not measured.
    """

    path: str
    outcome: Literal["folded", "affine", "kept", "fitted", "same", "left"]
    layers: tuple[str, ...] = ()
    side: Side | None = None
    reason: str = ""
    before: float | None = None
    after: float | None = None

    @property
    def what(self) -> str:
        """The outcome in words, without the path."""
        into = f"into {', '.join(self.layers)} {self.side} it" if self.layers else ""
        known = "" if self.before is None or self.after is None else f"distance {arrow(self.before, self.after)}"
        words = f"folded {into}" if self.outcome == "folded" else self.outcome
        parts = "γ" if self.reason else "γ and β"
        gammas = f"{parts} folded {into}" if into and self.outcome == "kept" else ""
        return ": ".join(filter(None, (", ".join(filter(None, (words, known))), gammas, self.reason)))

    def __str__(self) -> str:
        return f"{self.path}: {self.what}"


def arrow(before: float, after: float) -> str:
    """Write a number before and after a change."""
    return f"{before:.3g}" if before == after else f"{before:.3g} → {after:.3g}"


@dataclass(frozen=True)
class FoldReport:
    """The outcome for every norm of a network in the order of its modules, with kept norms at the end; printable."""

    norms: tuple[NormOutcome, ...]

    @property
    def counts(self) -> dict[str, int]:
        """The number of norms with each outcome: `folded`, `affine` or `kept`."""
        return {"folded": 0, "affine": 0, "kept": 0} | Counter(norm.outcome for norm in self.norms)

    def __str__(self) -> str:
        total = ", ".join(f"{count} {outcome}" for outcome, count in self.counts.items())
        return "\n".join([f"{len(self.norms)} norms: {total}", *map(str, self.norms)])

    def _repr_html_(self) -> str:
        rows = ((norm.path, norm.what) for norm in self.norms)
        return html_table(str(self).partition("\n")[0], ("norm", "outcome"), rows)


@exclusive
@with_call
def fold(
    model: Model,
    *inputs: Any,
    gammas: bool = False,
    example_inputs: Any = None,
    call: Call | None = None,
    **kwargs: Any,
) -> tuple[Model, FoldReport]:
    """Fold every norm with constant statistics into the weights next to it; return the folded copy and a report.

    These are the batch norms of a trained network, and the norms that `remove_norms` froze. If only a norm reads the
    output of a convolution or linear layer, it is folded into it, with running μ and σ²:

        γ / √(σ² + ε) · (W ∗ x + b − μ) + β = (sW) ∗ x + (s(b − μ) + β),   s = γ / √(σ² + ε) per channel

    If only such layers read the norm's output, the norm is folded into them where this is exact: without zero
    padding, or without a shift. Any other norm becomes a `normless.nn.FrozenAffine`. A frozen layer norm with
    constant c, which subtracts the mean of n features by P = I − 11ᵀ/n, is folded likewise:

        W (γ/c ⊙ P x + β) + b = (W diag(γ/c) P) x + (W β + b)

    A weight that an embedding looks up too is copied for the layer that reads the norm. Outputs in eval mode equal
    those of the original up to rounding, and train mode does not use batch statistics. Other norms are kept; with
    `gammas`, as TransformerLens does it, γ and β of a kept norm N go into the layers that read it,

        W (γ ⊙ N(x) + β) + b = (W diag(γ)) N(x) + (W β + b)

    Args:
        model: the network; it is not changed. The copy has the same class, names of layers and mode.
        gammas: whether to fold γ and β of norms that are kept, which are 1 and 0 afterwards.
        inputs, kwargs, example_inputs, call: as in `residual_map`.

    Warns:
        EvaluationOnlyWarning: the pass in training cannot be followed, so that the copy is right in evaluation only.

    Raises:
        UnsupportedEditError: as in `freeze`.
        UnresolvedStructureError: inputs are missing, or the forward pass fails.
    """
    inputs, kwargs = forward_arguments(inputs, kwargs, example_inputs)
    if isinstance(model, nn.Module) and has_constants(model):
        raise UnsupportedEditError(
            f"This {type(model).__name__} is a norm alone, without a layer into which it could be folded; "
            "normless.freeze makes a batch norm a fixed affine map."
        )
    # After freezing, train mode shows dropout, which eval mode hides, and any remaining batch statistics.
    frozen, maps = frozen_copy(model)
    if not (inputs or kwargs):
        inputs, kwargs = carried_inputs(model)
    if not (inputs or kwargs):
        raise inputs_missing(model, "fold")
    modes = flows_of(frozen, inputs, kwargs)
    kept = _kept(frozen, modes)
    kept_maps = _gammas(frozen, modes, kept) if gammas else {}
    outcomes = fold_affines(frozen, maps | {path: affine for path, (affine, _) in kept_maps.items()}, modes)
    done = {outcome.path: outcome for outcome in outcomes}
    done |= {path: _emptied(done[path], left) for path, (_, left) in kept_maps.items() if done[path].layers}
    return frozen, FoldReport((*(done[path] for path in maps), *(done.get(path, own) for path, own in kept.items())))


def _emptied(outcome: NormOutcome, left: _Left) -> NormOutcome:
    """Set γ and β of a kept norm to what folding leaves of them; return the outcome, with the reason if β stays."""
    for parameter, value in left:
        parameter.data.copy_(value)
    if len(left) == 2 and left[1][1].any():
        return replace(outcome, reason="β stays, divided by γ, since a padded border would not see it")
    return outcome


def flows_of(frozen: nn.Module, inputs: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[NormFlow]:
    """Return the flows of a network with frozen norms, in evaluation and, if it can be followed, in training."""
    # The pass with values comes first, so that caches of forward code keep tensors with values.
    with in_mode(frozen, False):
        evaluation = NormFlow(frozen, recorded(frozen, inputs, kwargs, scripted=True))
    # The pass in training has no values unless forward code reads them.
    empty = without_values(frozen).train()
    with suppress(Exception):
        return [evaluation, NormFlow(frozen, recorded(empty, *on_device_of(empty, inputs, kwargs), scripted=True))]
    try:
        with in_mode(frozen, True):
            return [evaluation, NormFlow(frozen, recorded(frozen, inputs, kwargs, scripted=True))]
    except NormlessError as error:
        text = f"The pass of this {type(frozen).__name__} in training cannot be followed, so that the copy is right"
        warn(f"{text} in evaluation only: {error}", EvaluationOnlyWarning)
        return [evaluation]


def fold_affines(
    network: nn.Module,
    maps: Mapping[str, Affine],
    modes: list[NormFlow],
    *,
    trained: Mapping[str, bool] | None = None,
) -> list[NormOutcome]:
    """Fold affine maps, of frozen norms or after norms that are kept, into the weights next to their paths.

    If weights go on training, `trained` says of a norm whether its γ or β was: such a norm is not folded into a
    weight without gradient. And then no norm is folded into a layer that pads its input, even if its shift is zero
    now.
    """
    # All places are found before the first weight changes, since a layer may get a bias.
    places = {
        path: _place(network, path, affine, trained is not None or bool(affine.shift.any()), modes)
        for path, affine in maps.items()
    }
    outcomes: list[NormOutcome] = []
    replacements: dict[nn.Module, nn.Module] = {}
    for path, place in places.items():
        module = network.get_submodule(path)
        is_frozen = isinstance(module, FrozenAffine)
        if not isinstance(place, str) and (trained or {}).get(path):
            layers = [network.get_submodule(own.layer) for own in place]
            fixed = not any(getattr(own, names_of(own)[0]).requires_grad for own in layers)
            place = f"{place[0].layer} has no gradient, and the norm is trained" if fixed else place
        if isinstance(place, str):
            reason = place if is_frozen else _STAY + place
            outcomes.append(NormOutcome(path, "affine" if is_frozen else "kept", reason=reason))
            continue
        for neighbour in place:
            fold_into(network.get_submodule(neighbour.layer), neighbour, maps[path])
        layers_of = tuple(layer for layer, *_ in place)
        outcomes.append(NormOutcome(path, "folded" if is_frozen else "kept", layers_of, place[0].side))
        if is_frozen:
            # The modules that a fused norm applies after its normalization are kept under the same names.
            rest = OrderedDict(module.named_children())
            replacements[module] = nn.Sequential(rest) if rest else nn.Identity()
    replace_modules(network, replacements)
    return outcomes


def _place(
    model: nn.Module, path: str, affine: Affine, shifts: bool, modes: list[NormFlow]
) -> tuple[Neighbour, ...] | str:
    """Return the layers into which an affine map can be folded exactly in every mode, or the reason why not."""
    if not any(mode.runs(path) for mode in modes):
        return "it does not run on these inputs"
    norm = model.get_submodule(path)
    if (idle := _idle_beside(model, path, modes)) is not None:
        return f"on other inputs {idle} may run in its place, on the same layer's output"
    reasons = []
    for side in get_args(Side) if isinstance(norm, FrozenAffine) else ("after",):
        follows = side == "after" and next(norm.children(), None) is not None
        place = "a function follows it inside its module" if follows else _neighbours(path, side, affine, modes)
        if isinstance(place, str):
            reasons.append(place)
            continue
        layers = {own.layer: model.get_submodule(own.layer) for own in place}
        padded = next((own.layer for own in place if own.sees_border), None)
        grouped = next(
            (own for own, layer in layers.items() if isinstance(layer, _ConvNd) and layer.groups > 1), None
        )
        if padded is not None and shifts:
            reasons.append(
                f"{padded} pads its input or is transposed, so a shift would not reach all outputs equally"
            )
        elif grouped is not None and affine.centred:
            reasons.append(f"{grouped} has groups, and the mean is over all channels")
        else:
            return place
    return "; ".join(dict.fromkeys(reasons))


def _idle_beside(model: nn.Module, path: str, modes: list[NormFlow]) -> str | None:
    """Return a norm of another domain, in a list with the norm at `path`, that does not run, or None."""
    parent = path.rpartition(".")[0]
    around = model.get_submodule(parent)
    siblings = around.named_children() if isinstance(around, (nn.ModuleList, nn.ModuleDict)) else ()
    paths = (f"{parent}.{name}" for name, module in siblings if isinstance(module, FrozenAffine))
    return next((own for own in paths if not any(mode.runs(own) for mode in modes)), None)


def _neighbours(path: str, side: Side, affine: Affine, modes: list[NormFlow]) -> tuple[Neighbour, ...] | str:
    """Return the layers next to a norm in every mode in which they run, or the reason why there are none."""
    found = [mode.find(path, side, affine.channels_last, affine.scale.dim()) for mode in modes if mode.runs(path)]
    first, last = found[0], found[-1]
    if isinstance(last, str) or isinstance(first, str):
        return first if isinstance(first, str) else last
    if first != last:
        return "train mode and eval mode differ"
    for neighbour in first:
        if any(mode.uses(neighbour.layer) and not mode.runs(path) for mode in modes):
            return f"{neighbour.layer} runs in a mode in which the norm does not"
    return first


def _kept(model: nn.Module, modes: list[NormFlow]) -> dict[str, NormOutcome]:
    """Return the norms in either mode that are not batch norms, by path; refuse functions with batch statistics."""
    kept: dict[str, NormOutcome] = {}
    scripted = tuple(
        f"{path}." for path, module in model.named_modules() if isinstance(module, torch.jit.ScriptModule)
    )
    for mode in modes:
        for operation in mode.flow.operations:
            if (
                operation.name == "batch_norm"
                and operation.arguments[5]
                and not _owner(operation).startswith(scripted)
            ):
                raise UnsupportedEditError(
                    f"The forward code of {operation.module or 'the network'} normalizes by the statistics of the "
                    "batch in a function call, not in a module that could be frozen. Make it a torch.nn.BatchNorm."
                )
        for run in (run for run in mode.layers.runs if run.layer.kind in ("norm", "direction")):
            path, owner = run.layer.path, _owner(mode.flow[run.operations[0]])
            alone = isinstance(model.get_submodule(path.partition(":")[0]), NORMS)
            why = "it normalizes each example separately" if alone else "it is not a batch norm of torch.nn"
            if owner.startswith(scripted):
                path, why = owner.rpartition(".")[0], "it is TorchScript, which no edit can change"
            kept.setdefault(path, NormOutcome(path, "kept", reason=why))
    return kept


def _owner(operation: Operation) -> str:
    """Return the name of the first parameter or buffer that an operation reads, or ""."""
    return next((name for fixed in operation.fixed for name in (*fixed.parameters, *fixed.buffers)), "")


# Of γ and β of a norm that is kept.
_STAY = "γ and β stay, since "
# Parameters with the values that they have afterwards.
_Left = list[tuple[nn.Parameter, Tensor]]


def _gammas(model: nn.Module, modes: list[NormFlow], kept: dict[str, NormOutcome]) -> dict[str, tuple[Affine, _Left]]:
    """Return γ and β of the kept norms that are modules, with what their parameters are afterwards; note why not.

    The runs of these norms are added to the flows. Where only a shift cannot be folded, β becomes β / γ.
    """
    found: dict[str, tuple[Affine, _Left]] = {}
    for mode in modes:
        for run in mode.layers.runs:
            layer, path = run.layer, run.layer.path
            if path not in kept or ":" in path or not (layer.gamma or layer.shifts):
                continue
            shape = mode.flow[run.operations[-1]].shape
            made = found.get(path) or _gamma_of(model, layer, shape)
            if isinstance(made, str):
                kept[path] = replace(kept[path], reason=_STAY + made)
                continue
            found[path] = made
            mode.norms[path].append(run.operations[-1])
    for path, (affine, left) in found.items():
        alone = replace(affine, shift=torch.zeros_like(affine.shift))
        whole, part = (_place(model, path, own, bool(own.shift.any()), modes) for own in (affine, alone))
        if isinstance(whole, str) and not isinstance(part, str) and len(left) == 2 and bool(affine.scale.all()):
            found[path] = alone, [left[0], (left[1][0], (affine.shift / affine.scale).to(left[1][1]))]
    return found


@torch.no_grad()
def _gamma_of(model: nn.Module, layer: Layer, shape: tuple[int, ...] | None) -> tuple[Affine, _Left] | str:
    """Return the map y ↦ γ ⊙ y + β of a norm and its parameters with neutral values, or why it is not known."""
    norm = model.get_submodule(layer.path)
    names = [name.removeprefix(f"{layer.path}.") for name in (layer.gamma or "", *layer.shifts)]
    own: list[Any] = [norm._parameters.get(name) for name in names]
    gamma, beta = own[0], next(iter(own[1:]), None)
    like = next((value for value in (gamma, beta) if value is not None), None)
    held = Counter(id(value) for module in model.modules() for value in module._parameters.values())
    is_shared = any(held[id(value)] > 1 for value in own if value is not None)
    if like is None or shape is None or len(own) > 2 or is_shared or has_hooks(norm):
        return "it shares them, carries hooks, or has others besides"
    scale = torch.ones_like(like) if gamma is None else gamma + layer.offset
    shift = torch.zeros_like(like) if beta is None else beta
    is_last = channel_axis(norm, torch.empty(shape, device="meta")) == len(shape) - 1
    affine = Affine(scale.double(), shift.double(), channels_last=is_last)
    neutral = [(part, start) for part, start in ((gamma, 1 - layer.offset), (beta, 0.0)) if part is not None]
    alone = copied(norm)
    for name, start in zip(names, (1 - layer.offset, 0.0), strict=False):
        if name:
            alone.get_parameter(name).fill_(start)
    if not agree(norm, nn.Sequential(alone, affine.module(like)), shape, rtol=1e-4, atol=1e-5):
        return f"a {type(norm).__name__} does not end with them"
    return affine, [(part, torch.full_like(part, start)) for part, start in neutral]
