"""What a tape records of attention, however torch's function is called."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normless.diagnosis import diagnose
from normless.diagnosis.tape import recorded


class Attending(nn.Module):
    """Four heads of queries and two of keys, on three positions; every call by keyword."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale, self.mask = scale, torch.ones(3, 3, dtype=torch.bool)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        value = torch.ones_like(key)
        return F.scaled_dot_product_attention(
            query=query, key=key, value=value, attn_mask=self.mask, scale=self.scale, enable_gqa=True
        )


@pytest.mark.parametrize(("scale", "peaked"), [(1e-9, 0.0), (1e9, 1.0)])
def test_keywords_masks_and_grouped_queries(scale: float, peaked: float) -> None:
    query, key = torch.randn(2, 4, 3, 8), torch.randn(2, 2, 3, 8)
    model = Attending(scale)
    with recorded(model, (query, key)) as tape:
        model(query, key)
    (event,) = tape.events
    assert (event.kind, event.peaked) == ("attention", peaked)


@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_rows_of_torchs_module_are_its_own_weights(factor: float) -> None:
    torch.manual_seed(0)
    model, x = nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(4, 5, 8)
    with torch.no_grad():
        model.in_proj_weight.mul_(factor)
    with recorded(model, x) as tape:
        _, weights = model(x, x, x, average_attn_weights=False)
    event = next(one for one in tape.events if one.name == "multi_head_attention_forward")
    assert event.peaked == pytest.approx(float((weights.amax(-1) > 0.99).double().mean()))


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


def test_an_input_without_an_axis_is_no_batch_of_equal_examples() -> None:
    assert "constant_inputs" not in [
        one.kind for one in diagnose(Scaled(), (torch.tensor(2.0), torch.arange(4) % 3)).findings
    ]
