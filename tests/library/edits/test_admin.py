"""Admin: ω from variances that hooks of the test measure, what the converted network computes, refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from edit_helpers import added, altered, removed
from torch import Tensor, nn

import normless as nl
from normless.models import transformer
from normless.models.transformer import Transformer
from normless.nn import ResidualSum

WIDTH, LAYERS, DECODER_LAYERS = 16, 2, 2


def seq2seq(dropout: float = 0.0, norm: Any = "post") -> Transformer:
    torch.manual_seed(0)
    sizes = {"layers": LAYERS, "width": WIDTH, "heads": 2, "feed_forward": 24, "decoder_layers": DECODER_LAYERS}
    return transformer(30, norm=norm, dropout=dropout, **sizes)


def tokens(*shape: int) -> Tensor:
    return torch.randint(1, 30, shape, generator=torch.Generator().manual_seed(2))


def encoder(layers: int = 3, norm_first: bool = False) -> nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0.1, batch_first=True, norm_first=norm_first)
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
            torch.testing.assert_close(value.detach(), torch.full((WIDTH,), omega))
    assert net.training
    assert added(model, net) == {f"{name}.skip_multiplier" for name in omegas}
    assert not altered(model, net) | removed(model, net)
    groups = {group["name"]: group for group in nl.param_groups(net, lr=0.1, weight_decay=0.1)}
    assert len(groups["layer_scale"]["params"]) == 2 * LAYERS + 3 * DECODER_LAYERS
    assert groups["layer_scale"]["weight_decay"] == 0


def test_a_post_norm_layer_of_torch_becomes_norm_of_omega_x_plus_branch() -> None:
    model, x = encoder(), torch.randn(2, 5, WIDTH)
    net = nl.convert(model, "admin", x)
    omegas = [p for name, p in net.named_parameters() if name.endswith("skip_multiplier")]
    assert [omega.shape for omega in omegas] == [(WIDTH,)] * 6
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
            omega.add_(torch.rand(WIDTH))
    h = x
    for index, layer in enumerate(model.layers):
        h = layer.norm1(omegas[2 * index] * h + layer._sa_block(h, None, None))
        h = layer.norm2(omegas[2 * index + 1] * h + layer._ff_block(h))
    torch.testing.assert_close(net.eval()(x), h)


def test_the_skip_paths_moments_are_predicted_and_measured_with_it() -> None:
    """Of the input each channel by itself; after a layer norm all channels have second moment 1, times ω²."""
    x, channels = torch.randn(32, 5, WIDTH), torch.linspace(1, 3, WIDTH)
    net = nl.convert(encoder(1), "admin", x)
    first, second = (module for module in net.modules() if isinstance(module, ResidualSum))
    with torch.no_grad():
        first.skip_multiplier.copy_(channels)
        table = nl.probe(net.eval(), x, ["signal"]).signal
    scaled = [(x.square().mean((0, 1)) * channels**2).mean().item(), second.skip_multiplier[0].item() ** 2]
    assert table["skip_second_moment"].to_numpy() == pytest.approx(scaled, rel=1e-3)
    assert table["predicted_skip_second_moment"].to_numpy() == pytest.approx(scaled, rel=1e-3)


def test_a_block_that_runs_repeatedly_is_refused() -> None:
    layer = encoder(1).layers[0]
    with pytest.raises(nl.UnsupportedEditError, match="runs several times"):
        nl.convert(nn.Sequential(layer, layer, nn.Linear(WIDTH, 2)), "admin", torch.randn(4, 5, WIDTH))
