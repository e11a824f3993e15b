"""Mixing of examples by batch norms and in sequences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
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
        lambda channels: GhostBatchNorm2d(channels, ghost_size=2),
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
        (nn.LSTM(8, 8, batch_first=True), []),
        (nn.LSTM(8, 8), [""]),
    ],
)
def test_sequences(model: nn.Module, culprits: list[str]) -> None:
    """Six tokens, with six examples too, so that the axes do not differ in length only."""
    for training, batch in ((True, 6), (False, 4)):
        found = nl.mixes_examples(model.train(training), torch.randn(batch, 6, 8))
        assert [module.path for module in found.modules] == culprits
