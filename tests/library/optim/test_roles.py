"""The role of every parameter of small networks with all kinds of norms, factors and idle modules, by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from timm.layers import BatchNormAct2d, EvoNorm2dS0, FilterResponseNormTlu2d, LayerNorm2d
from timm.layers.grn import GlobalResponseNorm
from torch import Tensor, nn
from torchvision.ops import FrozenBatchNorm2d
from transformers.models.t5.modeling_t5 import T5LayerNorm

import normless as nl
from normless.optim.roles import parameter_roles


def images(side: int) -> Tensor:
    return torch.zeros(2, 3, side, side)


def roles(model: nn.Module, *inputs: Tensor) -> dict[str, str]:
    return parameter_roles(model, nl.residual_map(model, *inputs))


class RootMeanSquare(nn.Module):
    """A norm written by hand."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(channels, 1, 1))
        self.shift = nn.Parameter(torch.zeros(channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x * (x.square().mean(1, keepdim=True) + 1e-6).rsqrt() + self.shift


class TokenNorm(nn.Module):
    """A norm over the last axis, of images."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.inner = norm

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.movedim(1, -1)).movedim(-1, 1)


class OneBlock(nn.Module):
    """conv → x + conv(norm(x)) → mean → linear."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = norm
        self.conv = nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head((x + self.conv(self.norm(x))).mean((2, 3)))


PLAIN = {f"{path}.{kind}": group for path in ("stem", "conv", "head") for kind, group in
         [("weight", "weights"), ("bias", "biases")]}  # fmt: skip


@pytest.mark.parametrize(
    ("norm", "expected"),
    [
        (lambda: BatchNormAct2d(8), {"weight": "gamma_last", "bias": "biases"}),
        (lambda: LayerNorm2d(8), {"weight": "gamma_last", "bias": "biases"}),
        (lambda: FilterResponseNormTlu2d(8), {"weight": "gamma_last", "bias": "biases", "tau": "biases"}),
        (lambda: EvoNorm2dS0(8, groups=2), {"weight": "gamma_last", "bias": "biases", "v": "biases"}),
        (
            lambda: GlobalResponseNorm(8, channels_last=False),
            {"weight": "gamma_last", "bias": "biases"},
        ),
        (lambda: TokenNorm(T5LayerNorm(8)), {"inner.weight": "gamma_last"}),
        (lambda: RootMeanSquare(8), {"factor": "gamma_last", "shift": "biases"}),
        (lambda: FrozenBatchNorm2d(8), {}),
        (lambda: nn.BatchNorm2d(8, affine=False), {}),
        (lambda: nn.GroupNorm(2, 8), {"weight": "gamma_last", "bias": "biases"}),
        (lambda: nn.InstanceNorm2d(8, affine=True), {"weight": "gamma_last", "bias": "biases"}),
        (lambda: nn.SyncBatchNorm(8).eval(), {"weight": "gamma_last", "bias": "biases"}),
        (lambda: nn.PReLU(8), {"weight": "rest"}),
        (lambda: nn.PReLU(), {"weight": "rest"}),
    ],
    ids=[
        "fused batch norm", "layer norm of images", "filter response", "evonorm", "global response", "T5", "by hand",
        "frozen", "without γ", "group", "instance", "sync", "slopes", "one slope",
    ],
)  # fmt: skip
def test_a_norm_is_known_by_what_it_computes(norm: Callable[[], nn.Module], expected: dict[str, str]) -> None:
    found = roles(OneBlock(norm()), images(8))
    assert found == PLAIN | {f"norm.{name}": group for name, group in expected.items()}


@pytest.mark.parametrize("bias", [True, False])
def test_the_gain_of_a_normalized_weight(bias: bool) -> None:
    model = OneBlock(nn.Identity())
    model.conv = nn.Conv2d(8, 8, 3, padding=1, bias=bias)
    nn.utils.parametrizations.weight_norm(model.conv)
    nn.utils.parametrizations.weight_norm(model.head)
    found = roles(model, images(8))
    assert {name for name, group in found.items() if group == "gains"} == {
        "conv.parametrizations.weight.original0",
        "head.parametrizations.weight.original0",
    }
    assert {name for name, group in found.items() if group == "weights"} == {
        "stem.weight",
        "conv.parametrizations.weight.original1",
        "head.parametrizations.weight.original1",
    }


class PackedAttention(nn.Module):
    """x + attention(norm(x)), with every parameter that torch's attention can have."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True, add_bias_kv=True)
        self.temperature = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        return (x + self.attention(h, h, h, need_weights=False)[0]) * self.temperature


def test_packed_attention() -> None:
    assert roles(PackedAttention(), torch.zeros(2, 5, 8)) == {
        "norm.weight": "gamma_last",
        "norm.bias": "biases",
        "attention.in_proj_weight": "weights",
        "attention.in_proj_bias": "biases",
        "attention.out_proj.weight": "weights",
        "attention.out_proj.bias": "biases",
        "attention.bias_k": "biases",
        "attention.bias_v": "biases",
        "temperature": "temperatures",
    }


class PartlyIdle(OneBlock):
    """A network with modules that do not run in training: an auxiliary head."""

    def __init__(self) -> None:
        super().__init__(RootMeanSquare(8))
        self.idle = nn.ModuleDict(
            {
                "norm": nn.BatchNorm2d(8),
                "own": RootMeanSquare(8),
                "conv": nn.Conv2d(8, 1, 1),
                "slopes": nn.PReLU(8),
                "cell": nn.GRUCell(1, 4),
            }
        )
        self.token = nn.Parameter(torch.zeros(1, 1, 8))
        self.matrix = nn.Parameter(torch.zeros(3, 5))
        self.vector = nn.Parameter(torch.zeros(5))
        self.relative_bias_table = nn.Parameter(torch.zeros(3, 5))


def test_parameters_that_no_layer_reads() -> None:
    found = roles(PartlyIdle(), images(8))
    assert {
        name: group for name, group in found.items() if not name.startswith(("stem", "conv", "head", "norm"))
    } == {
        "idle.norm.weight": "gamma_other",
        "idle.norm.bias": "biases",
        "idle.own.factor": "gamma_other",
        "idle.own.shift": "biases",
        "idle.conv.weight": "weights",
        "idle.conv.bias": "biases",
        "idle.slopes.weight": "rest",
        "idle.cell.weight_ih": "weights",
        "idle.cell.weight_hh": "weights",
        "idle.cell.bias_ih": "biases",
        "idle.cell.bias_hh": "biases",
        "token": "rest",
        "matrix": "weights",
        "vector": "rest",
        "relative_bias_table": "biases",
    }


class OddNames(nn.Module):
    """Biases and gains under names that say the opposite."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(8, 8, bias=False), nn.Linear(8, 2)
        self.weight, self.bias_free = nn.Parameter(torch.ones(8, 8)), nn.Parameter(torch.zeros(8))
        self.a_2, self.b_2 = nn.Parameter(torch.ones(8)), nn.Parameter(torch.zeros(8))
        self.bias_of_gain, self.gain_of_bias = nn.Parameter(torch.ones(8)), nn.Parameter(torch.zeros(8))
        self.position = nn.Parameter(torch.zeros(1, 3, 8))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x) + self.gain_of_bias + self.position
        y = (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6) * self.a_2 + self.b_2
        y = nn.functional.layer_norm(y, (8,), self.bias_of_gain)
        return self.head(x + nn.functional.linear(y, self.weight, self.bias_free))


def test_roles_follow_from_what_is_done_with_a_parameter_not_from_its_name() -> None:
    assert roles(OddNames(), torch.randn(2, 3, 8)) == {
        "stem.weight": "weights",
        "head.weight": "weights",
        "head.bias": "biases",
        "weight": "weights",
        "bias_free": "biases",
        "a_2": "gamma_other",
        "b_2": "biases",
        "bias_of_gain": "gamma_last",
        "gain_of_bias": "biases",
        "position": "rest",
    }
