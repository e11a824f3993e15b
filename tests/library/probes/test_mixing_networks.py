"""Mixing of examples in networks of libraries, converted networks, sequences and experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
from gallery import ROWS
from matrix.case import Subject
from torch import Tensor, nn
from transformers import BertConfig, BertModel
from written_networks import Written

import normless as nl
from normless.nn import AlternatingBatchNorm2d, GhostBatchNorm2d, PartialBatchNorm2d


def sequence_first(mixing: bool) -> nn.Module:
    """A transformer whose layers see (T, B, C), the batch on axis 1, or on axis 0, where it mixes."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=mixing)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return Written(lambda m, x: m.encoder(x.transpose(0, 1)).transpose(0, 1), encoder=encoder)


def windows(crossing: bool) -> nn.Module:
    """Attention inside windows: (B, T, C) to (B·T/2, 2, C) and back, or in windows that cross examples."""

    def forward(m: Any, x: Tensor) -> Tensor:
        parts = x.transpose(0, 1) if crossing else x
        folded = parts.reshape(-1, 2, x.shape[-1])
        folded = m.attention(folded, folded, folded)[0].reshape(parts.shape)
        return x + (folded.transpose(0, 1) if crossing else folded)  # type: ignore[no-any-return]

    return Written(forward, attention=nn.MultiheadAttention(8, 2, batch_first=True))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm2d,
        nn.SyncBatchNorm,
        timm.layers.BatchNormAct2d,
        lambda channels: GhostBatchNorm2d(channels, ghost_size=2),
        lambda channels: PartialBatchNorm2d(channels, variance=False),
        lambda channels: PartialBatchNorm2d(channels, mean=False),
        AlternatingBatchNorm2d,
        lambda channels: nn.BatchNorm2d(channels, track_running_stats=False),
    ],
)
def test_batch_norms_mix_in_training_only(norm: Callable[[int], nn.Module], training: bool) -> None:
    model = nn.Sequential(nn.Conv2d(3, 6, 3), norm(6), nn.ReLU(), nn.Conv2d(6, 6, 3), norm(6)).train(training)
    always = getattr(model[1], "running_mean", None) is None
    found = nl.mixes_examples(model, torch.randn(4, 3, 6, 6))
    assert [module.path for module in found.modules] == (["1", "4"] if training or always else [])
    assert found.state == (("1", "4") if training and not always else ())


@pytest.mark.parametrize(
    ("model", "culprits"),
    [
        (sequence_first(False), []),
        (sequence_first(True), ["encoder.layers.0.self_attn", "encoder.layers.1.self_attn"]),
        (windows(False), []),
        (windows(True), [""]),
        (nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2), []),
        (nn.LSTM(8, 8, batch_first=True), []),
        (nn.LSTM(8, 8), [""]),
        (nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.Flatten(), nn.Linear(48, 5)), []),
    ],
)
def test_sequences(model: nn.Module, culprits: list[str]) -> None:
    """Six tokens, with six examples too, so that the axes do not differ in length only."""
    for training, batch in ((True, 6), (False, 4)):
        found = nl.mixes_examples(model.train(training), torch.randn(batch, 6, 8))
        assert [module.path for module in found.modules] == culprits


@pytest.mark.parametrize(
    ("name", "culprits"),
    [*((name, []) for name in ("Swin", "BERT", "hf BERT", "T5", "ConvNeXt")), ("an exponential", [""])],
)
def test_networks_of_the_gallery_mix_where_a_batch_is_not_its_examples(name: str, culprits: list[str]) -> None:
    """Swin folds its windows into the batch; ConvNeXt drops whole branches, each example by itself."""
    subject = Subject(ROWS[name])
    assert bool(subject.mixes(subject.model.eval())) == bool(culprits)
    for training in (True, False):
        found = nl.mixes_examples(subject.model.train(training), *subject.inputs, **subject.kwargs)
        assert [module.path for module in found.modules] == culprits


def test_one_field_of_an_output_that_mixes() -> None:
    class Centred(BertModel):
        def forward(self, **inputs: Tensor) -> object:
            output = super().forward(**inputs)
            output.pooler_output = output.pooler_output - output.pooler_output.mean(0)
            return output

    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    mask = (torch.arange(9) < torch.tensor([[9], [5], [7], [3]])).long()
    model = Centred(BertConfig(vocab_size=32, max_position_embeddings=12, **sizes))
    found = nl.mixes_examples(model, input_ids=torch.randint(0, 32, (4, 9)), attention_mask=mask)
    assert [module.path for module in found.modules] == [""]


def experts(capacity: int | None = None) -> nn.Module:
    """Every token goes to one expert; the number of tokens there changes the rounding of its sums."""

    def forward(m: Any, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        chosen, output = m.router(tokens).argmax(1), torch.zeros_like(tokens)
        for index, expert in enumerate(m.experts):
            sent = (chosen == index).nonzero().flatten()[:capacity]
            output[sent] = expert(tokens[sent])
        return (tokens + output).view_as(x)

    return Written(forward, router=nn.Linear(96, 3), experts=nn.ModuleList(nn.Linear(96, 96) for _ in range(3)))


def test_experts_mix_only_where_tokens_compete_for_them() -> None:
    inputs = torch.randn(4, 9, 96)
    assert not nl.mixes_examples(nn.Sequential(experts(), experts()), inputs)
    crowded = nl.mixes_examples(nn.Sequential(experts(), experts(3)), inputs)
    assert [module.path for module in crowded.modules] == ["1"]
