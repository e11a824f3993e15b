"""Export a network to a graph without changing it, and record the call in forward code that makes each operation."""

from __future__ import annotations

import linecache
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import is_dataclass
from functools import wraps
from threading import get_ident
from traceback import walk_tb
from types import FrameType
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._functorch import config as functorch_config
from torch.export import ExportedProgram, export
from torch.fx import Node
from torch.fx import config as fx_config
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.fx.experimental import _config as symbolic_config
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, PendingUnbackedSymbolNotFound
from torch.fx.traceback import annotate, preserve_node_meta
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from normless._internal.arguments import unfitting
from normless._internal.exclusive import borrowing, exclusive
from normless._internal.state import preserve_random_state, quiet, unfused
from normless.errors import InputsError, UnresolvedStructureError
from normless.lifting import Recorder

LONGEST_REASON = 300
# Keys of metadata: of a node, the number of its call; of the graph, the numbered calls.
CALL = "normless_call"
CALLS = "normless_calls"
FOLLOWS_VALUES = "normless_follows_values"
_READS = {torch.ops.aten.item.default, torch.ops.aten._local_scalar_dense.default}


@exclusive
def exported(model: nn.Module, inputs: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ExportedProgram:
    """Export a network on example inputs without changing weights, buffers, attributes, mode or random state."""
    scripted = next(
        (path for path, module in model.named_modules() if isinstance(module, torch.jit.ScriptModule)), None
    )
    if scripted is not None:
        raise UnresolvedStructureError(
            f"{scripted or 'This network'} is TorchScript, which torch.export cannot read and no edit can change. "
            "Map the module from which it was scripted."
        )
    recorder = Recorder(model)
    try:
        # Attributes that forward sets are restored; torch asks every buffer for its gradient.
        expected = quiet("The tensor attribute|The .grad attribute")
        with _untouched(model), _traced(model, recorder), torch.enable_grad(), expected:
            # Omitting the stack of each operation and the code of graphs that do not run saves a third of the time.
            without_text = patch.object(fx_config, "do_not_emit_stack_traces", True, create=True)
            # If export fails, torch prints the graph so far. Standard error belongs to other threads too.
            unprinted = patch("torch.export._trace.print", lambda *_, **__: None, create=True)
            own_flag = patch("torch.export._trace._compiling_state_context", _compiling, create=True)
            unkept = patch("torch.fx.graph_module._loader", _UnkeptSource(), create=True)
            with preserve_node_meta(), without_text, _use_lazy_graph_module(True), unprinted, own_flag, unkept:
                try:
                    program = export(model, inputs, dict(kwargs), strict=False)
                except GuardOnDataDependentSymNode as guard:
                    program = _exported_by_values(model, inputs, kwargs, guard)
    except Exception as error:
        raise _unfitting(model, error) or UnresolvedStructureError(_explanation(model, error)) from error
    program.graph_module.meta[CALLS] = recorder.calls
    return program


def _exported_by_values(
    model: nn.Module, inputs: tuple[Any, ...], kwargs: Mapping[str, Any], guard: GuardOnDataDependentSymNode
) -> ExportedProgram:
    """Export with lengths, masks and indices fixed to those of the example inputs.

    Raises:
        GuardOnDataDependentSymNode: the control flow depends on activations; this is the error `guard`.
    """
    soft = symbolic_config.patch(soft_pending_unbacked_not_found_error=True)  # type: ignore[attr-defined]
    try:
        with functorch_config.patch(fake_tensor_propagate_real_tensors=True), soft:
            program = export(model, inputs, dict(kwargs), strict=False)
    except RuntimeError as error:
        # torch 2.11 checks the activations in uninitialized memory.
        if "Runtime assertion failed" in str(error):
            raise guard from error
        raise
    if _reads_activations(program):
        raise guard
    program.graph_module.meta[FOLLOWS_VALUES] = True
    return program


def _reads_activations(program: ExportedProgram) -> bool:
    """Whether a Python number or truth value is read from a tensor that depends on activations."""
    inputs: set[Node] = set()
    activations: set[Node] = set()
    user_inputs = program.graph_signature.user_inputs
    for node in program.graph.nodes:
        if node.name in user_inputs or not inputs.isdisjoint(node.all_input_nodes):
            inputs.add(node)
            value = node.meta.get("val")
            is_floating = isinstance(value, Tensor) and value.is_floating_point()
            if is_floating or not activations.isdisjoint(node.all_input_nodes):
                activations.add(node)
                if node.target in _READS:
                    return True
    return False


@borrowing
def _untouched(model: nn.Module) -> Iterator[None]:
    """Undo changes of attributes and of the random state by a traced forward pass; disable fused attention."""
    attributes = {module: dict(vars(module)) for module in model.modules()}
    holders = (
        value
        for own in attributes.values()
        for value in own.values()
        if type(value) in (dict, OrderedDict, list, set)
    )
    contents = [(holder, holder.copy()) for holder in holders]
    try:
        # The fused encoder layer hides its residual sums.
        with unfused(), preserve_random_state(model):
            yield
    finally:
        for module, before in attributes.items():
            vars(module).clear()
            vars(module).update(before)
        for holder, content in contents:
            holder.clear()
            (holder.extend if isinstance(holder, list) else holder.update)(content)


@borrowing
def _traced(model: nn.Module, recorder: Recorder) -> Iterator[None]:
    """Record the calls of forward, and return the tensors of its output alone, since export knows few containers."""
    # A subclass overrides forward, not the instance, since export calls it on a proxy that names the modules.
    original = type(model)

    @wraps(original.forward)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> list[Tensor]:
        with _Traced(recorder):
            tensors = list(tensors_in(original.forward(self, *args, **kwargs)))
        if not tensors:
            raise TypeError("forward returned neither a tensor nor a structure that contains a tensor.")
        return tensors

    model.__class__ = type(original.__name__, (original,), {"forward": forward, "__module__": original.__module__})
    try:
        with recorder.following():
            yield
    finally:
        model.__class__ = original


class _UnkeptSource:
    """Stands for torch's store of the code of graphs, which would keep that of every export; others reach the store.

    The store is for tracebacks, and the graphs of exports are read and not run.
    """

    def __init__(self) -> None:
        self._store, self._thread = getattr(torch.fx.graph_module, "_loader", None), get_ident()

    def cache(self, source: str, *args: Any, **kwargs: Any) -> Any:
        """Return a name for the file of this code."""
        if self._store is None or get_ident() == self._thread:
            return "<normless export>"
        return self._store.cache(source, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class _OfThisThread:
    """A flag that is True for this thread and False for others, and for all once it has ended."""

    def __init__(self) -> None:
        self.thread = get_ident()

    def __bool__(self) -> bool:
        return self.thread == get_ident()

    def __or__(self, other: Any) -> Any:
        return bool(self) | other

    def __and__(self, other: Any) -> Any:
        return bool(self) & other

    def __eq__(self, other: object) -> bool:
        return bool(self) == other

    __ror__, __rand__, __hash__ = __or__, __and__, object.__hash__


@contextmanager
def _compiling() -> Iterator[None]:
    """Let `torch.compiler.is_compiling()` be true in this thread, as torch's context does in all of them.

    Optimizers, watches and norms that another thread trains with would take it for the compilation of their step.
    """
    compiler: Any = torch.compiler
    before, own = (compiler._is_compiling_flag, compiler._is_exporting_flag), _OfThisThread()
    try:
        compiler._is_compiling_flag, compiler._is_exporting_flag = own, True
        yield
    finally:
        own.thread = -1
        if compiler._is_compiling_flag is own:
            compiler._is_compiling_flag = before[0]
        compiler._is_exporting_flag = before[1]


class _Traced(TorchFunctionMode):
    """Annotate each operation with its call; read `x.data` as `x.detach()`, which export may treat as a constant."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == torch.Tensor.data.__get__:  # type: ignore[attr-defined]
            return args[0].detach()
        if torch.compiler.is_dynamo_compiling():
            return func(*args, **(kwargs or {}))
        with annotate({CALL: self.recorder.note(func, args, kwargs or {})}):
            return func(*args, **(kwargs or {}))


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Iterate over the tensors in a nested value, including those of data classes."""
    for leaf in tree_leaves(value):
        if isinstance(leaf, Tensor):
            yield leaf
        elif is_dataclass(leaf):
            yield from tensors_in(list(vars(leaf).values()))


def _explanation(model: nn.Module, error: Exception) -> str:
    reason = next(filter(None, map(str.strip, str(error).splitlines())), "no reason given")
    if len(reason) > LONGEST_REASON:
        reason = f"{reason[:LONGEST_REASON]}…"
    advice = "Check that forward takes these inputs"
    reason = f"{type(error).__name__}: {reason}"
    hidden = _hidden_submodule(model)
    if hidden:
        reason, advice = f"{hidden}, so that forward code gets the method", "Rename the submodule"
    elif isinstance(error, (GuardOnDataDependentSymNode, PendingUnbackedSymbolNotFound)):
        reason = "what it does there depends on the values of a tensor."
        advice = "Decide it by torch.where or torch.cond"
    return (
        f"torch.export could not trace this {type(model).__name__}: it stopped in {_place(model, error)}: "
        f"{reason if reason[-1] in '.…!?' else reason + '.'} "
        f"{advice}, or let the network state its structure by residual_structure() (normless.residual.Structure)."
    )


def _hidden_submodule(model: nn.Module) -> str:
    """Describe a submodule with the name of a method of its parent's class, which attribute access returns, or ""."""
    for path, module in model.named_modules():
        for name in module._modules:
            if callable(getattr(type(module), name, None)):
                where = f"{path}.{name}" if path else name
                return f"the submodule {where} has the name of a method of {type(module).__name__}"
    return ""


def _unfitting(model: nn.Module, error: Exception) -> InputsError | None:
    """Return the error of a layer whose input has another number of channels or features, or None."""
    innermost = _forwards(model, error)[-1:]
    return next((unfitting(name, module, frame.f_locals.get("input")) for name, module, frame, _ in innermost), None)


def _place(model: nn.Module, error: BaseException) -> str:
    """Describe the innermost module with the error in the stack of its forward, and the line there."""
    for name, _, frame, number in reversed(_forwards(model, error)):
        file = frame.f_code.co_filename
        return f"{name} (line {number} of {file}: `{linecache.getline(file, number).strip()}`)"
    return f"the forward pass of this {type(model).__name__}"


def _forwards(model: nn.Module, error: BaseException) -> list[tuple[str, nn.Module, FrameType, int]]:
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
            if owner in modules and frame.f_code.co_name == "forward" and frame.f_code.co_filename != __file__:
                found.append((*modules[owner], frame, number))
        if found:
            return found
        cause = cause.__cause__ or cause.__context__
    return []
