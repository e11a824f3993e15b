"""torch's encoder layers, whose fused path reads weights past the modules: no conversion takes it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import normless as nl
from normless.state import unfused

X = torch.randn(2, 5, 8)


def by_modules(model: Any, scheme: str) -> Tensor:
    """Post-norm layers written out, with the norms or without."""
    h = X
    for layer in model.layers:
        norms = (layer.norm1, layer.norm2) if scheme == "batch_norm_sqrt2" else (nn.Identity(), nn.Identity())
        scale = 1.0 if scheme == "none" else 0.5**0.5
        h = norms[0]((h + layer.self_attn(h, h, h, need_weights=False)[0]) * scale)
        h = norms[1]((h + layer.linear2(layer.activation(layer.linear1(h)))) * scale)
    return h


@pytest.mark.parametrize(("scheme", "gradients"), [("none", False), ("sqrt2", True), ("batch_norm_sqrt2", False)])
def test_converted_layers_run_their_modules_in_evaluation_mode(scheme: str, gradients: bool) -> None:
    """The original keeps its fused path, and the switch its state."""
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 12, 0.1, batch_first=True), 2)
    net = nl.convert(model, scheme, X).eval()
    with torch.set_grad_enabled(gradients):
        torch.testing.assert_close(net(X), by_modules(model.eval(), scheme))
        padded = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
        if scheme == "none":
            torch.testing.assert_close(net(X, src_key_padding_mask=padded)[1:, :3], net(X[1:, :3]))
    assert model.layers[0].activation_relu_or_gelu == 1
    assert model.use_nested_tensor
    assert torch.backends.mha.get_fastpath_enabled()
    with unfused():
        assert not torch.backends.mha.get_fastpath_enabled()
    assert torch.backends.mha.get_fastpath_enabled()
