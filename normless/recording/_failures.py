"""Say where and why a forward pass failed, in the words of the person's code."""

from __future__ import annotations

import linecache
from collections.abc import Mapping
from traceback import walk_tb
from types import FrameType

from torch import nn

from normless._internal.arguments import SEVERAL_INPUTS, unfitting
from normless._internal.calling import missing_forward
from normless.errors import InputsError, UnresolvedStructureError

LONGEST_REASON = 300

Forward = tuple[str, nn.Module, FrameType, int]
"""A module's forward pass in the stack of an error: the module's name, the module, frame and line."""


def explained(model: nn.Module, error: Exception, ran: set[str]) -> InputsError | UnresolvedStructureError:
    """Return the error that explains the failure of a forward pass, in which modules of these paths ran."""
    forwards = _forwards(model, error)
    for name, module, frame, _ in forwards[-1:]:
        if (unfit := unfitting(name, module, frame.f_locals.get("input"))) is not None:
            return unfit
    if absent := missing_forward(model, error):
        return UnresolvedStructureError(absent)
    reason = next(filter(None, map(str.strip, str(error).splitlines())), "no reason given")
    if len(reason) > LONGEST_REASON:
        reason = f"{reason[:LONGEST_REASON]}…"
    reason, advice = f"{type(error).__name__}: {reason}", "Check that forward takes these inputs."
    if "required positional argument" in reason:
        advice = f"{SEVERAL_INPUTS.capitalize()}."
    if "does not require grad" in reason or "torch.func" in reason:
        reason = "its forward code takes a derivative that cannot be followed"
        parts = _parts(model, forwards[-1][1] if forwards else model, ran) or ["the function that is differentiated"]
        advice = f"Map and convert what is differentiated alone, and put it back: {' or '.join(parts)}."
    return UnresolvedStructureError(
        f"The forward pass of this {type(model).__name__} stopped in {_place(model, error, forwards)}: "
        f"{reason if reason[-1] in '.…!?' else reason + '.'} {advice}"
    )


def hidden_submodule(modules: Mapping[str, nn.Module]) -> str:
    """Describe a submodule with the name of a method of its parent's class, which attribute access returns, or ""."""
    for path, module in modules.items():
        for name in module._modules.keys():  # noqa: SIM118  (TorchScript has no iteration)
            if callable(getattr(type(module), name, None)):
                where = f"{path}.{name}" if path else name
                return f"The submodule {where} has the name of a method of {type(module).__name__}"
    return ""


def _parts(model: nn.Module, inner: nn.Module, ran: set[str]) -> list[str]:
    """Return the paths of the children of a module that ran and have parameters."""
    path = next((path for path, module in model.named_modules() if module is inner), "")
    children = ((f"{path}.{name}".lstrip("."), child) for name, child in inner.named_children())
    return [name for name, child in children if name in ran and any(True for _ in child.parameters())]


def _place(model: nn.Module, error: Exception, forwards: list[Forward]) -> str:
    """Describe the innermost module with the error in the stack of its forward, and the last line outside torch."""
    name, _, frame, number = forwards[-1] if forwards else ("its forward pass", model, None, 0)
    for inner, line in walk_tb(error.__traceback__):
        package = inner.f_globals.get("__name__", "")
        if not package.startswith(("torch.", str(__package__))):
            frame, number = inner, line
    if frame is None:
        return name
    file = frame.f_code.co_filename
    return f"{name} (line {number} of {file}: `{linecache.getline(file, number).strip()}`)"


def _forwards(model: nn.Module, error: BaseException) -> list[Forward]:
    """Return the forward passes in the stack of an error, outer before inner: module, its name, frame and line."""
    whole = f"the forward pass of this {type(model).__name__}"
    modules = {
        id(module): (f"{name}, a {type(module).__name__}" if name else whole, module)
        for name, module in model.named_modules()
    }
    cause: BaseException | None = error
    while cause is not None:
        found = []
        for frame, number in walk_tb(cause.__traceback__):
            owner = id(frame.f_locals.get(*frame.f_code.co_varnames[:1] or ("",)))
            if owner in modules and frame.f_code.co_name == "forward":
                found.append((*modules[owner], frame, number))
        if found:
            return found
        cause = cause.__cause__ or cause.__context__
    return []
