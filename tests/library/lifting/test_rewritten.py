"""Forward code whose residual sums became modules: arguments, control flow and modes are as they were."""

from __future__ import annotations

import inspect
import pickle
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import normless as nl
from normless.edits import ScaleSums
from normless.nn import ResidualSum
from normless.nn._activation import ShiftedActivation

X, MASK = torch.randn(3, 4), torch.rand(3, 1)
close = torch.testing.assert_close


class Block(nn.Module):
    """Its code depends on all arguments but `note`."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer = nn.BatchNorm1d(4), nn.Linear(4, 4)

    def forward(
        self, x: Tensor, scale: float = 1.0, *, mask: Tensor | None = None, twice: bool = False, note: object = None
    ) -> Any:
        y = self.layer(self.norm(x)) * scale
        if mask is not None:
            y = y * mask
        return x + (2 * y if twice else y)


class Network(nn.Module):
    """Calls its blocks by position and by name."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.first, self.second, self.head = nn.Linear(4, 4), Block(), Block(), nn.Linear(4, 2)

    def forward(self, x: Tensor, scale: float = 1.0, mask: Tensor | None = None, twice: bool = False) -> Any:
        h = self.first(self.stem(x), scale, mask=mask, note=x)
        return self.head(self.second(h, twice=twice, scale=scale, mask=mask))


CALLS: list[dict[str, Any]] = [{}, {"scale": 2.0}, {"mask": MASK}, {"scale": 0.5, "mask": MASK, "twice": True}]


@pytest.mark.parametrize("made", CALLS, ids=lambda kwargs: "-".join(kwargs) or "defaults")
def test_a_network_converted_with_some_arguments_takes_any(made: dict[str, Any]) -> None:
    """(x + f(x))/√2 in the place of the sums, by the original blocks; the signature and the names stay."""
    model = Network().eval()
    net = nl.convert(model, "batch_norm_sqrt2", X, **made)
    for rows in (3, 7):
        for called in CALLS:
            x = torch.randn(rows, 4)
            given = {name: torch.rand(rows, 1) if name == "mask" else value for name, value in called.items()}
            h = model.first(model.stem(x), **given | {"twice": False}) / 2**0.5
            close(net(x, **given), model.head(model.second(h, **given) / 2**0.5))
    assert isinstance(net.second.get_submodule("residual_sum"), ResidualSum)
    old, new = type(model.first).forward, type(net.first).forward
    assert inspect.signature(new) == inspect.signature(old)
    assert (new.__qualname__, new.__module__) == (old.__qualname__, old.__module__)
    assert isinstance(net.first, Block)
    assert "self.residual_sum(x, 2 * y if twice else y)" in inspect.getsource(new)


def added(x: Tensor, y: Tensor, rate: float = 0.0, *, training: bool = True) -> Tensor:
    """As transformers' Falcon adds."""
    y = nn.functional.dropout(y, rate, training)
    return x + y


def added_twice(x: Tensor, y: Tensor) -> Tensor:
    """Adds in a function of its own."""
    return added(x, 2 * y)


class Called(nn.Module):
    """Two sums, each of a skip path and a branch, by a function; `scale` is an argument of its forward code."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.first, self.second = (nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)) for _ in range(2))
        self.keep()

    def keep(self) -> None:
        """What subclasses keep in attributes."""

    def one(self, x: Tensor) -> Any:
        return self.first(self.norm(x))

    def two(self, x: Tensor) -> Any:
        return self.second(x)

    def forward(self, x: Tensor, scale: float = 1.0) -> Any:
        x = added(x, self.one(x) * scale)
        return added(x, self.two(x), training=self.training)


class Nested(Called):
    """The function calls another."""

    def forward(self, x: Tensor, scale: float = 1.0) -> Any:
        x = added_twice(x, self.one(x) / 2 * scale)
        return added_twice(x, self.two(x) / 2)


class Static(Called):
    @staticmethod
    def plus(x: Tensor, y: Tensor) -> Tensor:
        return x.add(y)

    def forward(self, x: Tensor, scale: float = 1.0) -> Any:
        x = self.plus(x, self.one(x) * scale)
        return Static.plus(y=self.two(x), x=x)


class Method(Called):
    """A method adds, twice in one call, by a private name, and takes any number of arguments."""

    def __plus(self, x: Tensor, branch: Any, scale: float = 1.0) -> Any:
        return x + branch(x) * scale

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.__plus(self.__plus(args[0], self.one, **kwargs), self.two)


class Inherited(Called):
    """The sums are in the forward that it overrides, one of them in a method that it extends."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return super().forward(*args, **kwargs)


class InLoop(Called):
    """One call of the function adds several times."""

    def forward(self, x: Tensor, scale: float = 1.0) -> Any:
        for branch, factor in ((self.one, scale), (self.two, 1.0)):
            x = added(x, branch(x) * factor)
        return x


class Processor:
    """Computes for a module, as attention processors of diffusers do."""

    def __call__(self, block: Called, x: Tensor, scale: float) -> Any:
        x = x + block.one(x) * scale
        return x + block.two(x)


class Processed(Called):
    def keep(self) -> None:
        self.processor = Processor()

    def forward(self, x: Tensor, scale: float = 1.0) -> Any:
        return self.processor(self, x, scale)


class Keeping(Called):
    """The addition is a method that it chose when it was built."""

    def keep(self) -> None:
        self.fusion: Any = self._add

    def _add(self, x: Tensor, y: Tensor, factor: float = 1.0) -> Tensor:
        return x + factor * y

    def _mean(self, x: Tensor, y: Tensor) -> Tensor:
        return (x + y) / 2

    def forward(self, x: Tensor, scale: float = 1.0) -> Any:
        x = self.fusion(x, self.one(x) * scale)
        return self.fusion(x, self.two(x))


