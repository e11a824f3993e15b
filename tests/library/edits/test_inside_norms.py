"""What a norm's module does besides normalizing stays, or it is refused; against forward passes by hand."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from written_networks import Written

import normless as nl
from normless.errors import EvaluationOnlyWarning

WIDTH = 8
Function = Callable[[Tensor], Tensor]


class LeakyBatchNorm(nn.BatchNorm2d):
    slope = 0.2

    def forward(self, x: Tensor) -> Tensor:
        return F.leaky_relu(super().forward(x), self.slope)


class ActivatedBatchNorm(nn.Module):
    """No subclass of torch's batch norm, with the activation in place (Rota Bulò et al. 2018)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))
        self.eps, self.momentum, self.activation = 1e-3, 0.1, "elu"

    def forward(self, x: Tensor) -> Tensor:
        statistics = (self.running_mean, self.running_var)
        x = F.batch_norm(x, *statistics, self.weight, self.bias, self.training, self.momentum, self.eps)
        return F.elu(x, alpha=0.5, inplace=True) if self.activation == "elu" else x


class SwishGroupNorm(nn.GroupNorm):
    def __init__(self, width: int) -> None:
        super().__init__(2, width)

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * F.silu(super().forward(x))


class GeluLayerNorm(nn.LayerNorm):
    """Over the channels of images, with dropout that ends with training."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x.movedim(1, -1))
        return F.dropout(F.gelu(y, approximate="tanh"), 0.3, self.training).movedim(-1, 1)


class ReluRootNorm(nn.Module):
    """Written out, a constant factor its own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(F.normalize(x, dim=1) * WIDTH**0.5 * self.gain).clamp(max=2)


class ActivatedBefore(nn.BatchNorm2d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.tanh(x))


KEPT: dict[type[nn.Module], Function] = {
    LeakyBatchNorm: lambda y: F.leaky_relu(y, 0.2),
    ActivatedBatchNorm: lambda y: F.elu(y, 0.5),
    SwishGroupNorm: lambda y: 0.5 * F.silu(y),
    GeluLayerNorm: lambda y: F.gelu(y, approximate="tanh"),
    ReluRootNorm: lambda y: torch.relu(y).clamp(max=2),
    ActivatedBefore: torch.tanh,
}


class Block(nn.Module):
    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(WIDTH, WIDTH, 3, padding=1), norm(WIDTH)
        self.conv2, self.norm2 = nn.Conv2d(WIDTH, WIDTH, 3, padding=1), nn.BatchNorm2d(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.norm2(self.conv2(self.norm1(self.conv1(x))))


def network(norm: Callable[[int], nn.Module]) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, WIDTH, 3), norm(WIDTH), Block(norm), Block(norm), nn.Flatten(), nn.LazyLinear(5)
    )


def built(norm: Callable[[int], nn.Module]) -> tuple[nn.Sequential, Tensor]:
    x = torch.randn(4, 3, 9, 9)
    model = network(norm)
    model.eval()(x)
    return model, x


@pytest.mark.parametrize("kind", KEPT)
def test_without_norms_their_functions_are_left(kind: type[nn.Module]) -> None:
    model, x = built(kind)
    net = nl.convert(model, "none(keep_scale=False)", x)
    function = KEPT[kind]
    h = function(model[0](x))
    for block in (model[2], model[3]):
        h = h + block.conv2(function(block.conv1(h)))
    torch.testing.assert_close(net(x), model[5](h.flatten(1)))
    assert not [one for one in net.modules() if isinstance(one, (nn.BatchNorm2d, nn.GroupNorm, nn.LayerNorm))]
    assert not [name for name, _ in net.named_parameters() if "norm" in name]


@pytest.mark.parametrize("kind", KEPT)
def test_a_pointwise_function_is_followed_by_them(kind: type[nn.Module]) -> None:
    model, x = built(kind)
    net = nl.convert(model, "dyt(alpha=0.5)", x)
    h, function = model[0](x), KEPT[kind]
    expected = torch.tanh(0.5 * function(h)) if kind is ActivatedBefore else function(torch.tanh(0.5 * h))
    torch.testing.assert_close(net[1](h), expected)


def test_dropout_inside_a_norm_drops_in_training_alone() -> None:
    model, x = built(GeluLayerNorm)
    net = nl.convert(model, "none", x)
    assert torch.equal(net.eval()(x), net(x))
    assert not torch.equal(net.train()(x), net(x))


@pytest.mark.parametrize("kind", [LeakyBatchNorm, ActivatedBatchNorm])
@pytest.mark.parametrize("scheme", ["group_norm(groups=2)", "ghost_batch_norm(size=2)", "plain_batch_norm"])
def test_batch_norms_of_new_classes_have_variants(kind: type[nn.Module], scheme: str) -> None:
    model, x = built(kind)
    with torch.no_grad():
        model[1].weight.uniform_(0.5, 1.5)
        model[1].running_var.uniform_(0.5, 1.5)
    net = nl.convert(model.eval(), scheme, x)
    h = model[0](x)
    torch.testing.assert_close(net[1](h), KEPT[kind](net[1].norm(h)))
    assert torch.equal(net[1].norm.weight, model[1].weight)
    assert net[1].norm.eps == model[1].eps
    if scheme != "group_norm(groups=2)":
        torch.testing.assert_close(net(x), model(x))


