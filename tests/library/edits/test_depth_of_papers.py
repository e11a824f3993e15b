"""DeepNorm, T-Fixup and branches scaled with depth: the papers' constants, rates in groups, any depth."""

from __future__ import annotations

from math import sqrt
from typing import Any

import pytest
import torch
from edit_helpers import altered, close, edited, images
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl
from normless.edits import DeepNorm, RemoveNorms, TFixup
from normless.models import wide_resnet
from normless.nn import ResidualSum

WIDTH = 64
IDS = torch.randint(1, 2000, (2, 7), generator=torch.Generator().manual_seed(0))


class Words(nn.Module):
    """torch's post-norm encoder, or encoder and decoder, on embedded words."""

    def __init__(self, layers: int, decoder_layers: int = 0, tied: bool = False) -> None:
        super().__init__()
        self.source = nn.Embedding(2000, WIDTH, padding_idx=0)
        self.decoder = nn.ModuleDict({"tokens": nn.Embedding(2000, WIDTH)})
        self.classifier = nn.Linear(WIDTH, 2000 if tied else 5, bias=not tied)
        if decoder_layers:
            self.net: Any = nn.Transformer(WIDTH, 2, layers, decoder_layers, 128, dropout=0.0, batch_first=True)
        else:
            layer = nn.TransformerEncoderLayer(WIDTH, 2, 128, dropout=0.0, batch_first=True)
            self.net = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        if tied:
            self.classifier.weight = self.source.weight

    def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
        h = self.net(self.source(x)) if y is None else self.net(self.source(x), self.decoder["tokens"](y))
        return self.classifier(h)


def gain(weight: Tensor) -> float:
    """The gain that Xavier's variance was scaled by, estimated from the entries (4096 and more: within 3%)."""
    return (weight.std() * sqrt(sum(weight.shape) / 2)).item()


def about(value: float | list[float]) -> Any:
    return pytest.approx(value, rel=0.05)


def check_layer(layer: Any, alpha: float, beta: float) -> None:
    """The factor of each skip path, and the gains of the matrices, packed ones part by part."""
    attentions = [one for one in layer.modules() if isinstance(one, nn.MultiheadAttention)]
    sums = [one.skip_factor for one in layer.modules() if isinstance(one, ResidualSum)]
    assert sums == pytest.approx([alpha] * len(sums), rel=1e-12)
    assert len(sums) == (0 if alpha == 1 else len(attentions) + 1)
    for attention in attentions:
        assert [gain(part) for part in attention.in_proj_weight.chunk(3)] == about([1.0, 1.0, beta])
        assert gain(attention.out_proj.weight) == about(beta)
        assert not attention.in_proj_bias.any()
    assert [gain(one.weight) for one in (layer.linear1, layer.linear2)] == about([beta] * 2)
    assert not layer.linear1.bias.any()


def test_deepnorm_of_one_stack() -> None:
    """N layers: α = (2N)^(1/4), β = (8N)^(-1/4); table 2, encoder-only. A layer is norm(αx + f(x))."""
    depth = 4
    model, alpha = Words(depth), (2 * depth) ** 0.25
    net = edited(model, DeepNorm(), inputs=(IDS,))
    for layer in net.net.layers:
        check_layer(layer, alpha, (8 * depth) ** -0.25)
    assert not any(name.startswith(("source", "classifier")) or "norm" in name for name in altered(model, net))
    layer, x = net.net.layers[0], torch.randn(2, 7, WIDTH)
    h = layer.norm1(alpha * x + layer.self_attn(x, x, x, need_weights=False)[0])
    close(layer(x), layer.norm2(alpha * h + layer.linear2(F.relu(layer.linear1(h)))))


def test_deepnorm_and_t_fixup_of_an_encoder_and_a_decoder() -> None:
    """T-Fixup: 0.67·N^(-1/4) and (9M)^(-1/4); embeddings of deviation d^(-1/2)·(9N)^(-1/4)."""
    n, m = 2, 4
    model = Words(n, m)
    alpha, beta = 0.81 * (n**4 * m) ** (1 / 16), 0.87 * (n**4 * m) ** (-1 / 16)
    fixup = edited(model, RemoveNorms(), TFixup(), inputs=(IDS, IDS))
    for net, encoder, decoder in (
        (edited(model, DeepNorm(), inputs=(IDS, IDS)), (alpha, beta), ((3 * m) ** 0.25, (12 * m) ** -0.25)),
        (fixup, (1.0, 0.67 * n**-0.25), (1.0, (9 * m) ** -0.25)),
    ):
        for layers, constants in ((net.net.encoder.layers, encoder), (net.net.decoder.layers, decoder)):
            for layer in layers:
                check_layer(layer, *constants)
    assert fixup.source.weight[1:].std().item() == about(WIDTH**-0.5 * (9 * n) ** -0.25)
    assert fixup.decoder["tokens"].weight.std().item() == about(WIDTH**-0.5 * (9 * m) ** -0.25)


