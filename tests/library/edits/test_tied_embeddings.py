"""A classifier whose weight embeds the input too: no edit of the classifier draws or zeroes it."""

from __future__ import annotations

import pytest
import torch
from edit_helpers import altered, edited
from torch import Tensor, nn

import normless as nl
from normless.edits import LSUV, Edit, Reinitialize, ZeroClassifier

TOKENS = torch.randint(30, (4, 6), generator=torch.Generator().manual_seed(0))


class Tied(nn.Module):
    def __init__(self, tied: bool = True) -> None:
        super().__init__()
        self.embedding, self.inner, self.classifier = nn.Embedding(30, 8), nn.Linear(8, 8), nn.Linear(8, 30)
        if tied:
            self.classifier.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        logits: Tensor = self.classifier(x + torch.relu(self.inner(x)))
        return logits


@pytest.mark.parametrize("edit", [ZeroClassifier(), Reinitialize("xavier"), LSUV()], ids=repr)
@pytest.mark.parametrize("tied", [True, False])
def test_the_shared_weight_stays(edit: Edit, tied: bool) -> None:
    model = Tied(tied)
    net = edited(model, edit, inputs=(TOKENS,))
    assert (net.classifier.weight is net.embedding.weight) == tied
    changed = altered(model, net)
    assert "embedding.weight" not in changed
    assert ("classifier.weight" in changed) == (not tied)
    assert ("inner.weight" in changed) == (not isinstance(edit, ZeroClassifier))
    assert not net.classifier.bias.any()


def test_lsuv_takes_inputs_by_name_and_refuses_packed_attention() -> None:
    net = nl.convert(Tied(False), "lsuv", tokens=TOKENS)
    x = net.embedding(TOKENS)
    assert net.inner(x).var(correction=0).item() == pytest.approx(1, abs=0.02)
    layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)
    with pytest.raises(nl.UnsupportedEditError, match=r"self_attn: it is not a layer with one weight and one output"):
        nl.convert(layer, "lsuv", torch.randn(2, 5, 8))


def test_packed_projections_are_drawn_each_by_its_own_shape() -> None:
    layer = nn.TransformerEncoderLayer(64, 2, 64, batch_first=True)
    with torch.no_grad():
        layer.self_attn.in_proj_bias.fill_(1.0)
    net = nl.convert(layer, "xavier", torch.randn(2, 5, 64))
    for part in net.self_attn.in_proj_weight.chunk(3):
        assert part.var().item() == pytest.approx(1 / 64, rel=0.06)
    assert not net.self_attn.in_proj_bias.any()
    assert not net.self_attn.out_proj.bias.any()
