"""The modules and parameters of a network by name, where one may have several."""

from __future__ import annotations

from math import prod

from torch import nn


class Names:
    """The modules and parameters of a network by all of their names, and the first, which `named_modules` lists."""

    def __init__(self, model: nn.Module) -> None:
        self.modules = dict(model.named_modules(remove_duplicate=False))
        self.parameters = dict(model.named_parameters(remove_duplicate=False))
        named = (*self.parameters.items(), *self.modules.items())
        self._first: dict[int, str] = {id(one): name for name, one in reversed(named)}

    def canonical(self, path: str) -> str:
        """The first name of the module that has this one."""
        return self._first[id(self.modules[path])]

    def parameter(self, name: str) -> str:
        """The first name of the parameter that has this one."""
        return self._first[id(self.parameters[name])]

    def weight_of(self, parameters: tuple[str, ...]) -> str:
        """The largest of some parameters, by its first name: the weight among a layer's."""
        return self.parameter(max(parameters, key=lambda name: self.parameters[name].numel()))

    def window(self, parameters: tuple[str, ...]) -> int:
        """The number of positions that a layer's weight spans: 1 but for a convolution of a larger kernel."""
        return prod(max((self.parameters[name].shape for name in parameters), key=len, default=())[2:])
