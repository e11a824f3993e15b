"""Norms written out in forward code, and what a norm's module does besides: against forward passes by hand."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any

import pytest
import torch
from edit_helpers import close
from gallery.norms import ConvBlock, GeluLayerNorm, LeakyBatchNorm, SwishGroupNorm
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl

WIDTH = 8
ROWS = torch.randn(6, WIDTH)
Formula = Callable[[Any, Tensor], Any]


class Block(nn.Module):
    """x + f(norm(x)); subclasses write the norm."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.g, self.b = nn.Parameter(torch.rand(WIDTH)), nn.Parameter(torch.rand(WIDTH))
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("var", torch.full((WIDTH,), 2.0))

    def normalized(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def branch(self, x: Tensor) -> Any:
        return self.fc2(F.relu(self.fc1(x)))

    def forward(self, x: Tensor) -> Any:
        return x + self.branch(self.normalized(x))


def both_statistics(m: Any, x: Tensor) -> Tensor:
    variance, mean = torch.var_mean(x, -1, keepdim=True)
    x = x - mean
    x = x * torch.rsqrt(variance + 1e-5)
    return torch.addcmul(m.b, x, m.g)


def in_place(m: Any, x: Tensor) -> Tensor:
    x = x.clone()
    x -= x.mean(0, keepdim=True)
    x /= ((x - x.mean(0)).pow(2).mean(0) + 1e-5).sqrt()
    x *= m.g
    return x.add_(m.b)


def gain_before_a_root_mean_square(m: Any, x: Tensor) -> Any:
    return (x * m.g) * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


def gain_before_a_sum_of_squares(m: Any, x: Tensor) -> Any:
    return (m.g * x).view_as(x) / (x * x).sum(-1, keepdim=True).sqrt()


def root_mean_square(m: Any, x: Tensor) -> Any:
    return (1 + m.g) * (x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)).type_as(x)


def pixel_norm(m: Any, x: Tensor) -> Any:
    return x.div((x * x).mean(1, keepdim=True).add(1e-8).sqrt())


def length_times_width(m: Any, x: Tensor) -> Any:
    return x / (x.norm(dim=-1, keepdim=True) * WIDTH**-0.5).clamp(min=1e-8) * m.g


def unit_vector_with_gain(m: Any, x: Tensor) -> Any:
    return F.normalize(x, dim=-1) * m.g


def stored_statistics(m: Any, x: Tensor) -> Any:
    return (x - m.mean) / torch.sqrt(m.var + 1e-5) * m.g + m.b


def torchs_layer_norm(m: Any, x: Tensor) -> Any:
    return F.layer_norm(x, (WIDTH,), m.g, m.b)


def torchs_rms_norm(m: Any, x: Tensor) -> Any:
    return F.rms_norm(x, (WIDTH,), weight=m.g)


def torchs_batch_norm(m: Any, x: Tensor) -> Any:
    return F.batch_norm(x, m.mean, m.var, m.g, m.b, m.training)


OF_LENGTH = 1 / sqrt(WIDTH)
# The formula, the name of its layer, and what x is multiplied with once the norm is removed.
FORMULAS: list[tuple[Formula, str, float]] = [
    (gain_before_a_root_mean_square, "g", 1), (gain_before_a_sum_of_squares, "g", OF_LENGTH),
    (both_statistics, "g", 1), (in_place, "g", 1), (root_mean_square, "g", 1),
    (pixel_norm, "norm", 1), (length_times_width, "g", 1), (unit_vector_with_gain, "g", OF_LENGTH),
    (stored_statistics, "g", 1), (torchs_layer_norm, "layer_norm", 1), (torchs_rms_norm, "rms_norm", 1),
    (torchs_batch_norm, "batch_norm", 1),
]  # fmt: skip


