"""DeepNorm, Admin and T-Fixup by their formulas."""

from __future__ import annotations

from math import sqrt
from typing import Any

import pytest
import torch
from edit_helpers import added, altered, edited, removed
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl
from normless.edits import DeepNorm, RemoveNorms, TFixup
from normless.models import transformer
from normless.models.transformer import Transformer
from normless.nn import ResidualSum
from normless.residual import traced_map

WIDTH = 64


class Attention(nn.Module):
    """One head; queries, keys and values from matrices of their own or from one."""

    def __init__(self, packed: bool = False) -> None:
        super().__init__()
        if packed:
            self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        else:
            self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.packed = packed
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        memory = x if memory is None else memory
        q, k, v = self.qkv(x).chunk(3, -1) if self.packed else (self.query(x), self.key(memory), self.value(memory))
        h: Tensor = self.out(F.scaled_dot_product_attention(q, k, v))
        return h


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear1, self.linear2 = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.linear2(F.relu(self.linear1(x)))
        return h


class TransformerLayer(nn.Module):
    """Post-norm; the sums are modules."""

    def __init__(self, cross: bool = False, packed: bool = False) -> None:
        super().__init__()
        self.attention, self.feed_forward = Attention(packed), FeedForward()
        self.cross = Attention() if cross else None
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3 if cross else 2))
        self.sums = nn.ModuleList(ResidualSum() for _ in range(3 if cross else 2))

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        x = self.norms[0](self.sums[0](x, self.attention(x)))
        if self.cross is not None:
            x = self.norms[1](self.sums[1](x, self.cross(x, memory)))
        h: Tensor = self.norms[-1](self.sums[-1](x, self.feed_forward(x)))
        return h


class Encoder(nn.Module):
    def __init__(self, depth: int, packed: bool = False) -> None:
        super().__init__()
        self.tokens = nn.Embedding(2000, WIDTH, padding_idx=0)
        self.layers = nn.ModuleList(TransformerLayer(packed=packed) for _ in range(depth))
        self.classifier = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.tokens(x)
        for layer in self.layers:
            h = layer(h)
        logits: Tensor = self.classifier(h)
        return logits


