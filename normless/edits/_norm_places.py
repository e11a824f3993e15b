"""Remove and replace norms, and keep the other operations of their modules."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from normless.edits._modules import not_in_place
from normless.edits._surgery import Surgery
from normless.errors import LiftError
from normless.nn._affine import outputs_of
from normless.nn._memory_order import MemoryOrder
from normless.recording._places import reads
from normless.residual import Layer
from normless.residual._batch_statistics import BATCH_NORMS
from normless.residual._description import describe, with_article
from normless.residual._inside_norms import Inside, inside, is_plain
from normless.residual._memory_order import output_order
from normless.residual._operations import ACTIVATION
from normless.residual._sub_batches import is_sub_batch_norm


def keep_directions(surgery: Surgery) -> None:
    """Record that normalizations outside the trunk are kept."""
    for path, reason in surgery.map.directions.items():
        surgery.record(path, f"stays: {reason}")


def remove_norms(surgery: Surgery, kept: str | None = None) -> None:
    """Remove all norms except `kept`; an activation or dropout inside a norm's module keeps its name."""
    keep_directions(surgery)
    norms = surgery.places.norms()
    places = {own.path: {(own.path.partition(":")[0], term.place) for term in own.terms} for own in norms}
    for layer in whole_norms(surgery):
        if layer.path == kept:
            continue
        if not places[layer.path].isdisjoint(places.get(kept or "", ())):
            raise surgery.unsupported(layer.path, f"the same code computes {kept}, which stays")
        for reader in readers_outside(surgery, layer):
            not_in_place(surgery, reader)
        is_function = ":" in layer.path
        what = layer.description if is_function else describe(surgery.get(layer.path))
        if is_function:
            with surgery.log.refusing_at(layer.path, "the normalization is a function in the forward code: {}"):
                surgery.lifted.drop(layer)
        else:
            others = [nn.Identity() for _ in idle_siblings(surgery, layer)]
            replace_norm(surgery, layer, _identity(surgery, layer), others)
        surgery.record(layer.path, f"{what} removed")
        surgery.log.removed.add(layer.path)


def _identity(surgery: Surgery, layer: Layer) -> nn.Identity:
    """Return the module that replaces a removed norm, with γ = 1 and β = 0 if forward code reads them."""
    order = output_order(surgery.get(layer.path), surgery.places.input_shape(layer.path))
    identity = nn.Identity() if order is None else MemoryOrder(order)
    *around, name = layer.path.split(".")
    kinds: list[type] = [type(surgery.get(path)) for path in ("", *accumulate(around, "{}.{}".format))]
    for parameter in layer.parameters:
        owner, _, attribute = parameter.rpartition(".")
        if owner == layer.path and any(reads(kind, name, attribute) for kind in kinds):
            neutral = 1 - layer.offset if parameter == layer.gamma else 0.0
            value = torch.full_like(surgery.parameter(parameter).detach(), neutral)
            identity.register_buffer(attribute, value, persistent=False)
    return identity


def readers_outside(surgery: Surgery, layer: Layer) -> list[Layer]:
    """Return the layers outside a norm's module that read its output; functions inside never work in place."""
    readers = surgery.map.readers.get(layer.path, [])
    return [reader for reader in readers if not reader.path.startswith(f"{layer.path}:")]


def module_of(surgery: Surgery, layer: Layer) -> nn.Module:
    """Return the module of a norm; refuse a function."""
    if ":" in layer.path:
        raise surgery.unsupported(layer.path, "it is a function in the forward code, not a module")
    return surgery.get(layer.path)


def whole_norms(surgery: Surgery) -> list[Layer]:
    """Return the normalizations that are not part of another norm's module, such as a sub-batch norm."""
    paths = {layer.path for layer in surgery.places.norms()}
    return [
        layer
        for layer in surgery.places.norms()
        if paths.isdisjoint(accumulate(layer.path.split(".")[:-1], "{}.{}".format)) or ":" in layer.path
    ]


def idle_siblings(surgery: Surgery, layer: Layer) -> list[nn.Module]:
    """Return the norms of other domains: siblings of the same class that did not run."""
    return [surgery.get(path) for path in _idle_paths(surgery, layer)]


def _idle_paths(surgery: Surgery, layer: Layer) -> list[str]:
    parent, _, name = layer.path.rpartition(".")
    around, norm = surgery.get(parent), surgery.get(layer.path)
    siblings = {own: child for own, child in around.named_children() if type(child) is type(norm)}
    paths = {own: f"{parent}.{own}".removeprefix(".") for own in siblings}
    known = (surgery.map.by_path, surgery.map.elsewhere)
    idle = [own for own in siblings if not any(paths[own] in ran for ran in known)]
    if not isinstance(around, (nn.ModuleList, nn.ModuleDict)):
        # Each belongs to the first sibling of its width.
        ran = [own for own in siblings if own not in idle]
        nearest = {
            own: next((sibling for sibling in ran if _have_equal_shapes(siblings[sibling], siblings[own])), "")
            for own in idle
        }
        idle = [own for own in idle if nearest[own] == name]
    return [paths[own] for own in idle]


