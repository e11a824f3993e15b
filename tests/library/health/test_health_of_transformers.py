"""The health of transformers and of unusual networks, and the report."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from trained_health import Normed, fitted, images, kinds, quick, row
from written_networks import Written

import normless as nl
from normless.health.limits import QUANTITIES


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
    (found,) = report.findings
    assert (found.kind, found.where) == ("saturated_attention", ("layers.1.attention",))
    with torch.no_grad():
        h = net.layers[1].norm1(net.layers[0](net.tokens(x)))
        weights = net.layers[1].attention(h, h, h, average_attn_weights=False)[1]
    assert found.evidence["share"] == pytest.approx(float((weights.amax(-1) > 0.999).double().mean()), abs=0.02)


def softmax(m: Any, x: Tensor) -> Tensor:
    q, k, v = m.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
    hidden = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
    y = (q @ k.mT / 2).masked_fill(hidden, float("-inf")).softmax(-1) @ v
    return m.head(y.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


def function(m: Any, x: Tensor) -> Tensor:
    q, k, v = m.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return m.head(y.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


@pytest.mark.parametrize("forward", [softmax, function])
def test_attention_that_is_written_out_is_seen(forward: Callable[..., Tensor]) -> None:
    torch.manual_seed(0)
    net: Any = Written(forward, qkv=nn.Linear(8, 24), head=nn.Linear(8, 3))
    x = torch.randn(16, 6, 8)
    assert quick(net, [x]).healthy
    with torch.no_grad():
        net.qkv.weight[:4] *= 1e3
    (found,) = quick(net, [x]).advice
    assert (found.kind, found.evidence["head"], found.evidence["heads"]) == ("saturated_attention", 0, 1)
    with torch.no_grad():
        net.qkv.weight[4:8] *= 1e3
    assert kinds(quick(net, [x])) == ["saturated_attention"]


def test_equal_units_are_counted() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 10, 3), nn.ReLU(), nn.Flatten(), nn.Linear(160, 5))
    with torch.no_grad():
        net[0].weight[4], net[0].weight[7] = 2 * net[0].weight[1], -net[0].weight[2]
    report = quick(net, [x for x, _ in images(1)])
    (found,) = report.findings
    assert (found.kind, found.where, found.evidence["count"]) == ("equal_units", ("0",), 1)


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


def test_the_report_in_text_json_and_html() -> None:
    net = fitted()
    with torch.no_grad():
        net.norm.weight[:8] = 0.0
    report = nl.diagnose_trained(net, images())
    text = str(report)
    assert "zero_gamma" not in text
    assert "γ of zero" in text
    assert "gamma_zero" in text
    assert "blocks.1.conv2" in text
    data = report.to_dict()
    assert data["healthy"] is False
    assert data["passes"] == report.passes
    assert {"layer": "norm", "kind": "norm"}.items() <= next(
        r for r in data["layers"] if r["layer"] == "norm"
    ).items()
    assert not any(value is None for rows in data["layers"] for value in rows.values())
    assert "<table>" in report._repr_html_()
    assert set(report.table.columns) == {"layer", "kind", *QUANTITIES}


def test_norms_that_are_functions_and_frozen_batch_norms_are_measured() -> None:
    torch.manual_seed(0)
    net: Any = Written(
        lambda m, x: m.head(F.layer_norm(m.first(x), (12,), eps=1e-3)), first=nn.Linear(8, 12), head=nn.Linear(12, 4)
    )
    x = torch.randn(16, 8)
    with torch.no_grad():
        net.first.weight.mul_(0.1)
        share = float((net.first(x).var(1, correction=0) < 0.81 / 0.19 * 1e-3).double().mean())
        assert quick(net, [x]).healthy == (share < 0.2)
        net.first.weight.mul_(0.01)
        net.first.bias.zero_()
    found = quick(net, [x]).findings[0]
    assert (found.kind, found.where, found.evidence["epsilon"]) == ("divides_by_epsilon", ("forward",), 1e-3)
    frozen = nl.freeze(fitted())
    assert nl.diagnose_trained(frozen, images()).healthy


def test_masks_of_minus_infinity_and_norms_that_do_not_run_are_fine() -> None:
    net = fitted()
    net.register_buffer("mask", torch.full((4, 4), float("-inf")).triu(1))
    net.other = nn.BatchNorm2d(16)
    assert nl.diagnose_trained(net, images()).healthy
    net.register_buffer("mask", torch.full((4, 4), float("nan")).triu(1))
    assert kinds(nl.diagnose_trained(net, images())) == ["not_finite_state"]


def test_batches_that_are_sorted_by_class_fit_too() -> None:
    net = fitted()
    means = torch.linspace(-2, 2, 6)
    x = torch.cat([mean + torch.randn(32, 2, 6, 6, generator=torch.Generator().manual_seed(3)) for mean in means])
    net.train()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
    with torch.no_grad():
        net(x[torch.randperm(192, generator=torch.Generator().manual_seed(4))])
    assert nl.diagnose_trained(net.eval(), list(x.split(32))).healthy


def test_every_output_counts() -> None:
    torch.manual_seed(0)
    parts = {"body": nn.Linear(6, 12), "head": nn.Linear(12, 3), "other": nn.Linear(12, 2)}
    two = Written(lambda m, x: (m.head(h := torch.tanh(m.body(x))), m.other(h)), **parts)
    report = nl.diagnose_trained(two, [(torch.randn(32, 6), torch.arange(32) % 3)])
    assert report.healthy
    assert row(report, "other")["removal"] == pytest.approx(1, rel=0.01)


def test_modes_of_modules_inside_norms_are_kept() -> None:
    class Fused(nn.LayerNorm):
        def __init__(self) -> None:
            super().__init__(12)
            self.act = nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            return self.act(super().forward(x))  # type: ignore[no-any-return]

    torch.manual_seed(0)
    net = Normed(Fused()).train()
    report = nl.diagnose_trained(net, [torch.randn(16, 5, 8)])
    assert all(module.training for module in net.modules())
    assert row(report, "norm")["spread"] > 0


def test_tokens_that_do_not_vary_are_not_near_epsilon() -> None:
    torch.manual_seed(0)
    net, x = Normed(nn.LayerNorm(12)), torch.randn(16, 5, 8)
    with torch.no_grad():
        net.inner.bias.zero_()
    x[:, 3:] = 0
    assert quick(net, [x]).healthy
    net.register_buffer("largest", torch.full((3,), float("inf")))
    assert quick(net, [x]).healthy
