"""Forward code whose residual sums became modules: arguments, control flow and modes are as they were."""

from __future__ import annotations

import inspect
from functools import wraps
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import normless as nl
from normless.edits import ScaleSums
from normless.nn import ResidualSum

X = torch.randn(3, 4)
MASK = torch.rand(3, 1)


class Block(nn.Module):
    """Its code depends on all arguments but `note`."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer = nn.BatchNorm1d(4), nn.Linear(4, 4)

    def forward(
        self, x: Tensor, scale: float = 1.0, *, mask: Tensor | None = None, twice: bool = False, note: object = None
    ) -> Tensor:
        y = self.layer(self.norm(x)) * scale
        if mask is not None:
            y = y * mask
        return x + (2 * y if twice else y)


class Network(nn.Module):
    """Calls its blocks by position and by name."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.first, self.second, self.head = nn.Linear(4, 4), Block(), Block(), nn.Linear(4, 2)

    def forward(self, x: Tensor, scale: float = 1.0, mask: Tensor | None = None, twice: bool = False) -> Tensor:
        h = self.first(self.stem(x), scale, mask=mask, note=x)
        return self.head(self.second(h, twice=twice, scale=scale, mask=mask))


def halved(model: Network, x: Tensor, **kwargs: Any) -> Tensor:
    """What the network computes with (x + f(x))/√2 in the place of its sums, by its original blocks."""
    h = model.stem(x)
    for index, block in enumerate((model.first, model.second)):
        options = dict(kwargs, twice=index == 1 and kwargs.get("twice", False))
        h = block(h, **options) / 2**0.5
    return model.head(h)


CALLS: list[dict[str, Any]] = [{}, {"scale": 2.0}, {"mask": MASK}, {"scale": 0.5, "mask": MASK, "twice": True}]


@pytest.fixture
def model() -> Network:
    torch.manual_seed(0)
    return Network().eval()


@pytest.mark.parametrize("made", CALLS, ids=lambda kwargs: "-".join(kwargs) or "defaults")
def test_a_network_converted_with_some_arguments_takes_any(model: Network, made: dict[str, Any]) -> None:
    net = nl.convert(model, "batch_norm_sqrt2", X, **made)
    assert isinstance(net.second.get_submodule("residual_sum"), ResidualSum)
    for called in CALLS:
        torch.testing.assert_close(net(X, **called), halved(model, X, **called))
        other = torch.randn(7, 4)
        many = {name: torch.rand(7, 1) if name == "mask" else value for name, value in called.items()}
        torch.testing.assert_close(net(other, **many), halved(model, other, **many))


def test_the_signature_and_the_names_stay(model: Network) -> None:
    net = nl.convert(model, "batch_norm_sqrt2", X, scale=2.0)
    old, new = type(model.first).forward, type(net.first).forward
    assert inspect.signature(new) == inspect.signature(old)
    assert (new.__qualname__, new.__module__) == (old.__qualname__, old.__module__)
    assert isinstance(net.first, Block)
    assert "self.residual_sum(x, 2 * y if twice else y)" in inspect.getsource(new)


class Peeking(Block):
    """Reads an argument without naming it."""

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:  # type: ignore[override]
        y = self.layer(self.norm(x)) * locals()["scale"]
        return x + y


class InClosure(Block):
    """Reads an argument, and adds, in a function of its own."""

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:  # type: ignore[override]
        def added(y: Tensor) -> Tensor:
            return x + y * scale

        return added(self.layer(self.norm(x)))


class Private(Block):
    """Adds in a method with a mangled name, in place, and takes any number of arguments."""

    def __added(self, skip: Tensor, branch: Tensor) -> Tensor:
        branch += skip
        return branch

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        (x,) = args
        return self.__added(x, self.layer(self.norm(x)) * kwargs.get("scale", 1.0))


class ByValue(Block):
    """Computes by values of shapes and by its mode."""

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:  # type: ignore[override]
        y = self.layer(self.norm(x))
        if x.shape[0] % 2 and len(x) > 2:
            y = y[range(len(y))]
        if self.training:
            y = y * 1.0
        return torch.add(y * scale, x)


def doubled(function: Any) -> Any:
    """A decorator that doubles the result."""

    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return 2 * function(*args, **kwargs)

    return wrapper


class Decorated(Block):
    """Its forward is decorated."""

    @doubled
    @torch.no_grad()
    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:  # type: ignore[override]
        return x + self.layer(self.norm(x)) * scale


class Checkpointed(Block):
    """Its code runs once more in the backward pass."""

    def _run(self, x: Tensor, scale: float) -> Tensor:
        return x.add(self.layer(self.norm(x)) * scale)

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:  # type: ignore[override]
        return checkpoint(self._run, x, scale, use_reentrant=False)


BLOCKS = [Peeking, InClosure, Private, ByValue, Decorated, Checkpointed]


@pytest.mark.parametrize("kind", BLOCKS)
def test_what_a_trace_could_not_follow(kind: type[Block]) -> None:
    block = kind().train(kind in (ByValue, Checkpointed))
    net = nl.convert(block, "batch_norm_sqrt2", X)
    for batch, scale in ((X, 1.0), (X[:2], 3.0)):
        torch.testing.assert_close(net(batch, scale=scale), block(batch, scale=scale) / 2**0.5)


def test_the_gradient_of_checkpointed_code_is_that_of_the_new_sum() -> None:
    block = Checkpointed().eval()
    net = nl.convert(block, "batch_norm_sqrt2", X)
    one, other = (torch.autograd.grad(module(X).pow(2).sum(), module.layer.weight)[0] for module in (net, block))
    torch.testing.assert_close(one, other / 2)


class Loop(nn.Module):
    """All of its blocks in one forward, two sums in a line of a loop; `steps` of them run."""

    def __init__(self) -> None:
        super().__init__()
        pairs = [nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)]) for _ in range(3)]
        self.stem, self.pairs, self.norm = nn.Linear(4, 4), nn.ModuleList(pairs), nn.LayerNorm(4)

    def forward(self, x: Tensor, steps: int = 3) -> Tensor:
        x = self.stem(x)
        for step in range(steps):
            first, second = self.pairs[step % 3]
            x = first(x.tanh()) + x; x = x + second(x.tanh())  # fmt: skip  # noqa: E702
        return self.norm(x)


def test_the_sums_of_a_loop_are_modules_of_their_own() -> None:
    model = Loop()
    net = nl.convert(model, nl.Scheme("sums", (ScaleSums(0.5),)), X)
    sums = [name for name, module in net.named_modules() if isinstance(module, ResidualSum)]
    assert sums == ["residual_sum", *(f"residual_sum_{number}" for number in range(2, 7))]
    h = model.stem(X)
    for first, second in model.pairs:
        h = (first(h.tanh()) + h) / 2
        h = (h + second(h.tanh())) / 2
    torch.testing.assert_close(net(X), model.norm(h))
    assert torch.isfinite(net(X, steps=2)).all()
    with pytest.raises(nl.FixedArgumentError, match="that ran 3 times on the example inputs"):
        net(X, steps=4)


@pytest.mark.filterwarnings("default")  # the compiler's own
def test_compile_and_export_a_loop() -> None:
    torch.compiler.reset()
    net = nl.convert(Loop(), nl.Scheme("sums", (ScaleSums(0.5),)), X)
    torch.testing.assert_close(torch.compile(net, backend="eager", fullgraph=True)(X), net(X))
    torch.testing.assert_close(torch.export.export(net, (X,)).module()(X), net(X))
