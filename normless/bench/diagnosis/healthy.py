"""Networks that train, with optimizers and decays as usual; some look like faults and are none."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normless.bench.diagnosis.cases import Patient, adamw, case, sgd
from normless.bench.diagnosis.networks import (
    Block,
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
    vectors,
)
from normless.conversion import convert
from normless.models import resnet_cifar


@case()
def healthy_resnet() -> Patient:
    """Batch norm and SGD with decay."""
    net = ResidualNet(6)
    return Patient(net, images(), sgd(net))


@case()
def healthy_resnet_adamw() -> Patient:
    """The same with AdamW."""
    net = ResidualNet(6)
    return Patient(net, images(), adamw(net))


@case(aside=True)
def healthy_resnet_without_optimizer() -> Patient:
    """Nothing but network and batch."""
    return Patient(resnet_cifar(20, in_channels=1), images())


@case()
def healthy_fixup() -> Patient:
    """Last layers of branches start at zero, and so does the classifier."""
    net = convert(resnet_cifar(32, in_channels=1), "fixup")
    return Patient(net, images(), sgd(net, 0.01))


@case()
def healthy_skipinit() -> Patient:
    """Multipliers start at zero."""
    net = convert(resnet_cifar(32, in_channels=1), "skipinit")
    return Patient(net, images(), sgd(net, 0.01))


@case(aside=True)
def healthy_zero_gamma() -> Patient:
    """The γ at the ends of branches start at zero."""
    net = ResidualNet(8)
    for block in net.blocks:
        nn.init.zeros_(block.bn2.weight)  # type: ignore[union-attr, arg-type]
    return Patient(net, images(), adamw(net))


@case()
def healthy_group_norm_of_two() -> Patient:
    """Group norm with two examples."""
    net = ResidualNet(norm=lambda width: nn.GroupNorm(4, width))
    return Patient(net, images(2), sgd(net, 0.01))


@case()
def healthy_mlp() -> Patient:
    """Three layers."""
    net = mlp([64, 128, 128, 10])
    return Patient(net, images(), sgd(net))


@case(aside=True)
def healthy_mlp_with_norms() -> Patient:
    """Six layers with batch norms."""
    net = mlp([64, *[128] * 5, 10], norm=nn.BatchNorm1d)
    return Patient(net, images(), adamw(net))


@case()
def healthy_tanh() -> Patient:
    """Four layers of tanh with Xavier's initialization."""
    net = mlp([2, 32, 32, 32, 2], nn.Tanh)
    for layer in net:
        if isinstance(layer, nn.Linear):
            nn.init.xavier_normal_(layer.weight, gain=5 / 3)
    return Patient(net, exclusive_or(), adamw(net, 1e-2))


@case(aside=True)
def healthy_selu() -> Patient:
    """Twelve layers of SELU."""
    net = mlp([64, *[64] * 11, 10], nn.SELU)
    for layer in net:
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="linear")
    return Patient(net, images(), sgd(net, 0.01))


@case()
def healthy_convolutions() -> Patient:
    """Four convolutions without norms."""
    net = convolutions(4, norm=False)
    return Patient(net, images(), adamw(net, 3e-3))


@case()
def healthy_pre_norm() -> Patient:
    """A pre-norm transformer of six layers."""
    net = SentenceNet(6)
    return Patient(net, sentences(), adamw(net))


@case(aside=True)
def healthy_language_model() -> Patient:
    """A causal one that predicts the next token."""
    net = SentenceNet(4, causal=True)
    return Patient(net, following(), adamw(net), per_token)


@case()
def healthy_shallow_post_norm() -> Patient:
    """A post-norm transformer of two layers."""
    net = SentenceNet(2, pre_norm=False)
    return Patient(net, sentences(), adamw(net))


@case()
def healthy_lstm() -> Patient:
    """An LSTM of one layer."""
    net = RecurrentNet()
    return Patient(net, sentences(), adamw(net, 5e-3))


@case(aside=True)
def healthy_gru() -> Patient:
    """A GRU of one layer."""
    net = RecurrentNet(nn.GRU)
    return Patient(net, sentences(), adamw(net, 5e-3))


