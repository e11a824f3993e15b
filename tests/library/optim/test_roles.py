"""The role of every parameter of small networks with all kinds of norms, factors and idle modules, by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from timm.layers import BatchNormAct2d, FilterResponseNormTlu2d
from timm.layers.grn import GlobalResponseNorm
from torch import Tensor, nn
from transformers.models.t5.modeling_t5 import T5LayerNorm
from written_networks import Written

import normless as nl
from normless.optim._roles import parameter_roles


def images(side: int) -> Tensor:
    return torch.zeros(2, 3, side, side)


def roles(model: nn.Module, *inputs: Tensor) -> dict[str, str]:
    return parameter_roles(model, nl.residual_map(model, *inputs))


def root_mean_square() -> nn.Module:
    """A norm written by hand."""
    return Written(
        lambda m, x: m.factor * x * (x.square().mean(1, keepdim=True) + 1e-6).rsqrt() + m.shift,
        factor=nn.Parameter(torch.ones(8, 1, 1)),
        shift=nn.Parameter(torch.zeros(8, 1, 1)),
    )


def of_tokens(norm: nn.Module) -> nn.Module:
    """A norm over the last axis, of images."""
    return Written(lambda m, x: m.inner(x.movedim(1, -1)).movedim(-1, 1), inner=norm)


def one_block(norm: nn.Module, **further: nn.Module | nn.Parameter) -> Written:
    """conv → x + conv(norm(x)) → mean → linear, and parts that do not run."""
    layers = {"stem": nn.Conv2d(3, 8, 3, padding=1), "norm": norm, "conv": nn.Conv2d(8, 8, 3, padding=1)}
    return Written(
        lambda m, x: m.head(((h := m.stem(x)) + m.conv(m.norm(h))).mean((2, 3))),
        **layers, head=nn.Linear(8, 2), **further,
    )  # fmt: skip


def table(text: str, prefix: str = "") -> dict[str, str]:
    """The group of each name in `GROUP: NAME NAME; GROUP: NAME`."""
    parts = [part.split(": ") for part in text.split("; ") if part]
    return {f"{prefix}{name}": group for group, names in parts for name in names.split()}


PLAIN = table("weights: stem.weight conv.weight head.weight; biases: stem.bias conv.bias head.bias")
NORMS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "fused batch norm": (lambda: BatchNormAct2d(8), "gamma_last: weight; biases: bias"),
    "filter response": (lambda: FilterResponseNormTlu2d(8), "gamma_last: weight; biases: bias tau"),
    "global response": (lambda: GlobalResponseNorm(8, channels_last=False), "gamma_last: weight; biases: bias"),
    "T5": (lambda: of_tokens(T5LayerNorm(8)), "gamma_last: inner.weight"),
    "by hand": (root_mean_square, "gamma_last: factor; biases: shift"),
    "without γ": (lambda: nn.BatchNorm2d(8, affine=False), ""),
    "instance": (lambda: nn.InstanceNorm2d(8, affine=True), "gamma_last: weight; biases: bias"),
    "slopes": (lambda: nn.PReLU(8), "rest: weight"),
}


@pytest.mark.parametrize("name", NORMS)
def test_a_norm_is_known_by_what_it_computes(name: str) -> None:
    make, expected = NORMS[name]
    assert roles(one_block(make()), images(8)) == PLAIN | table(expected, "norm.")


def test_packed_attention() -> None:
    def forward(m: Written, x: Tensor) -> Tensor:
        h = m.norm(x)
        return (x + m.attention(h, h, h, need_weights=False)[0]) * m.temperature

    attention = nn.MultiheadAttention(8, 2, batch_first=True, add_bias_kv=True)
    model = Written(forward, norm=nn.LayerNorm(8), attention=attention, temperature=nn.Parameter(torch.ones(())))
    assert roles(model, torch.zeros(2, 5, 8)) == table(
        "gamma_last: norm.weight; temperatures: temperature; "
        "weights: attention.in_proj_weight attention.out_proj.weight; "
        "biases: norm.bias attention.in_proj_bias attention.out_proj.bias attention.bias_k attention.bias_v"
    )


def test_parameters_that_no_layer_reads() -> None:
    idle = nn.ModuleDict(
        {
            "norm": nn.BatchNorm2d(8), "own": root_mean_square(), "conv": nn.Conv2d(8, 1, 1), "slopes": nn.PReLU(8),
            "cell": nn.GRUCell(1, 4),
        }
    )  # fmt: skip
    shapes = {"token": (1, 1, 8), "matrix": (3, 5), "vector": (5,), "relative_bias_table": (3, 5)}
    parameters = {name: nn.Parameter(torch.zeros(shape)) for name, shape in shapes.items()}
    found = roles(one_block(root_mean_square(), idle=idle, **parameters), images(8))
    rest = {name: group for name, group in found.items() if not name.startswith(("stem", "conv", "head", "norm"))}
    assert rest == table(
        "gamma_other: idle.norm.weight idle.own.factor; weights: idle.conv.weight matrix idle.cell.weight_ih "
        "idle.cell.weight_hh; rest: idle.slopes.weight token vector; biases: idle.norm.bias idle.own.shift "
        "idle.conv.bias idle.cell.bias_ih idle.cell.bias_hh relative_bias_table"
    )


def test_roles_follow_from_what_is_done_with_a_parameter_not_from_its_name() -> None:
    """Biases and gains under names that say the opposite."""

    def forward(m: Written, x: Tensor) -> Tensor:
        x = m.stem(x) + m.gain_of_bias + m.position
        y = (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6) * m.a_2 + m.b_2
        y = nn.functional.layer_norm(y, (8,), m.bias_of_gain)
        return m.head(x + nn.functional.linear(y, m.weight, m.bias_free))

    values = {"weight": torch.ones(8, 8), "a_2": torch.ones(8), "bias_of_gain": torch.ones(8)}
    values |= {name: torch.zeros(8) for name in ("bias_free", "b_2", "gain_of_bias")}
    parameters = {name: nn.Parameter(value) for name, value in values.items()}
    position, stem = nn.Parameter(torch.zeros(1, 3, 8)), nn.Linear(8, 8, bias=False)
    model = Written(forward, stem=stem, head=nn.Linear(8, 2), position=position, **parameters)
    assert roles(model, torch.randn(2, 3, 8)) == table(
        "weights: stem.weight head.weight weight; biases: head.bias bias_free b_2 gain_of_bias; gamma_other: a_2; "
        "gamma_last: bias_of_gain; rest: position"
    )
