"""Forwards that take more than tensors: rewritten, they take the same, and refuse what they were not made for."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import normless as nl
from normless.lifting import Call, Lifter, LiftError, captured_calls
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


@pytest.mark.parametrize("kwargs", CALLS, ids=lambda kwargs: "-".join(kwargs) or "defaults")
def test_the_network_computes_what_it_did_with_these_arguments(model: Network, kwargs: dict[str, Any]) -> None:
    net = nl.convert(model, "batch_norm_sqrt2", X, **kwargs)
    assert isinstance(net.second.get_submodule("residual_sum"), ResidualSum)
    torch.testing.assert_close(net(X, **kwargs), halved(model, X, **kwargs))
    other = torch.randn(7, 4)
    many = {name: torch.rand(7, 1) if name == "mask" else value for name, value in kwargs.items()}
    torch.testing.assert_close(
        net(other, *many.values()) if len(many) == 3 else net(other, **many), halved(model, other, **many)
    )


def test_the_signature_stays(model: Network) -> None:
    net = nl.convert(model, "batch_norm_sqrt2", X, scale=2.0)
    old, new = (
        [(one.name, one.kind, one.default) for one in inspect.signature(type(module).forward).parameters.values()]
        for module in (model.first, net.first)
    )
    assert new == old


OTHER_VALUES: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"scale": 2.0}, {}, "rewritten for scale=2.0 and got 1.0"),
    ({}, {"scale": 2.0}, "rewritten for scale=1.0 and got 2.0"),
    ({"scale": 2.0}, {"scale": 2}, "rewritten for scale=2.0 and got 2"),
    ({}, {"scale": X}, "rewritten for scale=1.0 and got a Tensor"),
    ({}, {"scale": None}, "rewritten for scale=1.0 and got None"),
    ({}, {"mask": MASK}, "rewritten for mask=None and got a Tensor"),
    ({"mask": MASK}, {}, "rewritten for a tensor as mask and got None"),
    ({"mask": MASK}, {"mask": 1.0}, "rewritten for a tensor as mask and got 1.0"),
    ({}, {"twice": True}, "rewritten for twice=False and got True"),
    ({}, {"twice": 0}, "rewritten for twice=False and got 0"),
    ({"twice": True}, {"twice": False}, "rewritten for twice=True and got False"),
]


@pytest.mark.parametrize(("made", "called", "said"), OTHER_VALUES)
def test_another_value_is_refused_in_a_sentence(
    model: Network, made: dict[str, Any], called: dict[str, Any], said: str
) -> None:
    net = nl.convert(model, "batch_norm_sqrt2", X, **made)
    with pytest.raises(nl.FixedArgumentError, match=rf"^The forward code of this Block was {said}\. .*\.$"):
        net(X, **called)
    assert net(X, **made).shape == (3, 2)


def test_an_argument_that_is_not_read_may_be_anything(model: Network) -> None:
    net = nl.convert(model, "batch_norm_sqrt2", X)
    h = net.stem(X)
    assert torch.equal(net.first(h, note=object()), net.first(h))
    assert "note" not in type(net.first).normless_source.partition("):")[2]


class Peeking(Block):
    """Reads an argument without naming it."""

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        y = self.layer(self.norm(x)) * locals()["scale"]
        return x + y


class InClosure(Block):
    """Reads an argument in a function of its own."""

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        def scaled(y: Tensor) -> Tensor:
            return y * scale

        return x + scaled(self.layer(self.norm(x)))


class PassedOn(Block):
    """Passes any number of arguments on."""

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return super().forward(*args, **kwargs)


class Everything(Block):
    """Takes and reads all kinds of values in all kinds of ways."""

    def forward(self, x: Tensor, size: Any, /, kind: Any = torch.float32, *rest: Any, **options: Any) -> Tensor:
        y = self.layer(self.norm(x)) * size[0] * len(options) * len(rest)
        return x + y.to(kind)


def rewritten(block: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
    """A copy of the block whose sum is a module, read from one call of it."""
    copied = deepcopy(block)
    lifter = Lifter(copied, captured_calls(copied, args, kwargs, [""])[""][0])
    (node,) = lifter.additions()
    left, right = node.all_input_nodes
    lifter.replace(node, "residual_sum", ResidualSum(), (left, right))
    lifter.finish()
    return copied


@pytest.mark.parametrize("kind", [Peeking, InClosure])
def test_an_argument_that_is_read_in_a_hidden_way_is_fixed(kind: type[Block]) -> None:
    block = kind().eval()
    net = rewritten(block, X, scale=3.0)
    torch.testing.assert_close(net(X, 3.0), block(X, 3.0))
    with pytest.raises(nl.FixedArgumentError, match=r"scale=3\.0 and got 1\.0"):
        net(X)


VALUES: list[tuple[Any, Any]] = [
    ((2, 3), [2, 3]),
    ([2, (3, None)], [2, (3, 0)]),
    (torch.Size([2, 3]), torch.Size([2, 4])),
    ({0: 2, "b": b"1"}, {0: 2, "b": b"2"}),
    ((float("inf"), float("nan")), (float("inf"), 1.0)),
    ([4.0, ..., torch.device("cpu")], [4.0, ..., torch.device("meta")]),
    ([2, torch.channels_last, torch.strided], [2, torch.contiguous_format, torch.strided]),
    ([True], [1]),
]


@pytest.mark.parametrize(("value", "other"), VALUES, ids=[str(index) for index in range(len(VALUES))])
def test_values_of_all_plain_types_are_kept_and_compared(value: Any, other: Any) -> None:
    block = Everything().eval()
    net = rewritten(block, X, value, torch.float64, 1, 2, first="1", second=None)
    expected = block(X, value, torch.float64, 1, 2, first="1", second=None)
    assert expected.dtype == torch.float64
    torch.testing.assert_close(net(X, deepcopy(value), torch.float64, 1, 2, second=None, first="1"), expected)
    for args, kwargs, name in (
        ((other, torch.float64, 1, 2), {"first": "1", "second": None}, "size"),
        ((value, torch.float32, 1, 2), {"first": "1", "second": None}, "kind"),
        ((value, torch.float64, 1), {"first": "1", "second": None}, "rest"),
        ((value, torch.float64, 1, 2), {"first": "1", "third": None}, "options"),
        ((value, torch.float64, 1, 2), {"first": "1", "second": 0}, "options"),
    ):
        with pytest.raises(nl.FixedArgumentError, match=f"rewritten for {name}="):
            net(X, *args, **kwargs)


class Held(Block):
    """Takes a pair of tensors."""

    def forward(self, x: Tensor, pair: tuple[Tensor, Tensor] | None = None) -> Tensor:
        y = self.layer(self.norm(x))
        if pair is not None:
            scale, shift = pair
            y = y * scale - shift
        return x + y


def test_tensors_in_a_tuple_stay_arguments() -> None:
    block = Held().eval()
    net = rewritten(block, X, (MASK, MASK))
    for pair in ((MASK, MASK), (2 * MASK, X)):
        torch.testing.assert_close(net(X, pair), block(X, pair))
    with pytest.raises(nl.FixedArgumentError, match="a tensor as pair and got None"):
        net(X)


REFUSED: list[tuple[Callable[[], nn.Module], tuple[Any, ...], str]] = [
    (PassedOn, (X,), "takes any number of tensors as args"),
    (Everything, (X, {1, 2}), "takes a set as size, which cannot be written into code"),
    (Everything, (X, [object()]), "takes a object as size, which cannot be written into code"),
]


@pytest.mark.parametrize(("kind", "args", "said"), REFUSED)
def test_what_no_code_can_say_is_told(kind: Callable[[], nn.Module], args: tuple[Any, ...], said: str) -> None:
    with pytest.raises(LiftError, match=said):
        Lifter(kind(), Call(args, {}))


def test_code_that_is_rewritten_twice_keeps_its_refusals(model: Network) -> None:
    once = rewritten(model.first, X, scale=2.0)
    net = deepcopy(once)
    lifter = Lifter(net, captured_calls(net, (X,), {"scale": 2.0, "note": X}, [""])[""][0])
    lifter.finish()
    assert type(net).normless_source == type(once).normless_source
    torch.testing.assert_close(net(X, 2.0), model.first(X, 2.0))
    with pytest.raises(nl.FixedArgumentError):
        net(X)


@pytest.fixture
def net(model: Network) -> Network:
    return nl.convert(model, "batch_norm_sqrt2", X, scale=2.0, mask=MASK)


def test_copies_and_pickles_keep_the_arguments(model: Network, net: Network) -> None:
    for copied in (deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert torch.equal(copied(X, scale=2.0, mask=MASK), net(X, scale=2.0, mask=MASK))
        with pytest.raises(nl.FixedArgumentError, match=r"scale=2\.0 and got 1\.0"):
            copied(X, mask=MASK)


@pytest.mark.filterwarnings("default")  # the compiler's own
def test_compile(model: Network, net: Network) -> None:
    torch.compiler.reset()
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(X, scale=2.0, mask=MASK), halved(model, X, scale=2.0, mask=MASK))
    with pytest.raises(nl.FixedArgumentError, match=r"scale=2\.0 and got 3\.0"):
        torch.compile(net, backend="eager")(X, scale=3.0, mask=MASK)


@pytest.mark.filterwarnings("default")  # the exporter's own
def test_export(model: Network, net: Network) -> None:
    exported = torch.export.export(net, (X,), {"scale": 2.0, "mask": MASK}).module()
    torch.testing.assert_close(exported(X, scale=2.0, mask=MASK), halved(model, X, scale=2.0, mask=MASK))


def test_saved_and_loaded(model: Network, net: Network, tmp_path: Any) -> None:
    nl.save(net, tmp_path, example_inputs={"x": X, "scale": 2.0, "mask": MASK})
    loaded = nl.load(tmp_path, model)
    assert torch.equal(loaded(X, scale=2.0, mask=MASK), net(X, scale=2.0, mask=MASK))
