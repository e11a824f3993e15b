"""Cases whose fault is how signal and gradient travel through the layers."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from normless.conversion import convert
from normless.models import resnet_cifar
from tests.faults.kinds.networks import (
    LENGTH,
    Block,
    Layer,
    RecurrentNet,
    ResidualNet,
    SentenceNet,
    changed,
    convolutions,
    digits_mlp,
    exclusive_or,
    following,
    images,
    mlp,
    of_layers,
    per_token,
    sentences,
    without_norm,
)
from tests.faults.kinds.rows import adamw, add, altered, case, each, sgd


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


def normal(std: float) -> Callable[[Tensor], Tensor]:
    """Draws weights from N(0, std²)."""
    return lambda weight: nn.init.normal_(weight, std=std)


class PreActivation(Block):
    """A block whose ReLUs come before its convolutions."""

    def branch(self, x: Tensor) -> Tensor:
        return self.conv2(self.conv1(x.relu()).relu())

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


def normal_ends(net: SentenceNet) -> None:
    """Draws the last layers of branches by their fan-in."""
    for layer in net.layers:
        for linear in (layer.out, layer.mlp[0], layer.mlp[2]):
            nn.init.normal_(linear.weight, std=(2 / linear.in_features) ** 0.5)


def residual(blocks: int, **options: Any) -> nn.Module:
    """A residual network without norms, of He's weights."""
    return initialized(ResidualNet(blocks, norm=without_norm, **options), he)


GROWS = ("growing_variance", "exploding_gradient", "overflow")
# Residual networks of 60 and 80 blocks, a CIFAR ResNet-110 and a transformer of 32 layers, without their norms.
add("no_norms", lambda: residual(60), images, sgd(), *GROWS)
narrow = lambda: residual(80, width=8, block=PreActivation)  # noqa: E731
add("pre_activation_without_norms", narrow, images, adamw(), *GROWS, aside=True)
deep = lambda: convert(resnet_cifar(110, in_channels=1), "none")  # noqa: E731
add("no_norms_for_images", deep, lambda: images(16), None, *GROWS)
bare = altered(lambda: SentenceNet(32, norms=False), normal_ends)
add("transformer_without_norms", bare, sentences, sgd(), *GROWS, aside=True)

LARGE = ("exploding_weights", *GROWS)
# Weights drawn from N(0, 1) in eight layers.
add("standard_normal_weights", lambda: initialized(digits_mlp(7), nn.init.normal_), images, sgd(), *LARGE)
# Kernels of variance 2 / 9, whatever the number of channels.
of_one = lambda: initialized(convolutions(12, norm=False), normal((2 / 9) ** 0.5))  # noqa: E731
add("fan_in_of_one_channel", of_one, images, adamw(), *LARGE, aside=True)

FADES = ("vanishing_signal", "fading_signal", "vanishing_gradient", "missing_skip")
# Weights drawn from N(0, 0.01²) in eight layers.
add("small_weights", lambda: initialized(digits_mlp(7), normal(0.01)), images, sgd(), *FADES)
# Thirty convolutions, and 24 linear layers, with torch's own initialization and ReLUs.
add("deep_default_convolutions", lambda: convolutions(30, norm=False), images, sgd(), *FADES)
add("deep_default_mlp", lambda: digits_mlp(23), images, adamw(), *FADES, aside=True)

SATURATES = ("vanishing_gradient", "saturated_units", "missing_skip", "vanishing_signal")
add("deep_sigmoids", lambda: digits_mlp(9, nn.Sigmoid), images, sgd(), *SATURATES)
add("deep_tanh", lambda: digits_mlp(39, nn.Tanh), images, sgd(), *SATURATES, aside=True)


class Plain(Block):
    """A block whose sum was forgotten."""

    def forward(self, x: Tensor) -> Tensor:
        return self.branch(x).relu()


WITHOUT_SKIP = ("missing_skip", "vanishing_signal", "vanishing_gradient", "exploding_gradient")
# Sixty and fifty convolutions with batch norms.
add("skip_forgotten", lambda: ResidualNet(30, block=Plain), images, sgd(), *WITHOUT_SKIP)
add("plain_with_norms", lambda: convolutions(50), images, sgd(), *WITHOUT_SKIP, aside=True)