def _have_equal_shapes(norm: nn.Module, sibling: nn.Module) -> bool:
    """Whether two norms have parameters and buffers of the same shapes."""
    shapes = [{name: value.shape for name, value in module.state_dict().items()} for module in (norm, sibling)]
    return shapes[0] == shapes[1]


def inside_of(surgery: Surgery, layer: Layer) -> Inside:
    """Find the modules that a norm applies besides normalizing; refuse a norm if they cannot be separated."""
    advice = "use a norm of torch.nn, and separate modules for its other operations"
    with surgery.log.refusing_at(layer.path, f"{{}}; {advice}"):
        norm = surgery.get(layer.path)
        if is_plain(norm):
            return Inside()
        shapes = [surgery.map.flow[at].shape for at in surgery.places.read_by(layer.path)]
        if len(shapes) > 1 and not is_sub_batch_norm(norm):
            kind = with_article(type(norm).__name__)
            raise LiftError(f"{kind} reads {len(shapes)} tensors there, such as its input and a mask")
        return inside(norm, *shapes[:1])


def replace_norm(surgery: Surgery, layer: Layer, new: nn.Module, others: Sequence[nn.Module] = ()) -> None:
    """Replace a norm by a module, and keep the other operations of the norm's module around it.

    Activations, dropout and factors keep their order; a child module keeps its name, a function becomes a module.
    `others` replace the norm's `idle_siblings`.
    """
    idle_paths = _idle_paths(surgery, layer)
    if len(others) < len(idle_paths):
        beside = f"it did not run on these inputs, and {layer.path} beside it is replaced"
        raise surgery.unsupported(idle_paths[0], beside)
    for idle, new_norm in zip(idle_paths, others, strict=True):
        if inside_of(surgery, replace(layer, path=idle)) != Inside():
            raise surgery.unsupported(idle, "this norm did not run, and it does more than normalize")
        parent, _, name = idle.rpartition(".")
        surgery.get(parent)._modules[name] = new_norm.train(surgery.get(idle).training)
        surgery.record(idle, f"as {layer.path}; it did not run")
    path, old = layer.path, surgery.get(layer.path)
    extra = [name for name in layer.parameters if name not in (layer.gamma, *layer.shifts)]
    if layer.gamma is not None and extra:
        kind = with_article(type(old).__name__)
        reason = f"{kind} normalizes and bends its input in one formula, with {', '.join(extra)}"
        raise surgery.unsupported(path, reason)
    parts = inside_of(surgery, layer)
    around = [
        [(part.name, part.module) for part in side if _works(part.module)] for side in (parts.before, parts.after)
    ]
    whole = nn.Sequential(OrderedDict([*around[0], ("norm", new), *around[1]])) if any(around) else new
    surgery.replace(path, whole)
    inner = [own for own in surgery.map.functions.get(path, ()) if own.kind == "activation"]
    names = [part.name for part in (*parts.before, *parts.after) if not part.is_child]
    activations = [name for name in names if name.rstrip("_0123456789") in ACTIVATION or name in ACTIVATION]
    if len(parts.before) == 0 and len(inner) == len(activations):
        for own, name in zip(inner, activations, strict=True):
            surgery.lifted.note_moved(own, f"{path}.{name}")


def _works(module: nn.Module) -> bool:
    """Whether a module ever changes its input."""
    is_idle = isinstance(module, nn.Identity) or (isinstance(module, nn.modules.dropout._DropoutNd) and not module.p)
    return not is_idle


def batch_norm_like(surgery: Surgery, path: str) -> nn.Module:
    """Make a batch norm for the output of the weight layer at `path`, with its dtype and device."""
    layer = surgery.get(path.partition(":")[0])
    if not isinstance(layer, nn.Linear | _ConvNd):
        raise surgery.unsupported(path, f"no batch norm is known for the output of {with_article(describe(layer))}")
    norm = BATCH_NORMS[max(layer.weight.dim() - 3, 0)]
    return norm(outputs_at(surgery, path), device=layer.weight.device, dtype=layer.weight.dtype)


def weight_of(surgery: Surgery, layer: Layer) -> nn.Parameter:
    """Return the weight of a weight layer, the largest of its parameters."""
    return max(map(surgery.parameter, layer.parameters), key=torch.Tensor.numel)


def outputs_at(surgery: Surgery, path: str) -> int:
    """Return the number of output channels of the weight layer at `path`."""
    layer = surgery.map.by_path[path]
    return outputs_of(surgery.get(path.partition(":")[0]), weight_of(surgery, layer))
