"""Parameters with two axes that are not matrices, networks that name what does not decay, and layer-wise rates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
from timm.optim import param_groups_layer_decay
from torch import Tensor, nn
from torch.nn import functional as F
from written_networks import Written

import normless as nl
from normless.optim._roles import parameter_roles

RATES: dict[str, Any] = {"lr": 1.0, "weight_decay": 0.05}


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.rand(shape) + 0.5)


def _mamba(m: Any, x: Tensor) -> Tensor:
    step, into, out_of = F.softplus(m.step(x)), m.into(x), m.out_of(x)
    state, made = torch.zeros(len(x), 8, 4), []
    for t in range(x.shape[1]):
        decay = torch.exp(-step[:, t, :, None] * torch.exp(m.A_log))
        state = decay * state + step[:, t, :, None] * into[:, t, None] * x[:, t, :, None]
        made.append((state * out_of[:, t, None]).sum(-1))
    return torch.stack(made, 1)


def _rwkv(m: Any, x: Tensor) -> Tensor:
    key, value = (layer(x).unflatten(-1, (2, 4)) for layer in (m.key, m.value))
    state, made = torch.zeros(len(x), 2, 4, 4), []
    for t in range(x.shape[1]):
        pairs = key[:, t, :, :, None] * value[:, t, :, None]
        made.append((state + m.bonus[..., None] * pairs).sum(2))
        state = pairs + torch.exp(-torch.exp(m.time_decay))[..., None] * state
    return torch.stack(made, 1).flatten(2)


def _kan(m: Any, x: Tensor) -> Tensor:
    bases = torch.stack([torch.sin(x * k) for k in range(1, 6)], -1).flatten(-2)
    return F.linear(bases, (m.spline_weight * m.spline_scaler[..., None]).flatten(1))


def _fusion(m: Any, x: Tensor) -> Tensor:
    shares = [F.relu(row) / F.relu(row).sum() for row in m.shares]
    for first, second in shares:
        x = first * x + second * m.layer(x).relu()
    return x


def _heads(m: Any, x: Tensor) -> Tensor:
    query = (m.query(x).unflatten(-1, (2, 4)) * m.scale).transpose(1, 2)
    key, value = (x.unflatten(-1, (2, 4)).transpose(1, 2) for _ in "ab")
    return F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)


def _filter(m: Any, x: Tensor) -> Tensor:
    spectrum = torch.fft.rfft(x, dim=1) * torch.view_as_complex(m.filters)
    return torch.fft.irfft(spectrum, n=x.shape[1], dim=1)


def _low_rank(m: Any, x: Tensor) -> Tensor:
    return F.linear(x, m.up @ m.down)


def linear(inner: int, outer: int) -> nn.Module:
    return nn.Linear(inner, outer, bias=False)


BRANCHES: dict[
    str, tuple[Callable[[Written, Tensor], Tensor], dict[str, nn.Module | nn.Parameter], dict[str, str]]
] = {
    "a state-space model": (
        _mamba,
        {"step": linear(8, 8), "into": linear(8, 4), "out_of": linear(8, 4), "A_log": parameter(8, 4)},
        {"A_log": "layer_scale"},
    ),
    "RWKV": (
        _rwkv,
        {"key": linear(8, 8), "value": linear(8, 8), "bonus": parameter(2, 4), "time_decay": parameter(2, 4)},
        {"bonus": "layer_scale", "time_decay": "layer_scale"},
    ),
    "KAN": (
        _kan,
        {"spline_weight": parameter(8, 8, 5), "spline_scaler": parameter(8, 8)},
        {"spline_scaler": "gains"},
    ),
    "a fusion": (_fusion, {"shares": parameter(3, 2), "layer": linear(8, 8)}, {"shares": "layer_scale"}),
    "of heads": (_heads, {"query": linear(8, 8), "scale": parameter(2, 4)}, {"scale": "layer_scale"}),
    "filters": (_filter, {"filters": parameter(4, 8, 2)}, {}),
    "low rank": (_low_rank, {"up": parameter(8, 4), "down": parameter(4, 8)}, {}),
}


@pytest.mark.parametrize("name", BRANCHES)
def test_parameters_of_two_axes_are_weights_only_if_they_are_matrices(name: str) -> None:
    branch, parts, expected = BRANCHES[name]
    torch.manual_seed(0)
    block = Written(branch, **parts)
    model = Written(
        lambda m, x: m.head((h := m.stem(x)) + 0.1 * m.block(h)), stem=linear(6, 8), block=block, head=linear(8, 3)
    )
    found = parameter_roles(model, nl.residual_map(model, torch.randn(2, 6, 6)))
    assert {key.partition(".")[2]: role for key, role in found.items() if role != "weights"} == expected


class _Asks(nn.Module):
    """A network that keeps a table, and a matrix inside it, from decay."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.inner, self.head = nn.Embedding(7, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.inner.weight._no_weight_decay = True  # type: ignore[attr-defined]

    def no_weight_decay(self) -> set[str]:
        return {"table.weight", "absent"}

    def forward(self, x: Tensor) -> Tensor:
        h = self.table(x)
        outputs: Tensor = self.head(h + self.inner(h).relu())
        return outputs


def test_what_the_network_keeps_from_decay_does_not_decay_and_is_named() -> None:
    model, tokens = _Asks(), torch.arange(6).view(2, 3)
    groups = nl.param_groups(model, tokens, **RATES)
    decays = {id(own): group["weight_decay"] for group in groups for own in group["params"]}
    decayed = [name for name, own in model.named_parameters() if decays[id(own)]]
    assert decayed == ["head.weight"]
    assert "table.weight, inner.weight" in str(groups)
    by_pattern = nl.param_groups(model, tokens, **RATES, policy="weights+table.*")
    assert any(group["weight_decay"] and group["params"][0] is model.table.weight for group in by_pattern)


@pytest.mark.parametrize(("name", "side"), [("resnet18", 64), ("convnext_atto", 64), ("vit_tiny_patch16_224", 224)])
def test_rates_of_layers_are_those_of_timm(name: str, side: int) -> None:
    """But for the last norm of a ViT, which timm counts to the last block."""
    model = timm.create_model(name)
    own = nl.param_groups(model, torch.randn(2, 3, side, side), **RATES, policy="weights", layer_decay=0.75)
    theirs = param_groups_layer_decay(model, 0.05, layer_decay=0.75)
    names = {id(parameter): key for key, parameter in model.named_parameters()}
    expected = {names[id(one)]: group["lr_scale"] for group in theirs for one in group["params"]}
    found = {names[id(one)]: group["lr"] for group in own for one in group["params"]}
    differing = {key for key in expected if found[key] != pytest.approx(expected[key])}
    assert differing == ({"norm.weight", "norm.bias"} if "vit" in name else set())
    assert found.keys() == expected.keys()
    assert all(group["rate_scale"] == group["lr"] for group in own)
