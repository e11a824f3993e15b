"""A network exported to a graph, and left exactly as it was."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import is_dataclass
from functools import wraps
from io import StringIO
from traceback import walk_tb
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram, export
from torch.utils._pytree import tree_leaves

from normless.errors import UnresolvedStructureError
from normless.lifting import unfused

LONGEST_REASON = 300


def exported(model: nn.Module, inputs: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ExportedProgram:
    """Export a network on example inputs; weights, buffers, attributes, mode and random state stay as they are."""
    try:
        with _untouched(model), _returning_tensors_only(model), torch.enable_grad(), warnings.catch_warnings():
            # What forward caches in attributes is put back.
            warnings.filterwarnings("ignore", message="The tensor attribute")
            with redirect_stderr(StringIO()):  # Where export fails, torch prints the whole graph so far.
                return export(model, inputs, dict(kwargs), strict=False)
    except Exception as error:
        raise UnresolvedStructureError(_explanation(model, error)) from error


@contextmanager
def _untouched(model: nn.Module) -> Iterator[None]:
    """Undo side effects of a traced forward pass: attributes it sets, random numbers it draws, fused attention."""
    attributes = {module: dict(vars(module)) for module in model.modules()}
    holders = (value for own in attributes.values() for value in own.values() if type(value) in (dict, list, set))
    contents = [(holder, holder.copy()) for holder in holders]
    devices = {p.device.index for p in model.parameters() if p.device.type == "cuda" and p.device.index is not None}
    try:
        # The fused encoder layer hides its residual sums.
        with unfused(), torch.random.fork_rng(devices=sorted(devices)):
            yield
    finally:
        for module, before in attributes.items():
            vars(module).clear()
            vars(module).update(before)
        for holder, content in contents:
            holder.clear()
            (holder.extend if isinstance(holder, list) else holder.update)(content)


@contextmanager
def _returning_tensors_only(model: nn.Module) -> Iterator[None]:
    """Let forward return the tensors of its output alone, since export knows few container types."""
    # Overridden in a subclass, not in the instance, since export calls it on a proxy that names the modules.
    original = type(model)

    @wraps(original.forward)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> list[Tensor]:
        tensors = list(_tensors(original.forward(self, *args, **kwargs)))
        if not tensors:
            raise TypeError("forward returned no tensor, nor anything that holds one.")
        return tensors

    model.__class__ = type(original.__name__, (original,), {"forward": forward, "__module__": original.__module__})
    try:
        yield
    finally:
        model.__class__ = original


def _tensors(value: Any) -> Iterator[Tensor]:
    for leaf in tree_leaves(value):
        if isinstance(leaf, Tensor):
            yield leaf
        elif is_dataclass(leaf):
            yield from _tensors(list(vars(leaf).values()))


def _explanation(model: nn.Module, error: Exception) -> str:
    kind = type(model).__name__
    path, module, line = _where(model, error)
    place = f"the forward pass of this {kind}" if not path else f"{path}, a {type(module).__name__}"
    lines = [text.strip() for text in str(error).splitlines() if text.strip()]
    reason = lines[0] if lines else "no reason given"
    if len(reason) > LONGEST_REASON:
        reason = f"{reason[:LONGEST_REASON]}…"
    return (
        f"torch.export could not trace this {kind}: it stopped in {place}{line}: {type(error).__name__}: {reason} "
        "Check that forward takes these inputs; replace branches on values of tensors by torch.where or torch.cond; "
        "or let the network state its structure by a residual_structure() method (normless.residual.Structure)."
    )


def _where(model: nn.Module, error: BaseException) -> tuple[str, nn.Module, str]:
    """The innermost of the model's modules whose forward the error passed through, and the line there."""
    names = {id(module): name for name, module in model.named_modules()}
    place: tuple[str, nn.Module, str] = ("", model, "")
    cause: BaseException | None = error
    while cause is not None and not place[2]:
        for frame, number in walk_tb(cause.__traceback__):
            owner = frame.f_locals.get("self")
            if isinstance(owner, nn.Module) and id(owner) in names and frame.f_code.co_name == "forward":
                place = names[id(owner)], owner, f" (line {number} of {frame.f_code.co_filename})"
        cause = cause.__cause__ or cause.__context__
    return place