@case()
def healthy_log_softmax() -> Patient:
    """A log-softmax before the negative log-likelihood."""
    net = nn.Sequential(ResidualNet(), nn.LogSoftmax(1))
    return Patient(net, images(), sgd(net), F.nll_loss)


@case()
def healthy_regression() -> Patient:
    """A regression on values of both signs."""
    x, _ = vectors()
    net = mlp([8, 64, 64, 1])
    return Patient(net, (x, x[:, :1] * x[:, 1:2]), adamw(net, 3e-3), F.mse_loss)


@case()
def healthy_binary() -> Patient:
    """One logit, and a sigmoid inside of the loss."""
    x, y = exclusive_or()
    net = mlp([2, 32, 32, 1])
    return Patient(net, (x, y[:, None].float()), adamw(net, 1e-2), F.binary_cross_entropy_with_logits)


@case(aside=True)
def healthy_positive_regression() -> Patient:
    """A softplus where targets are positive."""
    x, _ = vectors()
    net = nn.Sequential(mlp([8, 64, 1]), nn.Softplus())
    return Patient(net, (x, x[:, :1].abs() + 1), adamw(net, 1e-2), F.mse_loss)


@case()
def healthy_autoencoder() -> Patient:
    """Images in, images out, through a bottleneck."""
    x, _ = images()
    net = nn.Sequential(mlp([64, 64, 16, 64, 64]), nn.Unflatten(1, (1, 8, 8)))
    return Patient(net, (x, x), adamw(net, 3e-3), F.mse_loss)


@case()
def healthy_dropout() -> Patient:
    """Dropout of one half."""
    net = mlp([64, 256, 256, 10], lambda: nn.Sequential(nn.ReLU(), nn.Dropout(0.5)))
    return Patient(net, images(), sgd(net))


@case(aside=True)
def healthy_frozen_backbone() -> Patient:
    """A pretrained backbone, frozen and in evaluation with statistics of its data; its head is trained."""
    net = ResidualNet()
    images_, labels = images()
    with torch.no_grad():
        for _ in range(50):
            net(images_)
    net.requires_grad_(False).eval()
    net.fc.requires_grad_(True)
    return Patient(net, (images_, labels), torch.optim.SGD(net.fc.parameters(), lr=0.1, momentum=0.9))


@case()
def healthy_layer_scale() -> Patient:
    """Branches multiplied by 1e-6 per channel, as in ConvNeXt."""

    class Scaled(Block):
        def __init__(self, width: int, norm: object) -> None:
            super().__init__(width)
            self.gamma = nn.Parameter(torch.full((width, 1, 1), 1e-6))

        def branch(self, x: Tensor) -> Tensor:
            return self.gamma * super().branch(x)

    net = ResidualNet(6, block=Scaled)
    return Patient(net, images(), adamw(net))


@case()
def healthy_imbalanced() -> Patient:
    """Nine examples in ten are of one class, and the network does not know it yet."""
    x, y = exclusive_or(256)
    kept = torch.cat([(y == 0).nonzero()[:58], (y == 1).nonzero()[:6]]).flatten()
    net = mlp([2, 32, 32, 2])
    return Patient(net, (x[kept], y[kept]), sgd(net))


@case(aside=True)
def healthy_no_weights_decayed() -> Patient:
    """A wide two-layer network at a moderate decay with few examples."""
    net = mlp([64, 512, 10])
    return Patient(net, images(16), sgd(net, 0.02, weight_decay=5e-3))


@case()
def healthy_ignored_labels() -> Patient:
    """Labels of -100, which the loss ignores."""
    x, y = images()
    y = y.clone()
    y[::4] = -100
    net = convolutions(3)
    return Patient(net, (x, y), sgd(net))


@case(aside=True)
def healthy_soft_labels() -> Patient:
    """Probabilities as targets, smoothed."""
    x, y = images()
    net = ResidualNet()
    return Patient(net, (x, F.one_hot(y, 10) * 0.9 + 0.01), sgd(net))
