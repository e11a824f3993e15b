"""The edit of a removal: norms that can be frozen, in place of the norms of a residual map."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal

import torch
from torch import Tensor, nn

from normless.affine._maps import has_hooks
from normless.edits import Edit, Surgery
from normless.edits._batches import profile
from normless.edits._norm_places import inside_of
from normless.edits._transformer import makes_queries
from normless.errors import UnsupportedEditError
from normless.nn import FreezableNorm
from normless.nn._channels import has_channels_first
from normless.nn._freezable import Over, Tokens
from normless.residual import Layer, ResidualBlock
from normless.residual._batch_statistics import keeps_statistics
from normless.residual._description import describe, with_article
from normless.state import running

NormPlace = Literal["feed_forward", "attention", "qk", "other", "final"]

# As Baroni et al. 2025: the norms of feed-forward layers before those of attentions, the final norm last.
ORDER: tuple[NormPlace, ...] = ("feed_forward", "attention", "qk", "other", "final")
# What the map says of a norm of queries or keys.
_COMPARED = "an attention"
_EPSILONS = (1e-5, 1e-6, 1e-8, 1e-12)
_ROUNDING = 1e-3


@dataclass(frozen=True, repr=False)
class FreezableNorms(Edit):
    """Replace each layer, RMS and group norm by a norm that computes the same and can be frozen (see `remove_norms`).

    Batch norms and normalizations that define an output are kept; the plan lists each with the reason.

    Attributes:
        tokens: shared by the new norms.
        order: the places of the norms to replace.
        places: filled with the place of each replaced norm by path, in execution order.
    """

    tokens: Tokens
    order: tuple[NormPlace, ...] = ORDER
    places: dict[str, NormPlace] = field(default_factory=dict)

    def __repr__(self) -> str:
        return "remove_norms"

    def apply(self, surgery: Surgery) -> None:
        """Replace the norms at the places of `order`; nothing is replaced if one is refused."""
        found = norms_by_place(surgery)
        for path, reason in surgery.map.directions.items():
            if path not in found:
                surgery.record(path, f"kept: {reason}")
        made, refused = self.beside(surgery)
        for reason in refused.values():
            raise UnsupportedEditError(reason)
        for path in found:
            old = None if ":" in path else surgery.get(path)
            if old is not None and keeps_statistics(old):
                surgery.record(path, f"kept: {with_article(describe(old))}, which normless.fold takes out")
        if not made:
            raise self._nothing(surgery, found)
        for path, norm in made.items():
            old = surgery.get(path)
            surgery.replace(path, norm)
            surgery.record(path, f"{describe(old)} can be frozen, place {found[path]}")
            self.places[path] = found[path]

    def beside(self, surgery: Surgery) -> tuple[dict[str, FreezableNorm], dict[str, str]]:
        """Return by path the norms that would replace those of a network, which stays as it is, and refusals."""
        made, refused = dict[str, FreezableNorm](), dict[str, str]()
        chosen = {
            path: surgery.map.by_path[path]
            for path, place in norms_by_place(surgery).items()
            if place in self.order and (":" in path or not keeps_statistics(surgery.get(path)))
        }
        for path, layer in chosen.items():
            if reason := _reason_to_refuse(surgery, layer):
                refused[path] = str(surgery.unsupported(path, reason))
        seen = _seen(surgery, left) if (left := [path for path in chosen if path not in refused]) else {}
        # The number of tokens in a sequence.
        length = next((x.shape[1] for x, _ in seen.values() if x.dim() == 3), None)
        for path, (x, y) in seen.items():
            try:
                made[path] = self._freezable(surgery, chosen[path], x, y, length)
            except UnsupportedEditError as error:
                refused[path] = str(error)
        return made, refused

    def _nothing(self, surgery: Surgery, found: Mapping[str, NormPlace]) -> UnsupportedEditError:
        """Return the error that there is no norm to freeze."""
        other = next((f"{path} ({place})" for path, place in found.items() if place not in self.order), None)
        if other is not None:
            return surgery.unsupported(
                "", f"order={self.order} leaves out the places of all of its norms, such as {other}"
            )
        if found:
            reason = "all of its norms are batch norms, which normless.fold takes out exactly"
            return surgery.unsupported(next(iter(found)), reason)
        return surgery.unsupported("", "it has no layer, RMS or group norm on these inputs")

    def _freezable(self, surgery: Surgery, layer: Layer, x: Tensor, y: Tensor, length: int | None) -> FreezableNorm:
        """Return the norm that computes what a norm computed on x, with its parameters."""
        norm, inside = surgery.get(layer.path), inside_of(surgery, layer)
        if inside.before:
            raise surgery.unsupported(layer.path, f"{inside.before[0].name} comes before its normalization")
        named = {id(value): name for name, value in norm._parameters.items()}
        own = [surgery.parameter(name) for name in layer.parameters]
        gamma = None if layer.gamma is None else surgery.parameter(layer.gamma)
        others = [parameter for parameter in own if parameter is not gamma]
        beta = others[0] if len(others) == 1 else None
        if len(others) > 1 or any(id(parameter) not in named for parameter in own):
            words = ", ".join(name.removeprefix(f"{layer.path}.") for name in layer.parameters)
            raise surgery.unsupported(layer.path, f"it has other parameters than one γ and one β: {words}")
        parts = [None if part is None else (named[id(part)], part) for part in (gamma, beta)]
        rest = {part.name: part.module for part in inside.after if not isinstance(part.module, nn.Identity)}
        sizes = {part.numel() for part in (gamma, beta) if part is not None} - {1}
        for options in _candidates(norm, x):
            over = options["over"]
            if over != "example" and not sizes <= {x.shape[-1 if over == "features" else 1]}:
                continue
            axis = _position_axis(x, over, length)
            new = FreezableNorm(
                gamma=parts[0], beta=parts[1], offset=layer.offset, position_axis=axis, rest=rest, **options
            ).to(x.device)
            with running(new, training=False):
                made = new(x)
            if _agree(made, y):
                new.tokens, new.original = self.tokens, (norm,)
                return new
        raise surgery.unsupported(
            layer.path,
            f"{with_article(type(norm).__name__)} computes something else than (x − mean) / √(variance + ε) · γ + β, "
            "or x / √(mean of x² + ε) · γ, of its input",
        )


def norms_by_place(surgery: Surgery) -> dict[str, NormPlace]:
    """Return the place of each norm by path, in execution order.

    A norm in a block has the place of the block's branch. In a network without attention, all norms before its head
    are `other`. Normalizations that define an output are left out.
    """
    found: dict[str, NormPlace] = {layer.path: "other" for layer in surgery.places.norms()}
    of_queries = {path for path, reason in surgery.map.directions.items() if reason.startswith(_COMPARED)}
    attending = {block.name for block in surgery.map.walk() if _attends(surgery, block)}
    for block in surgery.map.walk():
        place: NormPlace = "attention" if block.name in attending else "feed_forward" if attending else "other"
        found |= {layer.path: place for layer in block.layers if layer.path in found}
    found |= {layer.path: "final" for layer in surgery.map.head_layers if layer.path in found}
    found |= {layer.path: "qk" for layer in surgery.map.layers() if layer.path in of_queries}
    return {path: found[path] for path in surgery.map.by_path if path in found}


def _attends(surgery: Surgery, block: ResidualBlock) -> bool:
    """Whether a block's branch, without the blocks inside it, makes queries."""
    inside: set[Layer] = {layer for inner in block.inner for layer in inner.layers}
    return any(makes_queries(surgery, layer) for layer in block.branch_layers if layer not in inside)