# Inputs to tanh of standard deviation 50; an LSTM whose gates' weights are 100 times too large.
scaled = partial(each, nn.Linear, lambda layer: layer.weight.mul_(100))
add("saturated_tanh", altered(lambda: digits_mlp(activation=nn.Tanh), scaled), images, sgd(), "saturated_units")
large = altered(RecurrentNet, lambda net: [one.mul_(100) for one in net.recurrent.parameters()])
add("saturated_gates", large, sentences, adamw(), "saturated_units", aside=True)
# Sigmoids directly on images of 0 to 255.
raw = changed(images, lambda x: (x - x.min()) * 60)
add("sigmoids_of_bytes", lambda: digits_mlp(activation=nn.Sigmoid), raw, sgd(), "saturated_units", "unscaled_inputs")


# Three linear layers in a row, or activations that a configuration replaced by the identity, on points that no linear
# function separates.
linear = lambda: nn.Sequential(nn.Linear(2, 64), nn.Linear(64, 64), nn.Linear(64, 2))  # noqa: E731
add("linear_layers_only", linear, exclusive_or, sgd(), "no_nonlinearity")
linear = lambda: mlp([2, 64, 64, 64, 2], nn.Identity)  # noqa: E731
add("identity_activations", linear, exclusive_or, adamw(), "no_nonlinearity", aside=True)

POST_NORM = ("post_norm_depth", "vanishing_gradient", "exploding_gradient", "rate_too_large")
# Post-norm transformers of 24 and 36 layers without warm-up.
add("deep_post_norm", lambda: SentenceNet(24, pre_norm=False), sentences, adamw(1e-2), *POST_NORM)
deep = lambda: SentenceNet(36, width=16, pre_norm=False, causal=True)  # noqa: E731
add("deep_post_norm_language_model", deep, following, adamw(3e-3), *POST_NORM, loss=per_token, aside=True)


class SharpLayer(Layer):
    """Attention without 1/√d, and weights of query and key that are too large."""

    def __init__(self, width: int, pre_norm: bool = True) -> None:
        super().__init__(width, pre_norm=pre_norm)
        self.scale = 1.0
        with torch.no_grad():
            self.qkv.weight[: 2 * width].mul_(20)


# Attention logits in the hundreds: each token attends to one.
add("unscaled_attention", lambda: of_layers(SharpLayer, 2), sentences, adamw(), "saturated_attention")


@case("saturated_attention", batch=sentences, optimizer=adamw(), aside=True)
class SharpModuleAttention(SentenceNet):
    """torch's own attention with projections that a checkpoint scaled by 30."""

    def __init__(self) -> None:
        super().__init__(0)
        self.encoder = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True, norm_first=True)
        with torch.no_grad():
            self.encoder.self_attn.in_proj_weight[:64].mul_(30)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(tokens) * 50).mean(1))


def sinusoids(net: SentenceNet) -> None:
    """Adds sinusoids of amplitude 1 to token embeddings of 0.02 that are not multiplied by √width."""
    angles = torch.arange(LENGTH)[:, None] / 10000 ** (torch.arange(0, 32, 2) / 32)
    net.positions.weight.copy_(torch.cat([angles.sin(), angles.cos()], 1))
    net.embedding.weight.mul_(0.05)
    net.positions.requires_grad_(False)


# Positions of standard deviation 5 beside token embeddings of 0.02.
large = altered(lambda: SentenceNet(2), lambda net: nn.init.normal_(net.positions.weight, std=5.0))
add("large_positions", large, sentences, sgd(), "dominating_positions")
small = altered(lambda: SentenceNet(2), sinusoids)
add("sinusoids_beside_small_embeddings", small, sentences, sgd(), "dominating_positions", aside=True)
# A plain network of ten convolutions after a stem that is scaled by 1e-6 and without norms.
plain = lambda: initialized(convolutions(10, norm=False), he)  # noqa: E731
add("tiny_stem", altered(plain, lambda net: net[0].weight.mul_(1e-6)), images, sgd(), *FADES)
