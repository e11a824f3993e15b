"""Rewritten code: fused layers, gathered keywords, methods kept as attributes."""

from __future__ import annotations

import pickle
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import normless as nl
from normless._internal.state import unfused


class Keeping(nn.Module):
    """A block whose addition is a method that it chose when it was built."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first, self.second = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.keep()

    def keep(self) -> None:
        self.fusion: Any = self._add

    def _add(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y

    def _mean(self, x: Tensor, y: Tensor) -> Tensor:
        return (x + y) / 2

    def branch(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(torch.relu(self.first(self.norm(x))))
        return y

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fusion(x, self.branch(x))
        return y


class OneOfTwo(Keeping):
    def keep(self) -> None:
        self.fusion = self._mean


class OfADictionary(Keeping):
    def keep(self) -> None:
        self.ways = {"add": self._add, "mean": self._mean}

    def forward(self, x: Tensor) -> Tensor:
        return self.ways["add"](x, self.branch(x))


class OfAList(Keeping):
    def keep(self) -> None:
        self.ways = [self.branch, self._add]

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.ways[1](x, self.ways[0](x))
        return y


class Partially(Keeping):
    def keep(self) -> None:
        self.fusion = partial(self._scaled, factor=0.5)

    def _scaled(self, x: Tensor, y: Tensor, factor: float) -> Tensor:
        return x + factor * y


KINDS = [Keeping, OneOfTwo, OfADictionary, OfAList, Partially]


@pytest.mark.parametrize("kind", KINDS)
def test_a_kept_method_adds_by_the_new_module(kind: type[Keeping]) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 8), kind(), kind()), torch.randn(4, 8)
    net: Any = nl.convert(model, "sqrt2(keep_scale=False)", x)
    without: Any = nl.convert(model, "none(keep_scale=False)", x)
    expected = without[0](x)
    for block in without[1:]:
        expected = block(expected) / 2**0.5
    for one in (net, deepcopy(net), pickle.loads(pickle.dumps(net))):
        torch.testing.assert_close(one(x), expected)
    assert type(model[1]) is kind
    torch.testing.assert_close(nl.convert(model, "skipinit(alpha=1, keep_scale=False)", x)(x), without(x))


X = torch.randn(2, 5, 8)


def encoder(norm_first: bool = False) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(8, 2, 12, 0.1, batch_first=True, norm_first=norm_first)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first)


def by_modules(model: nn.TransformerEncoder, scheme: str) -> torch.Tensor:
    """Post-norm layers written out, with the norms or without."""
    h = X
    for layer in model.layers:
        norms = (layer.norm1, layer.norm2) if scheme == "batch_norm_sqrt2" else (nn.Identity(), nn.Identity())
        scale = 1.0 if scheme == "none" else 0.5**0.5
        h = norms[0]((h + layer.self_attn(h, h, h, need_weights=False)[0]) * scale)
        h = norms[1]((h + layer.linear2(layer.activation(layer.linear1(h)))) * scale)
    return h


@pytest.mark.parametrize("scheme", ["none", "sqrt2", "batch_norm_sqrt2"])
@pytest.mark.parametrize("gradients", [True, False])
def test_converted_layers_run_their_modules_in_evaluation_mode(scheme: str, gradients: bool) -> None:
    model = encoder()
    net = nl.convert(model, scheme, X).eval()
    with torch.set_grad_enabled(gradients):
        torch.testing.assert_close(net(X), by_modules(model.eval(), scheme))
        padded = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
        if scheme == "none":
            alone = net(X[1:, :3])
            torch.testing.assert_close(net(X, src_key_padding_mask=padded)[1:, :3], alone)


def test_the_original_keeps_its_fused_path_and_the_switch_its_state() -> None:
    model = encoder()
    nl.convert(model, "none", X)
    assert model.layers[0].activation_relu_or_gelu == 1
    assert model.use_nested_tensor
    assert torch.backends.mha.get_fastpath_enabled()
    with unfused():
        assert not torch.backends.mha.get_fastpath_enabled()
    assert torch.backends.mha.get_fastpath_enabled()


SEQUENCE, MASK = torch.randn(3, 4), torch.rand(3, 1)


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor, mask: Tensor | None = None, scale: float = 1.0) -> Tensor:
        y: Tensor = self.layer(x) * scale
        return y if mask is None else y * mask


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(4), Inner()

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        return x + self.inner(self.norm(x), **kwargs)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.first, self.second, self.head = nn.Linear(4, 4), Block(), Block(), nn.Linear(4, 2)

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        logits: Tensor = self.head(self.second(self.first(self.stem(x), **kwargs), **kwargs))
        return logits


def halved(model: Network, x: Tensor, **kwargs: Any) -> Tensor:
    h = model.stem(x)
    for block in (model.first, model.second):
        h = block(h, **kwargs) / 2**0.5
    return model.head(h)


GIVEN: list[dict[str, Any]] = [{}, {"mask": MASK}, {"scale": 2.0}, {"scale": 0.5, "mask": MASK}]


@pytest.mark.parametrize("made", GIVEN)
def test_the_rewritten_code_takes_them_whatever_it_was_converted_with(made: dict[str, Any]) -> None:
    model = Network()
    net = nl.convert(model, "batch_norm_sqrt2", SEQUENCE, **made)
    for called in (*GIVEN, {"mask": 3 * MASK - 1}):
        torch.testing.assert_close(net(SEQUENCE, **called), halved(model, SEQUENCE, **called))
        assert torch.equal(pickle.loads(pickle.dumps(net))(SEQUENCE, **called), net(SEQUENCE, **called))
