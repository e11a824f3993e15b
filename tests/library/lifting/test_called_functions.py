"""Sums in functions that forward code calls: static, of a base class, of another object, in a loop, kept in attributes."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import normless as nl
from normless.edits import ScaleSums
from normless.nn import ResidualSum

X = torch.randn(3, 4)
HALVED = nl.Scheme("halved", (ScaleSums(0.5),))


def added(x: Tensor, y: Tensor, rate: float = 0.0, *, training: bool = True) -> Tensor:
    """As transformers' Falcon adds."""
    y = nn.functional.dropout(y, rate, training)
    return x + y


def added_twice(x: Tensor, y: Tensor) -> Tensor:
    """Adds in a function of its own."""
    return added(x, 2 * y)


class Block(nn.Module):
    """Two sums, each of a skip path and a branch."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.first, self.second = (nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)) for _ in range(2))
        self.keep()

    def keep(self) -> None:
        """What subclasses keep in attributes."""

    def one(self, x: Tensor) -> Tensor:
        return self.first(self.norm(x))  # type: ignore[no-any-return]

    def two(self, x: Tensor) -> Tensor:
        return self.second(x)  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        x = added(x, self.one(x))
        return added(x, self.two(x), training=self.training)


class Nested(Block):
    """The function calls another."""

    def forward(self, x: Tensor) -> Tensor:
        x = added_twice(x, self.one(x) / 2)
        return added_twice(x, self.two(x) / 2)


class Static(Block):
    """A static method adds."""

    @staticmethod
    def plus(x: Tensor, y: Tensor) -> Tensor:
        return x.add(y)

    def forward(self, x: Tensor) -> Tensor:
        x = self.plus(x, self.one(x))
        return Static.plus(y=self.two(x), x=x)


class Method(Block):
    """A method adds, twice in one call, by a private name."""

    def __plus(self, x: Tensor, branch: Callable[[Tensor], Tensor]) -> Tensor:
        return x + branch(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.__plus(self.__plus(x, self.one), self.two)


class Inherited(Block):
    """The sums are in the forward that it overrides, one of them in a method that it extends."""

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return super().forward(*args, **kwargs)


class InLoop(Block):
    """One call of the function adds several times."""

    def forward(self, x: Tensor) -> Tensor:
        for branch in (self.one, self.two):
            x = added(x, branch(x))
        return x


class Processor:
    """Computes for a module, as attention processors of diffusers do."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, block: Block, x: Tensor) -> Tensor:
        x = x + block.one(x) * self.factor
        return x + block.two(x) * self.factor


class Processed(Block):
    """An object of its own computes."""

    def keep(self) -> None:
        self.processor = Processor(1.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.processor(self, x)


class Keeping(Block):
    """The addition is a method that it chose when it was built."""

    def keep(self) -> None:
        self.fusion: Any = self._add

    def _add(self, x: Tensor, y: Tensor, factor: float = 1.0) -> Tensor:
        return x + factor * y

    def _mean(self, x: Tensor, y: Tensor) -> Tensor:
        return (x + y) / 2

    def forward(self, x: Tensor) -> Any:
        x = self.fusion(x, self.one(x))
        return self.fusion(x, self.two(x))


class OfADictionary(Keeping):
    def keep(self) -> None:
        self.ways = {"mean": self._mean, "add": self._add}

    def forward(self, x: Tensor) -> Any:
        x = self.ways["add"](x, self.one(x))
        return self.ways["add"](x, self.two(x))


class Partially(Keeping):
    def keep(self) -> None:
        self.fusion = partial(self._add, factor=1.0)


KINDS = [Block, Nested, Static, Method, Inherited, InLoop, Processed, Keeping, OfADictionary, Partially]


@pytest.mark.parametrize("kind", KINDS)
def test_every_sum_is_a_module_of_its_own(kind: type[Block]) -> None:
    model = nn.Sequential(nn.Linear(4, 4), kind(), kind())
    net = nl.convert(model, HALVED, X)
    sums = [name for name, module in net.named_modules() if isinstance(module, ResidualSum)]
    assert sums == [f"{block}.{name}" for block in (1, 2) for name in ("residual_sum", "residual_sum_2")]
    assert isinstance(net[1], kind)
    assert type(model[1]) is kind
    other = torch.randn(5, 4)
    expected = model[0](other)
    for block in model[1:]:
        expected = (expected + block.one(expected)) / 2  # type: ignore[operator]
        expected = (expected + block.two(expected)) / 2  # type: ignore[operator]
    for one in (net, deepcopy(net), pickle.loads(pickle.dumps(net)), net.eval()):
        torch.testing.assert_close(one(other), expected)
    torch.testing.assert_close(torch.export.export(net, (X,)).module()(X), net(X))


@pytest.mark.parametrize(
    ("kind", "scheme"),
    [(Static, "skipinit"), (Inherited, "skipinit(alpha=1, keep_scale=False)"), (Processed, "fixup")],
)
def test_the_schemes_take_them(kind: type[Block], scheme: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), kind(), kind())
    net = nl.convert(model, scheme, X)
    assert not any(isinstance(module, nn.LayerNorm) for module in net.modules())
    h = model[0](X)
    for block in model[1:] if "alpha=1" in scheme else ():
        h = h + block.first(h)  # type: ignore[operator]
        h = h + block.second(h)  # type: ignore[operator]
    torch.testing.assert_close(net(X), h)


class ByValue(Block):
    """What it calls has no fixed name."""

    def forward(self, x: Tensor) -> Tensor:
        return [added][0](x, self.one(x))


class Unnamed(Block):
    """What it calls is a function of a function, which no other process can import."""

    def forward(self, x: Tensor) -> Tensor:
        return local(x, self.one(x))


def _make() -> Callable[[Tensor, Tensor], Tensor]:
    def local_sum(x: Tensor, y: Tensor) -> Tensor:
        return x + y

    return local_sum


local = _make()


@pytest.mark.parametrize(
    ("kind", "said"), [(ByValue, r"`\[added\]\[0\]` does not name"), (Unnamed, "local_sum does")]
)
def test_a_function_without_a_name_is_refused_with_the_reason(kind: type[Block], said: str) -> None:
    with pytest.raises(nl.UnsupportedEditError, match=said):
        nl.convert(kind(), HALVED, X)
