"""The networks of the census: an expression that builds each, as a user of its package writes it, and its inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from normless._internal.arguments import arguments_of
from normless.errors import MissingExtraError

TABLES = Path(__file__).with_name("networks")


class Names(dict[str, Any]):
    """The names of several modules, the first that has one, their submodules, and those of torch."""

    def __init__(self, modules: Sequence[str]) -> None:
        super().__init__()
        self.modules = [import_module(name) for name in (*modules, "torch")]

    def __missing__(self, name: str) -> Any:
        for module in self.modules:
            if hasattr(module, name):
                return getattr(module, name)
        for module in self.modules:
            full = f"{module.__name__}.{name}"
            if hasattr(module, "__path__") and find_spec(full) is not None:
                return import_module(full)
        raise KeyError(name)


@dataclass(frozen=True)
class Network:
    """A network of another package.

    Attributes:
        package: the name of its table.
        text: the expression that builds it, which is its name as well.
        inputs: the expression of its example inputs: a tensor, a tuple or a dictionary, of two examples.
        modules: those whose names the expressions use, beside torch's.
        shared: names that expressions may use, each with its own expression.
        batched: whether the first dimension of inputs and outputs numbers examples.
        training: the expression of the inputs in training mode, where they are others.
    """

    package: str
    text: str
    inputs: str
    modules: tuple[str, ...] = ()
    shared: Mapping[str, str] = field(default_factory=dict)
    batched: bool = True
    training: str | None = None

    def build(self, seed: int) -> nn.Module:
        """The network with random weights."""
        torch.manual_seed(seed)
        model = self._value(self.text)
        assert isinstance(model, nn.Module), f"{self.text} is no module"
        return model

    def arguments(self, seed: int, *, training: bool = False) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Its example inputs, by position and by name."""
        torch.manual_seed(seed)
        value = self._value((self.training if training else None) or self.inputs)
        return arguments_of(value)

    def _value(self, text: str) -> Any:
        names = Names(self.modules)
        shared = {name: eval(one, {}, names) for name, one in self.shared.items()}
        return eval(text, shared, names)


@cache
def tables() -> tuple[str, ...]:
    """The packages of the census, in the order of the alphabet."""
    return tuple(sorted(path.stem for path in TABLES.glob("*.yaml")))


def networks(packages: Sequence[str] | None = None, count: int | None = None) -> tuple[Network, ...]:
    """The networks of some packages, of all if None; `count` of each, evenly spaced in its table, all if None.

    Raises:
        ValueError: the census has no table of a package.
        MissingExtraError: a package is not installed.
    """
    chosen: list[Network] = []
    for package in tables() if packages is None else packages:
        if package not in tables():
            raise ValueError(f"Expected a package of the census, {', '.join(tables())}; got {package!r}.")
        listed = list(_read(package))
        missing = [module for module in listed[0].modules if find_spec(module.partition(".")[0]) is None]
        if missing:
            raise MissingExtraError(
                f"The census of {package} needs {missing[0]}, not installed here: pip install -r "
                "benchmarks/census/requirements.txt.",
                name=missing[0],
            )
        some = len(listed) if count is None else min(count, len(listed))
        chosen += [listed[number * len(listed) // some] for number in range(some)]
    return tuple(chosen)


def _read(package: str) -> Iterator[Network]:
    import yaml

    table = yaml.safe_load((TABLES / f"{package}.yaml").read_text())
    for group in table["groups"]:
        for text in group["networks"]:
            yield Network(
                package,
                text,
                group["inputs"],
                tuple(table["modules"]),
                table.get("shared", {}),
                group.get("batched", True),
                group.get("training"),
            )