class Block(nn.Module):
    """x + W relu(x), the one-layer block of the paper."""

    def __init__(self) -> None:
        super().__init__()
        self.relu, self.linear, self.sum = nn.ReLU(), nn.Linear(256, 256, bias=False), ResidualSum()
        nn.init.normal_(self.linear.weight, std=sqrt(2 / 256))

    def forward(self, x: Tensor) -> Any:
        return self.sum(x, self.linear(self.relu(x)))


class Residual(nn.Module):
    """L such blocks."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(256, 256, bias=False), nn.Linear(256, 1, bias=False)
        self.blocks = nn.Sequential(*(Block() for _ in range(depth)))

    def forward(self, x: Tensor) -> Any:
        return self.head(self.blocks(self.stem(x)))

    def example_inputs(self) -> Tensor:
        return X


X, TARGET = torch.randn(8, 256, generator=torch.Generator().manual_seed(1)), torch.ones(8, 1)


def change(depth: int, scheme: str, kind: Any, lr: float, grouped: bool = True) -> float:
    """The root mean square change of the outputs by one step of the parameters on the branches alone."""
    torch.manual_seed(depth)
    net: Any = nl.convert(Residual(depth), scheme)
    inside = {id(parameter) for parameter in net.blocks.parameters()}
    groups = nl.param_groups(net, lr=lr, weight_decay=0.0)
    groups = [group | {"params": [one for one in group["params"] if id(one) in inside]} for group in groups]  # type: ignore[assignment]
    optimizer = kind(groups if grouped else [{"params": [*net.blocks.parameters()], "lr": lr}])
    before = net(X).detach()
    F.mse_loss(net(X), TARGET).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return float((net(X) - before).square().mean().sqrt().detach())


@pytest.mark.parametrize(
    ("scheme", "kind", "lr"),
    [
        ("depth_mup", torch.optim.Adam, 1e-4),
        ("depth_mup(optimizer=sgd)", torch.optim.SGD, 1e-2),
        ("completep", torch.optim.Adam, 1e-4),
    ],
)
def test_a_first_step_changes_the_output_as_much_at_any_depth(scheme: str, kind: Any, lr: float) -> None:
    changes = [change(depth, scheme, kind, lr) for depth in (4, 16, 64)]
    assert max(changes) < 1.7 * min(changes)


@pytest.mark.parametrize(
    ("scheme", "factor", "rate", "epsilon"),
    [
        ("depth_mup", 6**-0.5, 6**-0.5, 1.0),
        ("completep", 1 / 6, 1.0, 1 / 6),
        ("completep(alpha=0.75, base_depth=2)", 3**-0.75, 3**-0.25, 3**-0.75),
        ("as_written + ScaleBranches(exponent=0.75, optimizer='sgd')", 6**-0.75, 6**0.5, 1.0),
    ],
)
def test_the_constants_and_what_they_are_applied_to(scheme: str, factor: float, rate: float, epsilon: float) -> None:
    model = wide_resnet(16, 1)
    net: Any = nl.convert(model, scheme, images())
    assert [block.sum.branch_factor for block in net.blocks] == pytest.approx([factor] * 6)
    block, x = net.blocks[2], torch.randn(4, 16, 8, 8)
    h = torch.relu(block.norm1(x))
    close(
        block(x),
        block.shortcut(h) + factor * block.conv2(torch.relu(block.norm2(block.conv1(h)))),
        rtol=1e-4,
        atol=1e-5,
    )
    names = {id(parameter): name for name, parameter in net.named_parameters()}
    decays = {group["name"]: group["weight_decay"] for group in nl.param_groups(model, lr=0.1, weight_decay=0.01)}
    for group in nl.param_groups(net, lr=0.1, weight_decay=0.01, eps=1e-6):
        assert group["weight_decay"] == decays[group["name"].partition(":")[0]]
        for name in (names[id(parameter)] for parameter in group["params"]):
            # What a projecting block reads before its fork belongs to the skip path as well.
            outside = (
                not name.startswith("blocks")
                or "shortcut" in name
                or name.startswith(("blocks.2.norm1", "blocks.4.norm1"))
            )
            scaled = (1.0, 1.0) if outside else (rate, epsilon)
            assert (group["lr"], group["rate_scale"]) == pytest.approx((0.1 * scaled[0], scaled[0])), name
            assert group.get("eps", 1e-6) == pytest.approx(1e-6 * scaled[1])
            assert ("branches" in group["name"]) == (scaled != (1.0, 1.0)), name
