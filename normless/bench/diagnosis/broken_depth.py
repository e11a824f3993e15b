"""Cases whose fault is how signal and gradient travel through the layers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from normless.bench.diagnosis.cases import Patient, adamw, case, sgd
from normless.bench.diagnosis.networks import (
    LENGTH,
    Block,
    Layer,
    RecurrentNet,
    ResidualNet,
    SentenceNet,
    convolutions,
    exclusive_or,
    following,
    images,
    mlp,
    per_token,
    sentences,
    without_norm,
)
from normless.conversion import convert
from normless.models import resnet_cifar


def initialized(model: nn.Module, fill: Callable[[Tensor], object]) -> nn.Module:
    """Every matrix and kernel of a network filled anew, biases zero."""
    for parameter in model.parameters():
        if parameter.dim() > 1:
            fill(parameter)
        else:
            nn.init.zeros_(parameter)
    return model


def he(weight: Tensor) -> None:
    """He's initialization."""
    nn.init.kaiming_normal_(weight, nonlinearity="relu")


@case("growing_variance", "exploding_gradient", "overflow")
def no_norms() -> Patient:
    """A residual network of 60 blocks whose norms were removed."""
    net = initialized(ResidualNet(60, norm=without_norm), he)
    return Patient(net, images(), sgd(net))


@case("growing_variance", "exploding_gradient", "overflow")
def no_norms_for_images() -> Patient:
    """A CIFAR ResNet-110 without norms."""
    return Patient(convert(resnet_cifar(110, in_channels=1), "none"), images(16))


@case("growing_variance", "exploding_gradient", "overflow", aside=True)
def pre_activation_without_norms() -> Patient:
    """Pre-activation blocks, 80 of them, without norms."""

    class PreActivation(Block):
        def branch(self, x: Tensor) -> Tensor:
            y: Tensor = self.conv2(self.conv1(x.relu()).relu())
            return y

        def forward(self, x: Tensor) -> Tensor:
            return x + self.branch(x)

    net = initialized(ResidualNet(80, width=8, norm=without_norm, block=PreActivation), he)
    return Patient(net, images(), adamw(net))


@case("growing_variance", "exploding_gradient", "overflow", aside=True)
def transformer_without_norms() -> Patient:
    """A transformer of 32 layers without norms."""
    net = SentenceNet(32, norms=False)
    for layer in net.layers:
        assert isinstance(layer, Layer)
        for linear in (layer.out, layer.mlp[0], layer.mlp[2]):
            assert isinstance(linear, nn.Linear)
            nn.init.normal_(linear.weight, std=(2 / linear.in_features) ** 0.5)
    return Patient(net, sentences(), sgd(net))


@case("exploding_weights", "growing_variance", "exploding_gradient", "overflow")
def standard_normal_weights() -> Patient:
    """Weights drawn from N(0, 1) in eight layers."""
    net = initialized(mlp([64, *[64] * 7, 10]), nn.init.normal_)
    return Patient(net, images(), sgd(net))


@case("exploding_weights", "growing_variance", "exploding_gradient", "overflow", aside=True)
def fan_in_of_one_channel() -> Patient:
    """Kernels of variance 2 / 9, whatever the number of channels."""
    net = initialized(convolutions(12, norm=False), lambda weight: nn.init.normal_(weight, std=(2 / 9) ** 0.5))
    return Patient(net, images(), adamw(net))


@case("vanishing_signal", "fading_signal", "vanishing_gradient", "missing_skip")
def small_weights() -> Patient:
    """Weights drawn from N(0, 0.01²) in eight layers."""
    net = initialized(mlp([64, *[64] * 7, 10]), lambda weight: nn.init.normal_(weight, std=0.01))
    return Patient(net, images(), sgd(net))


@case("vanishing_signal", "fading_signal", "vanishing_gradient", "missing_skip")
def deep_default_convolutions() -> Patient:
    """Thirty convolutions with torch's own initialization and ReLUs."""
    net = convolutions(30, norm=False)
    return Patient(net, images(), sgd(net))


@case("vanishing_signal", "fading_signal", "vanishing_gradient", "missing_skip", aside=True)
def deep_default_mlp() -> Patient:
    """Twenty-four linear layers with torch's own initialization and ReLUs."""
    net = mlp([64, *[64] * 23, 10])
    return Patient(net, images(), adamw(net))


@case("vanishing_gradient", "saturated_units", "missing_skip", "vanishing_signal")
def deep_sigmoids() -> Patient:
    """Ten layers of sigmoids."""
    net = mlp([64, *[64] * 9, 10], nn.Sigmoid)
    return Patient(net, images(), sgd(net))


@case("vanishing_gradient", "saturated_units", "missing_skip", "vanishing_signal", aside=True)
def deep_tanh() -> Patient:
    """Forty layers of tanh with torch's own initialization."""
    net = mlp([64, *[64] * 39, 10], nn.Tanh)
    return Patient(net, images(), sgd(net))


@case("missing_skip", "vanishing_signal", "vanishing_gradient", "exploding_gradient")
def skip_forgotten() -> Patient:
    """Blocks with norms, sixty convolutions in all, whose sums were forgotten."""

    class Plain(Block):
        def forward(self, x: Tensor) -> Tensor:
            return self.branch(x).relu()

    net = ResidualNet(30, block=Plain)
    return Patient(net, images(), sgd(net))


