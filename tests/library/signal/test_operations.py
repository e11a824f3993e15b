"""Predictions after poolings, gates and attention, against measurements and closed forms."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from written_networks import Written

import normless as nl

SIDES = ("skip", "branch", "sum")


def pooled(pool: nn.Module, rectify: bool) -> nn.Module:
    """A stem with a pooling, and a block."""
    return Written(
        lambda m, x: (h := m.pool(m.relu(m.stem(x)))) + m.conv(F.relu(h)),
        stem=nn.Conv2d(3, 128, 3, padding=1, bias=False),
        relu=nn.ReLU() if rectify else nn.Identity(),
        pool=pool,
        conv=nn.Conv2d(128, 128, 3, padding=1, bias=False),
    )


PADDED = nn.MaxPool2d(3, stride=2, padding=1)
POOLINGS = [nn.MaxPool2d(2), PADDED, nn.AvgPool2d(2), nn.AvgPool2d(3, stride=1, padding=1)]


@pytest.mark.parametrize(("pool", "rectify"), [*((pool, True) for pool in POOLINGS), (PADDED, False)])
def test_poolings_of_independent_positions(pool: nn.Module, rectify: bool) -> None:
    """White images: the outputs of a convolution are uncorrelated on average over its weights."""
    torch.manual_seed(0)
    table = nl.probe(pooled(pool, rectify), torch.randn(32, 3, 16, 16), ["signal"]).signal
    for side in SIDES:
        expected = table[f"{side}_second_moment"].to_numpy()
        assert table[f"predicted_{side}_second_moment"].to_numpy() == pytest.approx(expected, rel=0.05), side


GATES: dict[str, Callable[[Written, Tensor, Tensor], Tensor]] = {
    "squeeze-excite": lambda m, x, h: h * m.up(F.relu(m.down(F.adaptive_avg_pool2d(h, 1)))).sigmoid(),  # type: ignore[operator]
    "linear unit": lambda m, x, h: F.silu(h) * m.value(m.norm(x)),  # type: ignore[operator]
    "linear unit of halves": lambda m, x, h: F.glu(m.halves(h), dim=1),  # type: ignore[operator]
}


def gated(kind: str, width: int = 256) -> nn.Module:
    """A block whose branch is gated: x + g(h) · h."""
    return Written(
        lambda m, x: x + GATES[kind](m, x, m.conv(m.norm(x))),
        norm=nn.BatchNorm2d(width),
        conv=nn.Conv2d(width, width, 3, padding=1),
        down=nn.Conv2d(width, 64, 1),
        up=nn.Conv2d(64, width, 1),
        value=nn.Conv2d(width, width, 1),
        halves=nn.Conv2d(width, 2 * width, 1),
    )


@pytest.mark.parametrize("kind", GATES)
def test_gates_are_products_of_independent_factors(kind: str) -> None:
    torch.manual_seed(0)
    table = nl.probe(gated(kind), torch.randn(16, 256, 8, 8), ["signal"]).signal
    for column in ("branch_second_moment", "branch_variance", "sum_second_moment"):
        assert table[f"predicted_{column}"][0] == pytest.approx(table[column][0], rel=0.05)


class Attention(nn.Module):
    """x + W softmax(q kᵀ / √d) v with one head, logits of deviation `scale`², and values of this mean."""

    def __init__(self, width: int, scale: float, mean: float = 0.0, *, causal: bool = False) -> None:
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        for layer, deviation in ((self.query, scale), (self.key, scale), (self.value, 1.0), (self.output, 1.0)):
            nn.init.normal_(layer.weight, std=deviation / width**0.5)
            nn.init.zeros_(layer.bias)
        nn.init.constant_(self.value.bias, mean)
        self.causal = causal

    def forward(self, x: Tensor) -> Tensor:
        parts = (layer(x) for layer in (self.query, self.key, self.value))
        return x + self.output(F.scaled_dot_product_attention(*parts, is_causal=self.causal))  # type: ignore[misc, no-any-return]


@pytest.mark.parametrize(("scale", "mean"), [(0.1, 0.3), (1.0, 0.0)])
def test_attention_averages_over_positions(scale: float, mean: float) -> None:
    """Logits N(0, scale⁴): the variance of an average of 256 values times e^{scale⁴}, and their shift."""
    torch.manual_seed(0)
    table = nl.probe(Attention(256, scale, mean), torch.randn(8, 256, 256), ["signal"]).signal
    assert table["predicted_branch_second_moment"][0] == pytest.approx(table["branch_second_moment"][0], rel=0.08)
    closed = (torch.e ** (scale**4) + scale**4) / 256 + mean**2
    assert table["predicted_branch_second_moment"][0] == pytest.approx(closed, rel=0.1)
