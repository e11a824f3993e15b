"""Where the map says that a block or a head is: blocks of the network's own forward code, heads side by side."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import normless as nl
from normless.errors import UnsupportedEditError


class Actor(nn.Module):
    """Two blocks in the forward code of the network, and three heads, one of two layers."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first = nn.Linear(4, width)
        self.inner, self.outer = (nn.ModuleList(nn.Linear(width, width) for _ in range(2)) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.policy, self.value, self.between, self.aux = (nn.Linear(width, k) for k in (3, 1, width, 5))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = self.first(x)
        for inner, outer, norm in zip(self.inner, self.outer, self.norms, strict=True):
            h = h + outer(torch.relu(inner(norm(h))))
        return self.policy(h), self.value(h), self.aux(torch.tanh(self.between(h)))


def test_blocks_of_the_network_itself_are_named_after_their_first_weight_layer() -> None:
    found = nl.residual_map(Actor(), torch.randn(4, 4))
    assert [(block.name, block.module) for block in found.blocks] == [
        ("forward#inner.0", ""),
        ("forward#inner.1", ""),
    ]
    # A conversion that takes the norms keeps the names.
    net = nl.convert(Actor(), "skipinit", torch.randn(4, 4))
    assert [block.name for block in nl.residual_map(net).blocks] == [block.name for block in found.blocks]
    one = nl.convert(Actor(), "skipinit", torch.randn(4, 4), only="forward#inner.1")
    assert list(nl.residual_map(one).norms) == ["norms.0"]


def test_heads_stand_side_by_side() -> None:
    found = nl.residual_map(Actor(), torch.randn(4, 4))
    assert [(layer.path, layer.beside) for layer in found.head_layers if layer.kind == "weight"] == [
        ("policy", False),
        ("value", True),
        ("between", True),
        ("aux", False),
    ]
    *_, first, second, third = str(found).splitlines()
    assert [line.split()[-2:] for line in (first, second)] == [["linear", "8→3"], ["linear", "8→1"]]
    assert third.strip() == "+ linear 8→8 → tanh → linear 8→5"


def test_a_refusal_names_the_scheme_the_module_and_its_class_as_the_person_wrote_them() -> None:
    with pytest.raises(UnsupportedEditError) as refused:
        nl.convert(Actor(), "zero_gamma", torch.randn(4, 4))
    assert str(refused.value).startswith("zero_gamma is not possible at forward#inner.0: ")
    up = nn.Sequential(nn.ConvTranspose1d(2, 4, 3), nn.BatchNorm1d(4), nn.ReLU(), nn.Conv1d(4, 4, 1))
    with pytest.raises(UnsupportedEditError, match=r"^nf_resnet is not possible at 0, a ConvTranspose1d: ") as told:
        nl.convert(up, "nf_resnet", torch.randn(2, 2, 9))
    assert "Scalar" not in str(told.value)


def test_several_inputs_in_a_tuple_are_refused_with_the_way_to_pass_them() -> None:
    net = nn.Bilinear(2, 3, 4)
    with pytest.raises(nl.errors.NormlessError, match=r"one after another, as in \(net, x, y\)"):
        nl.residual_map(net, (torch.randn(5, 2), torch.randn(5, 3)))
