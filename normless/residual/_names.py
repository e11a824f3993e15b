"""The modules and parameters of a network by name; a shared module or parameter has several names."""

from __future__ import annotations

from math import prod

from torch import nn


class Names:
    """Look up modules and parameters by any of their names, and find the first name: the one in `named_modules`."""

    def __init__(self, model: nn.Module) -> None:
        self.modules = dict(model.named_modules(remove_duplicate=False))
        self.parameters = dict(model.named_parameters(remove_duplicate=False))
        named = (*self.parameters.items(), *self.modules.items())
        self._first: dict[int, str] = {id(member): name for name, member in reversed(named)}

    def canonical(self, path: str) -> str:
        """Return the first name of the module at `path`."""
        return self._first[id(self.modules[path])]

    def parameter(self, name: str) -> str:
        """Return the first name of the parameter called `name`."""
        return self._first[id(self.parameters[name])]

    def weight_of(self, parameters: tuple[str, ...]) -> str:
        """Return the first name of the largest of a layer's parameters, which is its weight."""
        return self.parameter(max(parameters, key=lambda name: self.parameters[name].numel()))

    def window(self, parameters: tuple[str, ...]) -> int:
        """Return the kernel size of a layer's weight in positions: 1 except for convolutions with a larger kernel."""
        return prod(max((self.parameters[name].shape for name in parameters), key=len, default=())[2:])