@pytest.mark.parametrize(("formula", "name", "length"), FORMULAS, ids=[row[0].__name__ for row in FORMULAS])
def test_a_norm_written_out_is_removed(formula: Formula, name: str, length: float) -> None:
    block = type(formula.__name__, (Block,), {"normalized": formula})
    model: Any = nn.Sequential(nn.Linear(WIDTH, WIDTH), block(), block(), nn.Linear(WIDTH, 3))
    mapped = nl.residual_map(model, ROWS)
    assert mapped.norms == {f"1:{name}": "last", f"2:{name}": "last"}
    assert [block.branch for block in mapped.blocks] == [("1.fc1", "1.fc2"), ("2.fc1", "2.fc2")]
    net = nl.convert(model, "none(keep_scale=False)", ROWS, residual_map=mapped)
    expected = model[0](ROWS)
    for one in model[1:3]:
        expected = expected + one.branch(expected * length)
    for training in (False, True):
        close(net.train(training)(ROWS), model[3](expected))
    named = dict(net.named_parameters())
    assert not any(name in named for layer in mapped.layers() if layer.kind == "norm" for name in layer.parameters)


class ActivatedBatchNorm(nn.Module):
    """No subclass of torch's batch norm, with the activation in place (Rota Bulò et al. 2018)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))
        self.eps, self.momentum, self.activation = 1e-3, 0.1, "elu"

    def forward(self, x: Tensor) -> Tensor:
        statistics = (self.get_buffer("running_mean"), self.get_buffer("running_var"))
        x = F.batch_norm(x, *statistics, self.weight, self.bias, self.training, self.momentum, self.eps)
        return F.elu(x, alpha=0.5, inplace=True) if self.activation == "elu" else x


KEPT: dict[str, tuple[Callable[[], nn.Module], Callable[[Tensor], Tensor]]] = {
    "leaky": (lambda: LeakyBatchNorm(WIDTH), lambda y: F.leaky_relu(y, 0.2)),
    "activated": (lambda: ActivatedBatchNorm(WIDTH), lambda y: F.elu(y, 0.5)),
    "swish": (lambda: SwishGroupNorm(2, WIDTH), lambda y: 0.5 * F.silu(y)),
    "gelu": (lambda: GeluLayerNorm(WIDTH), lambda y: F.gelu(y, approximate="tanh")),
}


def built(norm: Callable[[], nn.Module]) -> tuple[Any, Tensor]:
    ends = (nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * WIDTH, 5))
    model = nn.Sequential(nn.Conv2d(3, WIDTH, 3), norm(), ConvBlock(norm()), ConvBlock(norm()), *ends)
    return model.eval(), torch.randn(4, 3, 9, 9)


@pytest.mark.parametrize("kind", KEPT)
def test_functions_of_norms_stay_where_they_were(kind: str) -> None:
    make, function = KEPT[kind]
    model, x = built(make)
    mapped = nl.residual_map(model, x)
    inner = [layer for layer in mapped.layers() if layer.path.startswith("1:") and layer.kind == "activation"]
    assert inner
    assert mapped.by_path["2.conv1"].input != "1"
    net = nl.convert(model, "none(keep_scale=False)", x, residual_map=mapped)
    h = function(model[0](x))
    for block in model[2:4]:
        h = h + block.conv2(function(block.conv1(h)))
    close(net(x), model[4:](h))
    assert not [name for name, _ in net.named_parameters() if "norm" in name]
    # Dropout inside a norm drops in training alone.
    assert torch.equal(net.train()(x), net(x)) == (kind != "gelu")
    pointwise: Any = nl.convert(model, "dyt(alpha=0.5)", x, residual_map=mapped)
    h = model[0](x)
    close(pointwise[1](h), function(torch.tanh(0.5 * h)))
    assert torch.isfinite(nl.convert(model, "fixup", x, residual_map=mapped)(x)).all()


class PreActivation(nn.Module):
    """A pre-activation block whose ReLU overwrites its input, which only the norm before it makes harmless."""

    def __init__(self, functional: bool) -> None:
        super().__init__()
        self.stem, self.f, self.norm = nn.Linear(4, 4), nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.relu = None if functional else nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Any:
        h = self.stem(x)
        y = self.norm(h)
        y = torch.relu_(y) if self.relu is None else self.relu(y)
        return h + self.f(y)


@pytest.mark.parametrize("functional", [True, False])
def test_a_relu_in_place_no_longer_overwrites_the_skip_path_once_its_norm_is_gone(functional: bool) -> None:
    model, x = PreActivation(functional), torch.randn(5, 4)
    h = model.stem(x)
    close(nl.convert(model, "none", x)(x), h + model.f(torch.relu(h)))
    assert model.relu is None or model.relu.inplace