@case("missing_skip", "vanishing_signal", "vanishing_gradient", "exploding_gradient", aside=True)
def plain_with_norms() -> Patient:
    """Fifty convolutions with batch norms, without skip paths."""
    net = convolutions(50)
    return Patient(net, images(), sgd(net))


@case("saturated_units")
def saturated_tanh() -> Patient:
    """Inputs to tanh of standard deviation 50."""
    net = mlp([64, 64, 64, 10], nn.Tanh)
    with torch.no_grad():
        for layer in net:
            if isinstance(layer, nn.Linear):
                layer.weight.mul_(100)
    return Patient(net, images(), sgd(net))


@case("saturated_units", aside=True)
def saturated_gates() -> Patient:
    """An LSTM whose gates' weights are 100 times too large."""
    net = RecurrentNet()
    with torch.no_grad():
        for parameter in net.recurrent.parameters():
            parameter.mul_(100)
    return Patient(net, sentences(), adamw(net))


@case("saturated_units", "unscaled_inputs")
def sigmoids_of_bytes() -> Patient:
    """Sigmoids directly on images of 0 to 255."""
    x, y = images()
    net = mlp([64, 64, 64, 10], nn.Sigmoid)
    return Patient(net, ((x - x.min()) * 60, y), sgd(net))


@case("no_nonlinearity")
def linear_layers_only() -> Patient:
    """Three linear layers in a row on points that no linear function separates."""
    net = nn.Sequential(nn.Linear(2, 64), nn.Linear(64, 64), nn.Linear(64, 2))
    return Patient(net, exclusive_or(), sgd(net))


@case("no_nonlinearity", aside=True)
def identity_activations() -> Patient:
    """Activations that a configuration replaced by the identity."""
    net = mlp([2, 64, 64, 64, 2], nn.Identity)
    return Patient(net, exclusive_or(), adamw(net))


@case("post_norm_depth", "vanishing_gradient", "exploding_gradient", "rate_too_large")
def deep_post_norm() -> Patient:
    """A post-norm transformer of 24 layers without warm-up."""
    net = SentenceNet(24, pre_norm=False)
    return Patient(net, sentences(), adamw(net, 1e-2))


@case("post_norm_depth", "vanishing_gradient", "exploding_gradient", "rate_too_large", aside=True)
def deep_post_norm_language_model() -> Patient:
    """The same with 36 layers, as a language model."""
    net = SentenceNet(36, width=16, pre_norm=False, causal=True)
    return Patient(net, following(), adamw(net, 3e-3), per_token)


class SharpLayer(Layer):
    """Attention without 1/√d, and weights of query and key that are too large."""

    def __init__(self, width: int, pre_norm: bool = True) -> None:
        super().__init__(width, pre_norm=pre_norm)
        self.scale = 1.0
        with torch.no_grad():
            self.qkv.weight[: 2 * width].mul_(20)


@case("saturated_attention")
def unscaled_attention() -> Patient:
    """Attention logits in the hundreds: each token attends to one."""
    net = SentenceNet(2)
    net.layers = nn.ModuleList(SharpLayer(32) for _ in range(2))
    return Patient(net, sentences(), adamw(net))


@case("saturated_attention", aside=True)
def sharp_module_attention() -> Patient:
    """torch's own attention with projections that a checkpoint scaled by 30."""

    class Net(SentenceNet):
        def __init__(self) -> None:
            super().__init__(0)
            self.encoder = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True, norm_first=True)

        def forward(self, tokens: Tensor) -> Tensor:
            logits: Tensor = self.head(self.encoder(self.embed(tokens) * 50).mean(1))
            return logits

    net = Net()
    with torch.no_grad():
        net.encoder.self_attn.in_proj_weight[:64].mul_(30)
    return Patient(net, sentences(), adamw(net))


@case("dominating_positions")
def large_positions() -> Patient:
    """Positions of standard deviation 5 beside token embeddings of 0.02."""
    net = SentenceNet(2)
    nn.init.normal_(net.positions.weight, std=5.0)
    return Patient(net, sentences(), sgd(net))


@case("dominating_positions", aside=True)
def sinusoids_beside_small_embeddings() -> Patient:
    """Sinusoids of amplitude 1 added to token embeddings of 0.02 that are not multiplied by √width."""
    net = SentenceNet(2)
    angles = torch.arange(LENGTH)[:, None] / 10000 ** (torch.arange(0, 32, 2) / 32)
    with torch.no_grad():
        net.positions.weight.copy_(torch.cat([angles.sin(), angles.cos()], 1))
        net.embedding.weight.mul_(0.05)
    net.positions.requires_grad_(False)
    return Patient(net, sentences(), sgd(net))


@case("vanishing_signal", "fading_signal", "vanishing_gradient", "missing_skip")
def tiny_stem() -> Patient:
    """A plain network of ten convolutions after a stem that is scaled by 1e-6 and without norms."""
    net = initialized(convolutions(10, norm=False), he)
    with torch.no_grad():
        net.get_parameter("0.weight").mul_(1e-6)
    return Patient(net, images(), sgd(net))