class EncoderDecoder(nn.Module):
    def __init__(self, encoder: int, decoder: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(2000, WIDTH)
        self.encoder = nn.ModuleList(TransformerLayer() for _ in range(encoder))
        self.decoder = nn.ModuleDict(
            {"tokens": nn.Embedding(2000, WIDTH), **{f"l{i}": TransformerLayer(cross=True) for i in range(decoder)}}
        )
        self.classifier = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        memory, h = self.tokens(x), self.decoder["tokens"](y)
        for layer in self.encoder:
            memory = layer(memory)
        for name, layer in self.decoder.items():
            h = h if name == "tokens" else layer(h, memory)
        logits: Tensor = self.classifier(h)
        return logits


TOKENS = torch.randint(1, 2000, (2, 7), generator=torch.Generator().manual_seed(0))


def gain(weight: Tensor) -> float:
    """The gain that Xavier's variance was scaled by, estimated from the entries (4096 and more: within 3%)."""
    return (weight.std() * sqrt(sum(weight.shape) / 2)).item()


def close(value: float | list[float]) -> Any:
    return pytest.approx(value, rel=0.05)


def check_layer(layer: TransformerLayer, beta: float, attention: Attention | None = None) -> None:
    attention = layer.attention if attention is None else attention
    assert [gain(one.weight) for one in (attention.query, attention.key)] == close([1.0] * 2)
    ends = (attention.value, attention.out, layer.feed_forward.linear1, layer.feed_forward.linear2)
    assert [gain(one.weight) for one in ends] == close([beta] * 4)
    assert not any(one.bias.any() for one in (attention.query, attention.key, *ends))


@pytest.mark.parametrize("depth", [1, 4])
def test_deepnorm_of_one_stack(depth: int) -> None:
    """N layers: α = (2N)^(1/4), β = (8N)^(-1/4); table 2, encoder-only."""
    model = Encoder(depth)
    net = edited(model, DeepNorm(), inputs=(TOKENS,))
    for layer in net.layers:
        assert [total.skip_factor for total in layer.sums] == pytest.approx([(2 * depth) ** 0.25] * 2, rel=1e-12)
        check_layer(layer, (8 * depth) ** -0.25)
    assert not any(name.startswith(("tokens", "classifier")) or "norms" in name for name in altered(model, net))


def test_deepnorm_is_the_norm_of_alpha_x_plus_branch() -> None:
    net = edited(Encoder(2), DeepNorm(), inputs=(TOKENS,))
    layer, x = net.layers[1], torch.randn(2, 7, WIDTH)
    h = layer.norms[0](4**0.25 * x + layer.attention(x))
    torch.testing.assert_close(layer(x), layer.norms[1](4**0.25 * h + layer.feed_forward(h)))


def test_deepnorm_of_an_encoder_and_a_decoder() -> None:
    n, m = 2, 3
    net = edited(EncoderDecoder(n, m), DeepNorm(), inputs=(TOKENS, TOKENS))
    for layer in net.encoder:
        alpha = 0.81 * (n**4 * m) ** (1 / 16)
        assert [total.skip_factor for total in layer.sums] == pytest.approx([alpha] * 2, rel=1e-12)
        check_layer(layer, 0.87 * (n**4 * m) ** (-1 / 16))
    for name, layer in net.decoder.items():
        if name != "tokens":
            assert [total.skip_factor for total in layer.sums] == pytest.approx([(3 * m) ** 0.25] * 3, rel=1e-12)
            check_layer(layer, (12 * m) ** -0.25)
            check_layer(layer, (12 * m) ** -0.25, layer.cross)


def test_packed_queries_keys_and_values_are_told_apart() -> None:
    net = edited(Encoder(2, packed=True), DeepNorm(), inputs=(TOKENS,))
    query, key, value = net.layers[0].attention.qkv.weight.chunk(3)
    assert [gain(query), gain(key)] == close([1.0] * 2)
    assert gain(value) == close(16**-0.25)


def test_t_fixup_of_one_stack() -> None:
    """0.67·N^(-1/4) on values, outputs and feed-forward; embeddings of deviation d^(-1/2)·(9N)^(-1/4)."""
    depth = 3
    net = edited(Encoder(depth), RemoveNorms(), TFixup(), inputs=(TOKENS,))
    for layer in net.layers:
        check_layer(layer, 0.67 * depth**-0.25)
        assert all(total.is_plain for total in layer.sums)
    assert net.tokens.weight[1:].std().item() == close(WIDTH**-0.5 * (9 * depth) ** -0.25)
    assert not net.tokens.weight[0].any()
    assert gain(net.classifier.weight) == pytest.approx(1, rel=0.15)
    assert not net.classifier.bias.any()
    assert not [module for module in net.modules() if isinstance(module, nn.LayerNorm)]


def test_t_fixup_of_an_encoder_and_a_decoder() -> None:
    net = edited(EncoderDecoder(2, 4), RemoveNorms(), TFixup(), inputs=(TOKENS, TOKENS))
    for layer in net.encoder:
        check_layer(layer, 0.67 * 2**-0.25)
    for name, layer in net.decoder.items():
        if name != "tokens":
            check_layer(layer, 36**-0.25)
            check_layer(layer, 36**-0.25, layer.cross)
    assert net.tokens.weight.std().item() == close(WIDTH**-0.5 * 18**-0.25)
    assert net.decoder["tokens"].weight.std().item() == close(WIDTH**-0.5 * 36**-0.25)


def test_a_table_that_is_the_classifier_too_is_drawn_as_a_table() -> None:
    model = Encoder(1)
    model.classifier = nn.Linear(WIDTH, 2000, bias=False)
    model.classifier.weight = model.tokens.weight
    net = edited(model, RemoveNorms(), TFixup(), inputs=(TOKENS,))
    assert net.classifier.weight is net.tokens.weight
    assert net.tokens.weight[1:].std().item() == close(WIDTH**-0.5 * 9**-0.25)


def test_a_stack_that_is_no_whole_layers_is_refused() -> None:
    model = EncoderDecoder(1, 1)
    model.decoder["l1"] = TransformerLayer()
    with pytest.raises(nl.UnsupportedEditError, match="a layer of the decoder was expected to have 3 residual sums"):
        edited(model, DeepNorm(), inputs=(TOKENS, TOKENS))


ADMIN_WIDTH, LAYERS, DECODER_LAYERS = 16, 2, 2


def seq2seq(dropout: float = 0.0, norm: Any = "post") -> Transformer:
    torch.manual_seed(0)
    sizes = {
        "layers": LAYERS,
        "width": ADMIN_WIDTH,
        "heads": 2,
        "feed_forward": 24,
        "decoder_layers": DECODER_LAYERS,
    }
    return transformer(30, norm=norm, dropout=dropout, **sizes)


def tokens(*shape: int) -> Tensor:
    return torch.randint(1, 30, shape, generator=torch.Generator().manual_seed(2))


def encoder(layers: int = 3, norm_first: bool = False) -> nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(ADMIN_WIDTH, 2, 32, dropout=0.1, batch_first=True, norm_first=norm_first)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


def expected(variances: list[tuple[float, float]]) -> list[float]:
    """ω of one stack by Var[x₀] and Var[f_j], from (variance of the skip path, of the branch) of each sum."""
    omegas, reached = [1.0], variances[0][0]
    for _, branch in variances[:-1]:
        reached += branch
        omegas.append(reached**0.5)
    return omegas


def test_omega_is_the_root_of_the_summed_variances_of_either_stack() -> None:
    model, inputs = seq2seq(dropout=0.3), (tokens(4, 7), tokens(4, 5))
    variances: dict[str, tuple[float, float]] = {}
    for name, module in model.named_modules():
        if isinstance(module, ResidualSum):
            module.register_forward_hook(
                lambda _, sides, __, name=name: variances.update(
                    {name: (sides[0].var(correction=0).item(), sides[1].var(correction=0).item())}
                )
            )
    model.eval()(*inputs)
    measured = dict(variances)
    net = nl.convert(model.train(), "admin", *inputs)
    omegas = {name: module.skip_multiplier for name, module in net.named_modules() if isinstance(module, ResidualSum)}
    for stack, count in (("encoder", 2 * LAYERS), ("decoder", 3 * DECODER_LAYERS)):
        names = [name for name in measured if name.startswith(stack)]
        assert len(names) == count
        for name, omega in zip(names, expected([measured[name] for name in names]), strict=True):
            value = omegas[name]
            assert isinstance(value, nn.Parameter)
            torch.testing.assert_close(value.detach(), torch.full((ADMIN_WIDTH,), omega))
    assert net.training
    assert added(model, net) == {f"{name}.skip_multiplier" for name in omegas}
    assert not altered(model, net) | removed(model, net)


def test_a_post_norm_layer_of_torch_becomes_norm_of_omega_x_plus_branch() -> None:
    model, x = encoder(), torch.randn(2, 5, ADMIN_WIDTH)
    net = nl.convert(model, "admin", x)
    omegas = [p for name, p in net.named_parameters() if name.endswith("skip_multiplier")]
    assert [omega.shape for omega in omegas] == [(ADMIN_WIDTH,)] * 6
    model.eval()
    h, reached, values = x, x.var(correction=0).item(), []
    for layer in model.layers:
        for norm, branch in ((layer.norm1, layer._sa_block), (layer.norm2, layer._ff_block)):
            f = branch(h, None, None) if branch == layer._sa_block else branch(h)
            values.append(1.0 if not values else reached**0.5)
            reached += f.var(correction=0).item()
            h = norm(h + f)
    assert [omega[0].item() for omega in omegas] == pytest.approx(values, rel=1e-5)
    with torch.no_grad():
        for omega in omegas:
            omega.add_(torch.rand(ADMIN_WIDTH))
    h = x
    for index, layer in enumerate(model.layers):
        h = layer.norm1(omegas[2 * index] * h + layer._sa_block(h, None, None))
        h = layer.norm2(omegas[2 * index + 1] * h + layer._ff_block(h))
    torch.testing.assert_close(net.eval()(x), h)


def test_omega_is_trained_without_decay_and_gets_its_gradient() -> None:
    net = nl.convert(seq2seq(), "admin", tokens(4, 7), tokens(4, 5))
    net(tokens(4, 7), tokens(4, 5)).square().mean().backward()
    groups = {group["name"]: group for group in nl.param_groups(net, lr=0.1, weight_decay=0.1)}
    assert len(groups["layer_scale"]["params"]) == 2 * LAYERS + 3 * DECODER_LAYERS
    assert groups["layer_scale"]["weight_decay"] == 0
    assert all(p.grad is not None and p.grad.any() for p in groups["layer_scale"]["params"])


def test_the_map_shows_it_on_the_skip_path_stated_and_traced() -> None:
    inputs = (tokens(4, 7), tokens(4, 5))
    net = nl.convert(seq2seq(), "admin", *inputs)
    mapped = nl.residual_map(net)
    assert mapped == traced_map(net, *inputs)
    block = mapped.blocks[1]
    assert not block.identity_skip
    assert [(layer.kind, layer.gamma) for layer in block.skip_layers] == [
        ("scale", f"{block.name}.sum.skip_multiplier")
    ]
    assert "skip multiplier" in str(mapped)
    assert "skip_multiplier" in str(net.get_submodule(f"{block.name}.sum"))


def test_the_skip_paths_moments_are_predicted_and_measured_with_it() -> None:
    """Of the input each channel by itself; after a layer norm all channels have second moment 1, times ω²."""
    x, channels = torch.randn(32, 5, ADMIN_WIDTH), torch.linspace(1, 3, ADMIN_WIDTH)
    net = nl.convert(encoder(1), "admin", x)
    first, second = (module for module in net.modules() if isinstance(module, ResidualSum))
    with torch.no_grad():
        first.skip_multiplier.copy_(channels)
        table = nl.probe(net.eval(), x, ["signal"]).signal
    scaled = [(x.square().mean((0, 1)) * channels**2).mean().item(), second.skip_multiplier[0].item() ** 2]
    assert table["skip_second_moment"].to_numpy() == pytest.approx(scaled, rel=1e-3)
    assert table["predicted_skip_second_moment"].to_numpy() == pytest.approx(scaled, rel=1e-3)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.norm = nn.Linear(8, 8), nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(x + self.two(torch.relu(self.one(x))))
        return y


class Shared(nn.Module):
    """One post-norm block that runs three times."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.head = Block(), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.block(self.block(self.block(x))))
        return y


def test_a_block_that_runs_repeatedly_has_no_omega_of_its_own() -> None:
    with pytest.raises(nl.UnsupportedEditError, match="it has several branches, or runs several times"):
        nl.convert(Shared(), "admin", torch.randn(4, 8))
