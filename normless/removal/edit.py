"""The edit of a removal: norms that can be frozen, in place of the norms of a residual map."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from normless._internal.state import running
from normless.edits import Edit, Surgery
from normless.edits.norm_places import inside_of
from normless.errors import UnsupportedEditError
from normless.nn import FreezableNorm, Tokens
from normless.nn.channels import has_channels_first
from normless.nn.freezable import Over
from normless.removal.places import ORDER, Place, norms_by_place
from normless.residual import Layer
from normless.residual.batch_statistics import keeps_statistics
from normless.residual.description import describe, with_article

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
    order: tuple[Place, ...] = ORDER
    places: dict[str, Place] = field(default_factory=dict)

    def __repr__(self) -> str:
        return "remove_norms"

    def apply(self, surgery: Surgery) -> None:
        """Replace the norms at the places of `order`; nothing is replaced if one is refused."""
        found = norms_by_place(surgery)
        for path, reason in surgery.map.directions.items():
            if path not in found:
                surgery.record(path, f"kept: {reason}")
        chosen = {
            path: place
            for path, place in found.items()
            if not self._is_batch_norm(surgery, path) and place in self.order
        }
        if not chosen:
            raise self._nothing(surgery, found)
        for path in chosen:
            self._check(surgery, surgery.map.by_path[path])
        seen = _seen(surgery, chosen)
        length = _length(seen)
        new = {path: self._freezable(surgery, surgery.map.by_path[path], *seen[path], length) for path in chosen}
        for path, norm in new.items():
            old = surgery.get(path)
            surgery.replace(path, norm)
            surgery.record(path, f"{describe(old)} can be frozen, place {chosen[path]}")
        self.places.update(chosen)

    def beside(self, surgery: Surgery) -> tuple[dict[str, FreezableNorm], dict[str, str]]:
        """Return by path the norms that would replace those of a network, which stays as it is, and refusals."""
        made, refused = dict[str, FreezableNorm](), dict[str, str]()
        found = {
            path: place for path, place in norms_by_place(surgery).items() if not self._is_batch_norm(surgery, path)
        }
        for path in found:
            try:
                self._check(surgery, surgery.map.by_path[path])
            except UnsupportedEditError as error:
                refused[path] = str(error)
        seen = _seen(surgery, left) if (left := {path: found[path] for path in found if path not in refused}) else {}
        for path in seen:
            try:
                made[path] = self._freezable(surgery, surgery.map.by_path[path], *seen[path], _length(seen))
            except UnsupportedEditError as error:
                refused[path] = str(error)
        return made, refused

    def _nothing(self, surgery: Surgery, found: Mapping[str, Place]) -> UnsupportedEditError:
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

    def _is_batch_norm(self, surgery: Surgery, path: str) -> bool:
        """Whether a norm keeps running statistics; record that it is kept."""
        is_batch_norm = ":" not in path and keeps_statistics(surgery.get(path))
        if is_batch_norm:
            surgery.record(path, f"kept: {with_article(describe(surgery.get(path)))}, which normless.fold takes out")
        return is_batch_norm

    def _check(self, surgery: Surgery, layer: Layer) -> None:
        """Refuse a norm that is not a module of its own, carries hooks, or has parameters besides γ and β."""
        if ":" in layer.path:
            reason = f"{layer.path.partition(':')[2]} is a function in forward code"
            raise surgery.unsupported(layer.path, f"{reason}; make it a module, such as torch.nn.LayerNorm")
        norm = surgery.get(layer.path)
        if isinstance(norm, FreezableNorm):
            raise surgery.unsupported(layer.path, "a removal has begun already; continue it by its load_state_dict")
        if isinstance(norm, nn.modules.instancenorm._InstanceNorm) and norm.track_running_stats:
            raise surgery.unsupported(layer.path, "it is an instance norm with running statistics")
        if norm._forward_hooks or norm._forward_pre_hooks or norm._backward_hooks or norm._backward_pre_hooks:
            raise surgery.unsupported(layer.path, "it carries hooks, which do not move to another module")
        if nn.utils.parametrize.is_parametrized(norm):
            raise surgery.unsupported(layer.path, "its γ or β is parametrized; make it a plain parameter first")

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


def _seen(surgery: Surgery, paths: Mapping[str, Place]) -> dict[str, tuple[Tensor, Tensor]]:
    """Return input and output of each norm in its first run on the example inputs, in evaluation."""
    surgery.need_inputs("measures norms", "…")
    seen: dict[str, tuple[Tensor, Tensor]] = {}

    def note(path: str, _: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if not (inputs and isinstance(inputs[0], Tensor) and isinstance(output, Tensor)):
            raise surgery.unsupported(path, "it does not take one tensor, and return one, by position")
        seen.setdefault(path, (inputs[0].clone(), output.clone()))

    surgery.profile(paths, note)
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


def _length(seen: Mapping[str, tuple[Tensor, Tensor]]) -> int | None:
    """Return the number of tokens in a sequence, from the input of a norm with three axes."""
    return next((x.shape[1] for x, _ in seen.values() if x.dim() == 3), None)


def _agree(made: Tensor, y: Tensor) -> bool:
    if made.shape != y.shape:
        return False
    scale = y.abs().amax().item()
    rounding = _ROUNDING if y.element_size() >= 4 else 0.03
    return torch.allclose(made.float(), y.float(), rtol=0, atol=rounding * max(scale, 1e-12))