@pytest.mark.parametrize("kind", KEPT)
def test_the_map_has_their_activations_and_biases_go_before_them(kind: type[nn.Module]) -> None:
    model, x = built(kind)
    found = nl.residual_map(model, x)
    inner = [layer for layer in found.layers() if layer.path.startswith("1:") and layer.kind == "activation"]
    assert bool(inner) == (kind is not ActivatedBefore)
    if inner:
        assert found.by_path["2.conv1"].input != "1"
    net = nl.convert(model, "fixup", x)
    assert torch.isfinite(net(x)).all()


class MaskedBatchNorm(nn.BatchNorm2d):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().forward(x if mask is None else x * mask)


class NeedsMask(nn.LayerNorm):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return super().forward(x.movedim(1, -1)).movedim(-1, 1) * mask


def masking(norm: nn.Module) -> nn.Module:
    def forward(m: Written, x: Tensor) -> Tensor:
        h = m.conv(x)
        return m.head(torch.relu(m.norm(h, (h > -1).float())))

    return Written(forward, conv=nn.Conv2d(3, WIDTH, 3), norm=norm, head=nn.Conv2d(WIDTH, 2, 1))


class NoisyBatchNorm(nn.BatchNorm2d):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y + 0.1 * torch.randn_like(y) if self.training else y


class BentInTraining(nn.GroupNorm):
    def __init__(self, width: int) -> None:
        super().__init__(2, width)

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return torch.relu(y) if self.training else y


class SwishByHand(nn.BatchNorm2d):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y * torch.sigmoid(y)


class Skipping(nn.BatchNorm2d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x


class ScaledAfterwards(nn.BatchNorm2d):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(super().forward(x)) * self.scale


@pytest.mark.parametrize(
    ("kind", "scheme"),
    [
        (NoisyBatchNorm, "none"), (NoisyBatchNorm, "group_norm(groups=2)"), (BentInTraining, "dyt"),
        (SwishByHand, "none"), (Skipping, "dyt"), (Skipping, "group_norm(groups=2)"), (ScaledAfterwards, "none"),
    ],
)  # fmt: skip
def test_what_cannot_be_kept_is_refused_with_the_module(kind: type[nn.Module], scheme: str) -> None:
    model, x = built(kind)
    with pytest.raises(nl.UnsupportedEditError, match=rf"at 1: .*{kind.__name__}"):
        nl.convert(model, scheme, x)


@pytest.mark.parametrize(("norm", "scheme"), [(MaskedBatchNorm, "none"), (NeedsMask, "dyt")])
def test_norms_that_take_a_mask_are_refused(norm: Callable[[int], nn.Module], scheme: str) -> None:
    with pytest.raises(nl.UnsupportedEditError, match="norm"):
        nl.convert(masking(norm(WIDTH)), scheme, torch.randn(4, 3, 9, 9))


@pytest.mark.parametrize("function", [nl.freeze, lambda model: nl.fold(model, torch.randn(4, 3, 9, 9))[0]])
@pytest.mark.parametrize("kind", [LeakyBatchNorm, ActivatedBatchNorm])
def test_frozen_and_folded_norms_keep_them(kind: type[nn.Module], function: Callable[[nn.Module], nn.Module]) -> None:
    model, x = built(kind)
    for _ in range(3):
        model.train()(2 * x + 1)
    frozen = function(model)
    expected = model.eval()(x)
    torch.testing.assert_close(frozen.eval()(x), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(frozen.train()(x), expected, rtol=1e-4, atol=1e-4)


def test_a_norm_of_its_own_in_training_is_frozen_with_a_warning() -> None:
    model, x = built(NoisyBatchNorm)
    with pytest.warns(EvaluationOnlyWarning, match="1 is a NoisyBatchNorm .* in training"):
        frozen = nl.freeze(model)
    torch.testing.assert_close(frozen(x), model(x))


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (nn.BatchNorm2d, "running_mean"), (ActivatedBatchNorm, "running_var"),
        (LeakyBatchNorm, "weight"), (nn.BatchNorm2d, "bias"),
    ],
)  # fmt: skip
def test_statistics_that_are_not_finite_are_refused(kind: type[nn.Module], name: str) -> None:
    model, x = built(kind)
    getattr(model[2].norm1, name).data[3] = torch.nan
    for function in (nl.freeze, lambda one: nl.fold(one, x), lambda one: nl.convert(one, "none", x)):
        with pytest.raises(nl.UnsupportedEditError, match=r"of 2\.norm1, .* not finite"):
            function(deepcopy(model))
    with pytest.raises(nl.UnsupportedEditError, match=r"of 2\.norm1, .* not finite"):
        nl.plan(model, "skipinit", x)