class ByValue(Called):
    """Computes by values of shapes and by its mode."""

    def forward(self, x: Tensor, scale: float = 1.0) -> Any:
        y = self.one(x)
        if x.shape[0] % 2 and len(x) > 2:
            y = y[range(len(y))]
        if self.training:
            y = y * 1.0
        x = torch.add(y * scale, x)
        return x + self.two(x)


class Checkpointed(Called):
    """Its code runs once more in the backward pass."""

    def _run(self, x: Tensor, scale: float) -> Any:
        x = x.add(self.one(x) * scale)
        return x + self.two(x)

    def forward(self, x: Tensor, scale: float = 1.0) -> Any:
        return checkpoint(self._run, x, scale, use_reentrant=False)


KINDS = [Called, Nested, Static, Method, Inherited, InLoop, Processed, Keeping, ByValue, Checkpointed]
HALVED = nl.Scheme("halved", (ScaleSums(0.5),))


@pytest.mark.parametrize("kind", KINDS)
def test_every_sum_is_a_module_of_its_own(kind: type[Called]) -> None:
    block = kind().train(kind is not InLoop)
    model = nn.Sequential(nn.Linear(4, 4), block)
    net = nl.convert(model, HALVED, X)
    sums = [name for name, module in net.named_modules() if isinstance(module, ResidualSum)]
    assert sums == ["1.residual_sum", "1.residual_sum_2"]
    assert isinstance(net[1], kind)
    assert type(model[1]) is kind
    for x, scale in ((X, 1.0), (torch.randn(2, 4), 3.0)):
        expected = (x + block.one(x) * scale) / 2
        expected = (expected + block.two(expected)) / 2
        for one in (net, deepcopy(net), pickle.loads(pickle.dumps(net))):
            close(one[1](x, scale=scale), expected)
        if kind is Checkpointed:
            inner = net[1]
            ours = torch.autograd.grad(inner(x, scale=scale).sum(), inner.first[0].weight)[0]  # type: ignore[arg-type]
            close(ours, torch.autograd.grad(expected.sum(), block.first[0].weight)[0])  # type: ignore[arg-type]
    if kind is not Checkpointed:
        close(torch.export.export(net.eval(), (X,), strict=False).module()(X), net(X))


class Loop(nn.Module):
    """All of its blocks in one forward, two sums in a line of a loop; `steps` of them run."""

    def __init__(self) -> None:
        super().__init__()
        pairs = [nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)]) for _ in range(3)]
        self.stem, self.pairs, self.norm = nn.Linear(4, 4), nn.ModuleList(pairs), nn.LayerNorm(4)

    def forward(self, x: Tensor, steps: int = 3) -> Any:
        x = self.stem(x)
        for step in range(steps):
            pair: Any = self.pairs[step % 3]
            first, second = pair
            x = first(x.tanh()) + x; x = x + second(x.tanh())  # fmt: skip  # noqa: E702
        return self.norm(x)


@pytest.mark.filterwarnings("default")  # the compiler's own
def test_the_sums_of_a_loop_are_modules_of_their_own() -> None:
    model = Loop()
    net = nl.convert(model, HALVED, X)
    sums = [name for name, module in net.named_modules() if isinstance(module, ResidualSum)]
    assert sums == ["residual_sum", *(f"residual_sum_{number}" for number in range(2, 7))]
    h, pairs = model.stem(X), list[Any](model.pairs)
    for first, second in pairs:
        h = (first(h.tanh()) + h) / 2
        h = (h + second(h.tanh())) / 2
    close(net(X), model.norm(h))
    assert torch.isfinite(net(X, steps=2)).all()
    with pytest.raises(nl.errors.FixedArgumentError, match="that ran 3 times on the example inputs"):
        net(X, steps=4)
    torch.compiler.reset()
    compiled: Any = torch.compile(net, backend="eager", fullgraph=True)
    close(compiled(X), net(X))
    close(torch.export.export(net, (X,)).module()(X), net(X))


class Gated(nn.Module):
    """A block whose gate is a function of torch that calls a method of its tensor, or that method."""

    def __init__(self, gate: str) -> None:
        super().__init__()
        self.norm, self.gate = nn.LayerNorm(4), gate
        self.value, self.weights, self.out = (nn.Linear(4, 4) for _ in range(3))
        self.function = functional.sigmoid

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        weights = self.weights(h) * 2
        if self.gate == "attribute":
            gate = self.function(weights)
        elif self.gate == "function":
            gate = functional.sigmoid(weights)
        elif self.gate == "tanh":
            gate = functional.tanh(weights)
        else:
            gate = weights.sigmoid()
        y: Tensor = x + self.out(self.value(h) * gate)
        return y


@pytest.mark.parametrize("gate", ["attribute", "function", "tanh", "method"])
def test_a_function_that_calls_a_method_is_the_expression(gate: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), Gated(gate), Gated(gate), nn.Linear(4, 2))
    net: Any = nl.convert(model, "as_written + ScalarBiases()", X)
    close(net(X), model(X))
    (shifted,) = (module for module in net[1].modules() if isinstance(module, ShiftedActivation))
    nn.init.constant_(shifted.input_bias, 0.6)  # type: ignore[arg-type]
    with torch.no_grad():
        model[1].get_submodule("weights").bias += 0.3  # type: ignore[operator]
    close(net(X), model(X))
