"""Norms written out in forward code: in any style they are norms of the map, and a conversion removes them."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import normless as nl

WIDTH = 8
ROWS = torch.randn(6, WIDTH)


class Block(nn.Module):
    """x + f(norm(x)); subclasses write the norm."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.g, self.b = nn.Parameter(torch.rand(WIDTH)), nn.Parameter(torch.rand(WIDTH))
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("var", torch.full((WIDTH,), 2.0))

    def normalized(self, x: Tensor) -> Tensor:
        """The norm's formula."""
        raise NotImplementedError

    def branch(self, x: Tensor) -> Tensor:
        """f."""
        return self.fc2(F.relu(self.fc1(x)))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(self.normalized(x))


Formula = Callable[[Any, Tensor], Tensor]
FORMULAS: list[tuple[str, float, Formula]] = []


def style(name: str, length: float = 1.0) -> Callable[[Formula], Formula]:
    """List a formula: the name of its layer, and what x is multiplied with once the norm is removed."""

    def add(formula: Formula) -> Formula:
        FORMULAS.append((name, length, formula))
        return formula

    return add


@style("g")
def standardized(self: Any, x: Tensor) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-5) * self.g + self.b


@style("g")
def gain_before_a_root_mean_square(self: Any, x: Tensor) -> Tensor:
    return (x * self.g) * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


@style("g", 1 / sqrt(WIDTH))
def gain_before_a_sum_of_squares(self: Any, x: Tensor) -> Tensor:
    return (self.g * x).view_as(x) / (x * x).sum(-1, keepdim=True).sqrt()


@style("norm")
def nothing_learned(self: Any, x: Tensor) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, keepdim=True) + 1e-5)


@style("g")
def both_statistics_at_once(self: Any, x: Tensor) -> Tensor:
    variance, mean = torch.var_mean(x, -1, keepdim=True)
    x = x - mean
    x = x * torch.rsqrt(variance + 1e-5)
    return torch.addcmul(self.b, x, self.g)


@style("g")
def in_place(self: Any, x: Tensor) -> Tensor:
    x = x.clone()
    x -= x.mean(0, keepdim=True)
    x /= ((x - x.mean(0)).pow(2).mean(0) + 1e-5).sqrt()
    x *= self.g
    return x.add_(self.b)


@style("g")
def root_mean_square(self: Any, x: Tensor) -> Tensor:
    mean_square = x.float().pow(2).mean(-1, keepdim=True)
    return (1 + self.g) * (x * torch.rsqrt(mean_square + 1e-6)).type_as(x)


@style("norm")
def pixel_norm(self: Any, x: Tensor) -> Tensor:
    return x.div((x * x).mean(1, keepdim=True).add(1e-8).sqrt())


@style("g")
def length_times_width(self: Any, x: Tensor) -> Tensor:
    return x / (x.norm(dim=-1, keepdim=True) * WIDTH**-0.5).clamp(min=1e-8) * self.g


@style("g", 1 / sqrt(WIDTH))
def unit_vector_with_gain(self: Any, x: Tensor) -> Tensor:
    return F.normalize(x, dim=-1) * self.g


@style("g")
def stored_statistics(self: Any, x: Tensor) -> Tensor:
    return (x - self.mean) / torch.sqrt(self.var + 1e-5) * self.g + self.b


@style("layer_norm")
def torchs_layer_norm(self: Any, x: Tensor) -> Tensor:
    return F.layer_norm(x, (WIDTH,), self.g, self.b)


@style("rms_norm")
def torchs_rms_norm(self: Any, x: Tensor) -> Tensor:
    return F.rms_norm(x, (WIDTH,), weight=self.g)


@style("batch_norm")
def torchs_batch_norm(self: Any, x: Tensor) -> Tensor:
    return F.batch_norm(x, self.mean, self.var, self.g, self.b, self.training)


def of_unit_length(x: Tensor) -> Tensor:
    return F.normalize(x, dim=-1)


def weighed(x: Tensor, gain: Tensor) -> Tensor:
    return F.normalize(x, dim=-1) * gain


@style("g", 1 / sqrt(WIDTH))
def by_a_function(self: Any, x: Tensor) -> Tensor:
    return of_unit_length(x) * self.g


def network(formula: Formula) -> nn.Sequential:
    """A stem, two blocks with this norm, a classifier."""
    block = type(formula.__name__, (Block,), {"normalized": formula})
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), block(), block(), nn.Linear(WIDTH, 3))


@pytest.mark.parametrize(("name", "length", "formula"), FORMULAS, ids=lambda one: getattr(one, "__name__", ""))
def test_a_norm_written_out_is_removed(name: str, length: float, formula: Formula) -> None:
    model = network(formula)
    mapped = nl.residual_map(model, ROWS)
    assert mapped.norms == {f"1:{name}": "last", f"2:{name}": "last"}
    assert [block.branch for block in mapped.blocks] == [("1.fc1", "1.fc2"), ("2.fc1", "2.fc2")]
    net = nl.convert(model, "none(keep_scale=False)", ROWS)
    expected = model[0](ROWS)
    for block in model[1:3]:
        expected = expected + block.branch(expected * length)
    torch.testing.assert_close(net(ROWS), model[3](expected))
    named = dict(net.named_parameters())
    assert not any(name in named for layer in mapped.layers() if layer.kind == "norm" for name in layer.parameters)


@pytest.mark.parametrize(
    "formula", [standardized, in_place, pixel_norm, torchs_batch_norm], ids=lambda one: one.__name__
)
def test_what_is_left_trains_in_both_modes(formula: Formula) -> None:
    model = network(formula)
    net = nl.convert(model, "fixup", ROWS)
    for training in (True, False):
        torch.testing.assert_close(net.train(training)(ROWS), torch.zeros(len(ROWS), 3))
    net.train()(ROWS).sum().backward()
    assert nl.residual_map(net, ROWS).norms == {}


class Reversible(nn.Module):
    """A forecast of standardized data that gets the scale of the data back; directions; raw data standardized."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.f, self.head = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)
        x = self.stem(x)
        mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
        x = (x - mean) / std
        x = x + self.f(F.normalize(x, dim=-1)) * F.normalize(x, p=1, dim=-1)
        return self.head(x) * std + mean


def test_what_only_divides_by_a_statistic_is_no_norm() -> None:
    mapped = nl.residual_map(Reversible(), ROWS)
    assert mapped.norms == {}
    assert [layer.path for layer in mapped.layers()] == ["stem", "f", "head"]
    nl.convert(Reversible(), "fixup(rescale=False)", ROWS)


@pytest.mark.parametrize(
    "formula",
    [
        lambda self, x: weighed(gain=self.g, x=x),
        lambda self, x: sum(F.normalize(one, dim=-1) * self.g for one in (x, 2 * x)),
    ],
)
def test_a_norm_whose_place_in_the_code_cannot_be_told_is_refused(formula: Formula) -> None:
    model = network(formula)
    with pytest.raises(nl.UnsupportedEditError, match=r"1:g(_1)?: the normalization is a function in the"):
        nl.convert(model, "none", ROWS)