def _reason_to_refuse(surgery: Surgery, layer: Layer) -> str:
    """Say why a norm cannot be replaced: it is not a module of its own, or carries what does not move; else ""."""
    if ":" in layer.path:
        name = layer.path.partition(":")[2]
        return f"{name} is a function in forward code; make it a module, such as torch.nn.LayerNorm"
    norm = surgery.get(layer.path)
    if isinstance(norm, FreezableNorm):
        return "a removal has begun already; continue it by its load_state_dict"
    if isinstance(norm, nn.modules.instancenorm._InstanceNorm) and norm.track_running_stats:
        return "it is an instance norm with running statistics"
    if has_hooks(norm):
        return "it carries hooks, which do not move to another module"
    return "its γ or β is parametrized; make it a plain parameter first" * nn.utils.parametrize.is_parametrized(norm)


def _seen(surgery: Surgery, paths: Sequence[str]) -> dict[str, tuple[Tensor, Tensor]]:
    """Return input and output of each norm in its first run on the example inputs, in evaluation."""
    seen: dict[str, tuple[Tensor, Tensor]] = {}

    def note(path: str, _: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if not (inputs and isinstance(inputs[0], Tensor) and isinstance(output, Tensor)):
            raise surgery.unsupported(path, "it does not take one tensor, and return one, by position")
        seen.setdefault(path, (inputs[0].clone(), output.clone()))

    profile(surgery, paths, note)
    missing = next((path for path in paths if path not in seen), None)
    if missing is not None:
        raise surgery.unsupported(missing, "it does not run in evaluation on these inputs")
    return seen


def _candidates(norm: nn.Module, x: Tensor) -> Iterator[dict[str, Any]]:
    """Iterate over the statistics that a norm may use: those of its class, or all of them for an unknown class."""
    names = ("eps", "variance_epsilon", "epsilon")
    given = [value for name in names if isinstance(value := getattr(norm, name, None), float)]
    eps = given[0] if given else torch.finfo(x.dtype).eps
    if isinstance(norm, (nn.LayerNorm, nn.RMSNorm)):
        axes = len(norm.normalized_shape)
        over: Over = "features" if axes == 1 else "example"
        yield {"over": over, "axes": axes, "centres": isinstance(norm, nn.LayerNorm), "eps": eps}
    elif isinstance(norm, (nn.GroupNorm, nn.modules.instancenorm._InstanceNorm)):
        own = norm.num_groups if isinstance(norm, nn.GroupNorm) else norm.num_features
        yield {"over": "groups", "groups": own, "channels": x.shape[1], "centres": True, "eps": eps}
    # A subclass or a class of its own may compute something else.
    order: tuple[Over, ...] = ("channels", "features") if has_channels_first(norm) else ("features", "channels")
    groups: Any = getattr(norm, "num_groups", getattr(norm, "groups", None))
    for epsilon, centres in product((*given, *_EPSILONS, 0.0), (True, False)):
        for each in order:
            yield {"over": each, "centres": centres, "eps": epsilon}
        if isinstance(groups, int) and x.dim() > 1 and x.shape[1] % groups == 0:
            yield {"over": "groups", "groups": groups, "channels": x.shape[1], "centres": centres, "eps": epsilon}


def _position_axis(x: Tensor, over: Over, length: int | None) -> int | None:
    """Return the axis of tokens in sequence, from the end, of the input of a norm over features."""
    if over != "features" or x.dim() < 3:
        return None
    if x.dim() == 3:
        return -2
    return next((axis for axis in (-2, -3) if length is not None and x.shape[axis] == length), None)


def _agree(made: Tensor, y: Tensor) -> bool:
    if made.shape != y.shape:
        return False
    scale = y.abs().amax().item()
    rounding = _ROUNDING if y.element_size() >= 4 else 0.03
    return torch.allclose(made.float(), y.float(), rtol=0, atol=rounding * max(scale, 1e-12))
