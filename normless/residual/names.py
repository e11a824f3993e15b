"""One name for each module and parameter of a network, also for those that several modules share."""

from __future__ import annotations

from typing import Any

from torch import nn

from normless.residual.graph import Fixed


class Names:
    """The modules and parameters of a network by all of their names, and the first, which `named_modules` lists."""

    def __init__(self, model: nn.Module) -> None:
        self.modules = dict(model.named_modules(remove_duplicate=False))
        self.parameters = dict(model.named_parameters(remove_duplicate=False))
        self._first_module: dict[int, str] = {}
        for name, module in self.modules.items():
            self._first_module.setdefault(id(module), name)
        self._first_parameter: dict[int, str] = {}
        for name, parameter in self.parameters.items():
            self._first_parameter.setdefault(id(parameter), name)

    def canonical(self, path: str) -> str:
        """The first name of the module that has this one."""
        return self._first_module[id(self.modules[path])]

    def parameter(self, name: str) -> str:
        """The first name of the parameter that has this one."""
        return self._first_parameter[id(self.parameters[name])]

    def weight_of(self, parameters: tuple[str, ...]) -> str:
        """The largest of some parameters, by its first name: the weight among a layer's."""
        return self.parameter(max(parameters, key=lambda name: self.parameters[name].numel()))

    def gain_of(self, arguments: tuple[Any, ...]) -> str | None:
        """The gain of a standardized weight: beside the largest of its parameters, the only one that is no scalar."""
        weight = next((argument for argument in arguments if isinstance(argument, Fixed)), Fixed())
        sizes = {name: self.parameters[name].numel() for name in weight.parameters}
        vectors = [name for name in sorted(sizes, key=lambda name: sizes[name])[:-1] if sizes[name] > 1]
        return vectors[0] if len(vectors) == 1 else None
