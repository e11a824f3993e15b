"""Networks that train, with optimizers and decays as usual; some look like faults and are none."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD

from normless.conversion import convert
from normless.models import resnet_cifar
from tests.faults.kinds.networks import (
    Block,
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
    of_inputs,
    per_token,
    sentences,
    vectors,
)
from tests.faults.kinds.rows import adamw, add, altered, each, sgd

add("healthy_resnet", lambda: ResidualNet(6), images, sgd())
add("healthy_resnet_adamw", lambda: ResidualNet(6), images, adamw())
add("healthy_resnet_without_optimizer", lambda: resnet_cifar(20, in_channels=1), images, None, aside=True)
# Last layers of branches start at zero, and so does the classifier; or multipliers do.
add("healthy_fixup", lambda: convert(resnet_cifar(32, in_channels=1), "fixup"), images, sgd(0.01))
add("healthy_skipinit", lambda: convert(resnet_cifar(32, in_channels=1), "skipinit"), images, sgd(0.01))


# The γ at the ends of branches start at zero; group norm with two examples.
ends = altered(lambda: ResidualNet(8), lambda net: each(Block, lambda block: nn.init.zeros_(block.bn2.weight), net))
add("healthy_zero_gamma", ends, images, adamw(), aside=True)
grouped = lambda: ResidualNet(norm=lambda width: nn.GroupNorm(4, width))  # noqa: E731
add("healthy_group_norm_of_two", grouped, partial(images, 2), sgd(0.01))

add("healthy_mlp", lambda: mlp([64, 128, 128, 10]), images, sgd())
add("healthy_mlp_with_norms", lambda: mlp([64, *[128] * 5, 10], norm=nn.BatchNorm1d), images, adamw(), aside=True)


def of_weights(build: Callable[[], nn.Module], fill: Callable[[Tensor], object]) -> Callable[[], nn.Module]:
    """Builds a network and fills the weights of its linear layers."""
    return altered(build, lambda net: each(nn.Linear, lambda layer: fill(layer.weight), net))


# Four layers of tanh with Xavier's initialization; twelve of SELU.
tanh = of_weights(lambda: mlp([2, 32, 32, 32, 2], nn.Tanh), partial(nn.init.xavier_normal_, gain=5 / 3))
add("healthy_tanh", tanh, exclusive_or, adamw(1e-2))
selu = of_weights(lambda: digits_mlp(11, nn.SELU), partial(nn.init.kaiming_normal_, nonlinearity="linear"))
add("healthy_selu", selu, images, sgd(0.01), aside=True)
add("healthy_convolutions", lambda: convolutions(4, norm=False), images, adamw(3e-3))
add("healthy_pre_norm", lambda: SentenceNet(6), sentences, adamw())
add("healthy_language_model", lambda: SentenceNet(4, causal=True), following, adamw(), loss=per_token, aside=True)
add("healthy_shallow_post_norm", lambda: SentenceNet(2, pre_norm=False), sentences, adamw())
add("healthy_lstm", RecurrentNet, sentences, adamw(5e-3))
add("healthy_gru", lambda: RecurrentNet(nn.GRU), sentences, adamw(5e-3), aside=True)
# A log-softmax before the negative log-likelihood.
add("healthy_log_softmax", lambda: nn.Sequential(ResidualNet(), nn.LogSoftmax(1)), images, sgd(), loss=F.nll_loss)

# Regressions: on values of both signs; on positive ones, after a softplus; and on the images, through a bottleneck.
product = of_inputs(vectors, lambda x: x[:, :1] * x[:, 1:2])
add("healthy_regression", lambda: mlp([8, 64, 64, 1]), product, adamw(3e-3), loss=F.mse_loss)
sizes = of_inputs(vectors, lambda x: x[:, :1].abs() + 1)
positive = lambda: nn.Sequential(mlp([8, 64, 1]), nn.Softplus())  # noqa: E731
add("healthy_positive_regression", positive, sizes, adamw(1e-2), loss=F.mse_loss, aside=True)
coder = lambda: nn.Sequential(mlp([64, 64, 16, 64, 64]), nn.Unflatten(1, (1, 8, 8)))  # noqa: E731
add("healthy_autoencoder", coder, of_inputs(images, torch.clone), adamw(3e-3), loss=F.mse_loss)
# One logit, and a sigmoid inside of the loss.
one_logit, entropy = changed(exclusive_or, targets=lambda y: y[:, None].float()), F.binary_cross_entropy_with_logits
add("healthy_binary", lambda: mlp([2, 32, 32, 1]), one_logit, adamw(1e-2), loss=entropy)
# Dropout of one half.
dropping = lambda: mlp([64, 256, 256, 10], lambda: nn.Sequential(nn.ReLU(), nn.Dropout(0.5)))  # noqa: E731
add("healthy_dropout", dropping, images, sgd())


def pretrained(net: ResidualNet) -> None:
    """Freezes a backbone, in evaluation with statistics of its data; its head is trained."""
    for _ in range(50):
        net(images()[0])
    net.requires_grad_(False).eval()
    net.fc.requires_grad_(True)


head = lambda net: SGD(net.fc.parameters(), lr=0.1, momentum=0.9)  # noqa: E731
add("healthy_frozen_backbone", altered(ResidualNet, pretrained), images, head, aside=True)


class Scaled(Block):
    """A block whose branch is multiplied by 1e-6 per channel, as in ConvNeXt."""

    def __init__(self, width: int, norm: object) -> None:
        super().__init__(width)
        self.gamma = nn.Parameter(torch.full((width, 1, 1), 1e-6))

    def branch(self, x: Tensor) -> Tensor:
        return self.gamma * super().branch(x)


add("healthy_layer_scale", lambda: ResidualNet(6, block=Scaled), images, adamw())


def imbalanced() -> tuple[Tensor, Tensor]:
    """Nine examples in ten are of one class."""
    x, y = exclusive_or(256)
    kept = torch.cat([(y == 0).nonzero()[:58], (y == 1).nonzero()[:6]]).flatten()
    return x[kept], y[kept]


# The network does not know yet how frequent its classes are.
add("healthy_imbalanced", lambda: mlp([2, 32, 32, 2]), imbalanced, sgd())
# A wide two-layer network at a moderate decay with few examples.
few = partial(images, 16)
add("healthy_no_weights_decayed", lambda: mlp([64, 512, 10]), few, sgd(0.02, weight_decay=5e-3), aside=True)
# Labels of -100, which the loss ignores: those of every fourth example.
ignored = changed(images, targets=lambda y: y.where(torch.arange(len(y)) % 4 > 0, -100))
add("healthy_ignored_labels", lambda: convolutions(3), ignored, sgd())
# Probabilities as targets, smoothed.
smoothed = changed(images, targets=lambda y: F.one_hot(y, 10) * 0.9 + 0.01)
add("healthy_soft_labels", ResidualNet, smoothed, sgd(), aside=True)
