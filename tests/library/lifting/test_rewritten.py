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


class Peeking(Block):
    """Reads an argument without naming it."""

    def forward(self, x: Tensor, scale: float = 1.0) -> Any:  # type: ignore[override]
        y = self.layer(self.norm(x)) * locals()["scale"]
        return x + y


class InClosure(Block):
    """Reads an argument, and adds, in a function of its own."""

    def forward(self, x: Tensor, scale: float = 1.0) -> Any:  # type: ignore[override]
        def added(y: Tensor) -> Tensor:
            return x + y * scale

        return added(self.layer(self.norm(x)))


class Private(Block):
    """Adds in a method with a mangled name, in place, and takes any number of arguments."""

    def __added(self, skip: Tensor, branch: Tensor) -> Tensor:
        branch += skip
        return branch

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        (x,) = args
        return self.__added(x, self.layer(self.norm(x)) * kwargs.get("scale", 1.0))


class ByValue(Block):
    """Computes by values of shapes and by its mode."""

    def forward(self, x: Tensor, scale: float = 1.0) -> Any:  # type: ignore[override]
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
    @doubled
    @torch.no_grad()
    def forward(self, x: Tensor, scale: float = 1.0) -> Any:  # type: ignore[override]
        return x + self.layer(self.norm(x)) * scale


class Checkpointed(Block):
    """Its code runs once more in the backward pass."""

    def _run(self, x: Tensor, scale: float) -> Tensor:
        return x.add(self.layer(self.norm(x)) * scale)

    def forward(self, x: Tensor, scale: float = 1.0) -> Any:  # type: ignore[override]
        return checkpoint(self._run, x, scale, use_reentrant=False)


@pytest.mark.parametrize("kind", [Peeking, InClosure, Private, ByValue, Decorated, Checkpointed])
def test_what_a_trace_could_not_follow(kind: type[Block]) -> None:
    block = kind().train(kind in (ByValue, Checkpointed))
    net = nl.convert(block, "batch_norm_sqrt2", X)
    for batch, scale in ((X, 1.0), (X[:2], 3.0)):
        close(net(batch, scale=scale), block(batch, scale=scale) / 2**0.5)
    if kind is Checkpointed:
        one, other = (torch.autograd.grad(module(X).pow(2).sum(), module.layer.weight)[0] for module in (net, block))
        close(one, other / 2, rtol=1e-4, atol=1e-5)


class Loop(nn.Module):
    """All of its blocks in one forward, two sums in a line of a loop; `steps` of them run."""

    def __init__(self) -> None:
        super().__init__()
        pairs = [nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)]) for _ in range(3)]
        self.stem, self.pairs, self.norm = nn.Linear(4, 4), nn.ModuleList(pairs), nn.LayerNorm(4)

    def forward(self, x: Tensor, steps: int = 3) -> Any:
        x = self.stem(x)
        for step in range(steps):
            first, second = self.pairs[step % 3]  # type: ignore[misc]
            x = first(x.tanh()) + x; x = x + second(x.tanh())  # fmt: skip  # noqa: E702
        return self.norm(x)


@pytest.mark.filterwarnings("default")  # the compiler's own
def test_the_sums_of_a_loop_are_modules_of_their_own() -> None:
    model = Loop()
    net = nl.convert(model, nl.Scheme("sums", (ScaleSums(0.5),)), X)
    sums = [name for name, module in net.named_modules() if isinstance(module, ResidualSum)]
    assert sums == ["residual_sum", *(f"residual_sum_{number}" for number in range(2, 7))]
    h = model.stem(X)
    for first, second in model.pairs:  # type: ignore[misc]
        h = (first(h.tanh()) + h) / 2
        h = (h + second(h.tanh())) / 2
    close(net(X), model.norm(h))
    assert torch.isfinite(net(X, steps=2)).all()
    with pytest.raises(nl.FixedArgumentError, match="that ran 3 times on the example inputs"):
        net(X, steps=4)
    torch.compiler.reset()
    compiled: Any = torch.compile(net, backend="eager", fullgraph=True)
    close(compiled(X), net(X))
    close(torch.export.export(net, (X,)).module()(X), net(X))
