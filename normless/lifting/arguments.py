"""The arguments of a forward that is rewritten: tensors, which a trace follows, and values that are fixed in it."""

from __future__ import annotations

import dis
import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from normless.errors import LiftError
from normless.lifting.calls import Call, holds_tensors

# The names in a function's code by which it could read an argument without naming it.
_LOOKING_AROUND = {"locals", "vars", "dir", "eval", "exec", "currentframe", "_getframe"}


class Arguments:
    """The arguments of one call of a module's forward, and how its rewritten code takes them.

    `tensors` are those that are or hold tensors, by name, in the order of the signature; also those among the
    keywords that the signature does not name. The rewritten code refuses other values of all others.
    """

    def __init__(self, module: nn.Module, call: Call) -> None:
        self._function: Callable[..., Any] = type(module).forward
        self._kind = type(module).__name__
        self._signature = inspect.signature(module.forward)
        self._bound = self._signature.bind(*call.args, **call.kwargs)
        self._bound.apply_defaults()
        self.tensors: dict[str, Any] = {}
        for name, value in self._bound.arguments.items():
            kind = self._signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_POSITIONAL and holds_tensors(value):
                raise LiftError(f"its forward takes any number of tensors as {name}")
            named = value if kind is inspect.Parameter.VAR_KEYWORD else {name: value}
            self.tensors |= {key: one for key, one in named.items() if holds_tensors(one)}

    def call(self, module: nn.Module, *tensors: Any) -> Any:
        """Call the forward with others in the place of the tensors."""
        others = dict(zip(self.tensors, tensors, strict=True))
        arguments = {
            name: value | {key: others[key] for key in value if key in others}
            if self._is_rest(name)
            else others.get(name, value)
            for name, value in self._bound.arguments.items()
        }
        bound = inspect.BoundArguments(self._signature, arguments)
        return self._function(module, *bound.args, **bound.kwargs)

    def _is_rest(self, name: str) -> bool:
        """Whether this is the parameter that gathers the keywords which the signature does not name."""
        return self._signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD

    def head(self) -> str:
        """The code before the traced operations: the signature as it was, and what refuses other values."""
        parameters = [
            one if one.default is one.empty else one.replace(default=_Code(_written(one.default, one.name)))
            for one in self._signature.parameters.values()
        ]
        first = [one.kind for one in parameters if one.kind is one.POSITIONAL_ONLY]
        itself = inspect.Parameter("self", first[0] if first else inspect.Parameter.POSITIONAL_OR_KEYWORD)
        plain = [one.replace(annotation=one.empty) for one in parameters]
        lines = [f"def forward{inspect.Signature([itself, *plain])}:", *self._checks()]
        return "\n".join(lines) + "\n"

    def _checks(self) -> list[str]:
        """A line for every argument whose value the code may depend on."""
        lines = []
        for name, value in self._bound.arguments.items():
            where = f"{self._kind!r}, {name!r}, {name}"
            if self._is_rest(name):
                lines += self._checks_of_rest(name, value)
                continue
            if not _may_read(self._function, name):
                continue
            if name not in self.tensors:
                lines.append(f"    normless_require({where}, {_written(value, name)})")
            elif self._signature.parameters[name].default is not inspect.Parameter.empty:
                lines.append(f"    normless_require_tensors({where})")
        return lines

    def _checks_of_rest(self, name: str, value: dict[str, Any]) -> list[str]:
        """The lines for keywords that the signature does not name: tensors become variables, the rest is fixed."""
        tensors = tuple(key for key in value if key in self.tensors)
        lines = []
        for key in tensors:
            lines.append(f"    normless_require_tensors({self._kind!r}, {key!r}, {name}.get({key!r}))")
            lines.append(f"    {key} = {name}[{key!r}]")
        if _may_read(self._function, name):
            plain = {key: one for key, one in value.items() if key not in tensors}
            rest = f"{{key: one for key, one in {name}.items() if key not in {tensors!r}}}"
            lines.append(f"    normless_require({self._kind!r}, {name!r}, {rest}, {_written(plain, name)})")
        return lines


class _Code:
    """Prints as a piece of code."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _written(value: Any, name: str) -> str:
    """The code of a value; of the types that `normless.lifting.argument_guards` compares."""
    if value is None or type(value) in (bool, int, str, bytes) or value is Ellipsis:
        return repr(value)
    if type(value) is float:
        return repr(value) if math.isfinite(value) else f"float({str(value)!r})"
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return repr(value)
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    if type(value) in (tuple, torch.Size):
        return f"({''.join(f'{_written(one, name)}, ' for one in value)})"
    if type(value) is list:
        return f"[{', '.join(_written(one, name) for one in value)}]"
    if type(value) is dict:
        return f"{{{', '.join(f'{_written(key, name)}: {_written(one, name)}' for key, one in value.items())}}}"
    raise LiftError(f"its forward takes a {type(value).__name__} as {name}, which cannot be written into code")


def _may_read(function: Callable[..., Any], name: str) -> bool:
    """Whether a function may read an argument; False only where its instructions show that it does not."""
    code = getattr(function, "__code__", None)
    if code is None or hasattr(function, "__wrapped__") or name not in code.co_varnames:
        return True
    if name in code.co_cellvars or _LOOKING_AROUND & {*code.co_names}:
        return True
    return any(
        "LOAD" in one.opname and (one.argval == name or (isinstance(one.argval, tuple) and name in one.argval))
        for one in dis.get_instructions(code)
    )
