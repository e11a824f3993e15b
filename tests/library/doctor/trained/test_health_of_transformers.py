"""The health of transformers, and of a network without a map."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from trained_health import quick
from written_networks import Written

import normless as nl


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        y: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return y


class Transformer(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.tokens, self.layers = nn.Embedding(9, width), nn.Sequential(Layer(width), Layer(width))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 9)

    def forward(self, tokens: Tensor) -> Tensor:
        y: Tensor = self.head(self.norm(self.layers(self.tokens(tokens))))
        return y


def transformer() -> tuple[Transformer, Tensor]:
    torch.manual_seed(0)
    # Equal tokens without positions would share the weight of an attention.
    return Transformer().eval(), torch.rand(16, 9, generator=torch.Generator().manual_seed(2)).argsort(1)[:, :7]


def test_massive_activations_and_outlier_features_are_advice_with_channel_and_token() -> None:
    net, x = transformer()
    assert quick(net, [x]).healthy
    with torch.no_grad():
        net.layers[0].down.bias[5] = 900.0
    report = quick(net, [x])
    found = {one.kind: one for one in report.advice}
    assert found["massive_activations"].evidence["channel"] == 5
    assert found["massive_activations"].evidence["largest"] == pytest.approx(900, rel=0.02)
    assert found["massive_activations"].where[0] == "layers.0.down"
    assert found["outlier_features"].evidence["channel"] == 5
    assert found["outlier_features"].evidence["share_of_tokens"] == 1


def test_saturated_attention_is_placed() -> None:
    net, x = transformer()
    with torch.no_grad():
        net.layers[1].attention.in_proj_weight[:32] *= 1000
    report = quick(net, [x])
    found, cause = report.findings
    assert (found.kind, found.where) == ("saturated_attention", ("layers.1.attention",))
    assert (cause.kind, cause.where) == ("outlying_weights", ("layers.1.attention",))
    with torch.no_grad():
        h = net.layers[1].norm1(net.layers[0](net.tokens(x)))
        weights = net.layers[1].attention(h, h, h, average_attn_weights=False)[1]
    assert found.evidence["share"] == pytest.approx(float((weights.amax(-1) > 0.999).double().mean()), abs=0.02)


def test_a_network_without_a_map_and_networks_with_named_inputs() -> None:
    def branching(m: Any, x: Tensor, flag: Tensor) -> Tensor:
        layer = m.first if float(x.sum()) != 0.123 and bool(flag.any()) else m.second
        return m.head(F.relu(layer(x)))  # type: ignore[no-any-return]

    torch.manual_seed(0)
    net: Any = Written(branching, first=nn.Linear(6, 20), second=nn.Linear(6, 20), head=nn.Linear(20, 3))
    with torch.no_grad():
        net.first.bias[:10] = -100
    batch = {"x": torch.randn(32, 6), "flag": torch.ones(32)}
    report = nl.diagnose_trained(net, batch)
    assert [(found.kind, found.where) for found in report.findings] == [("dead_units", ("first",))]
    assert set(report.table[report.table["removal"].notna()]["layer"]) == {"first", "head"}
