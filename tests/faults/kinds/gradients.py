"""Cases in which the gradient, or the optimizer, does not reach what should be trained."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Optimizer

from normless.conversion import convert
from normless.models import resnet_cifar
from normless.residual import residual_map
from tests.faults.kinds.networks import (
    Block,
    RecurrentNet,
    ResidualNet,
    SentenceNet,
    convolutions,
    digits_mlp,
    images,
    mlp,
    sentences,
    vectors,
    without_norm,
)
from tests.faults.kinds.rows import adamw, add, altered, case, each, sgd

# `requires_grad_(False)` on the whole network, not on the backbone.
add("everything_frozen", lambda: ResidualNet().requires_grad_(False), images, None, "frozen")


# The wrong part was frozen: random features are trained for a random head that stays.
only_positions = altered(SentenceNet, lambda net: net.requires_grad_(False).positions.requires_grad_(True))
add("head_frozen", only_positions, sentences, adamw(), "frozen", aside=True)


@case("detached", optimizer=sgd())
class DetachedFeatures(ResidualNet):
    """`detach` on the features, left from an evaluation."""

    def features(self, x: Tensor) -> Tensor:
        return super().features(x).detach()


@case("detached", optimizer=sgd(), aside=True)
class ThroughNumpy(nn.Module):
    """A resizing by numpy between two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.rest = nn.Conv2d(1, 16, 3, padding=1), convolutions(2, width=16)
        self.rest[0] = nn.Conv2d(16, 16, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.first(x).relu().detach().numpy()[:, :, ::2, ::2].copy()
        return self.rest(torch.from_numpy(pooled))


@case("detached", batch=vectors, optimizer=sgd())
class RebuiltTensor(nn.Module):
    """`torch.tensor(x.tolist())` in forward code."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = mlp([8, 32, 16]), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tensor(self.encoder(x).tolist()).relu())


@case("no_grad", "detached", optimizer=sgd())
class BackboneUnderNoGrad(ResidualNet):
    """A `torch.no_grad()` around a backbone that should be trained."""

    def features(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return super().features(x)


@case("no_grad", "detached", batch=sentences, optimizer=adamw(), aside=True)
class EmbeddingUnderNoGrad(SentenceNet):
    """A decorator on a method of the forward pass."""

    @torch.no_grad()
    def embed(self, tokens: Tensor) -> Tensor:
        return super().embed(tokens)


@case("unregistered_modules", optimizer=sgd())
class PlainList(nn.Module):
    """Layers in a Python list."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = [nn.Linear(64, 64) for _ in range(3)]
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for layer in self.hidden:
            x = layer(x).relu()
        return self.head(x)


@case("unregistered_modules", aside=True)
class PlainDictionary(nn.Module):
    """Residual blocks in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(1, 8, 3, padding=1), nn.Linear(8, 10)
        self.stages = {"one": Block(8), "two": Block(8)}

    def forward(self, x: Tensor) -> Tensor:
        x = self.stages["two"](self.stages["one"](self.stem(x)))
        return self.head(x.mean((2, 3)))


def replacing_the_head(net: SentenceNet) -> Optimizer:
    """An optimizer that was made before the network got another head."""
    optimizer = adamw()(net)
    net.head = nn.Linear(32, 4)
    return optimizer


# The optimizer was given the head's parameters only; the backbone is random.
add("only_the_head", ResidualNet, images, lambda net: SGD(net.fc.parameters(), lr=0.05), "untrained_parameters")
add("replaced_head", SentenceNet, sentences, replacing_the_head, "untrained_parameters", aside=True)
# The optimizer has the parameters of a network that was copied before.
add("another_network", lambda: digits_mlp(1), images, lambda _: sgd()(digits_mlp(1)), "untrained_parameters")


@case("unused_result", "unused_parameters", optimizer=sgd())
class ResultNotAssigned(nn.Module):
    """`self.layer2(x)` where `x = self.layer2(x)` was meant."""

    def __init__(self) -> None:
        super().__init__()
        self.layer1, self.layer2, self.head = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer1(x.flatten(1)).relu()
        self.layer2(x).relu()
        return self.head(x)


class Lost(Block):
    """A block that returns its skip path."""

    def forward(self, x: Tensor) -> Tensor:
        self.branch(x)
        return x.relu()


UNUSED = ("unused_result", "unused_parameters")
add("branch_not_added", lambda: ResidualNet(block=Lost), images, sgd(), *UNUSED, aside=True)


@case("detached")
class PredictedClasses(ResidualNet):
    """A loss of the predicted class, which has no gradient."""

    def forward(self, x: Tensor) -> Tensor:
        return F.one_hot(super().forward(x).argmax(1), 10).float()


def closed(net: nn.Module) -> None:
    """Sets the last layers of all branches to zero."""
    for block in residual_map(net).blocks:
        last = [layer for layer in block.branch_layers if layer.kind == "weight"][-1]
        nn.init.zeros_(net.get_submodule(last.path).weight)


# SkipInit's multiplier and Fixup's zero layer at once.
two_zeros = altered(lambda: convert(resnet_cifar(20, in_channels=1), "skipinit"), closed)
add("two_zeros", two_zeros, images, sgd(), "stuck_multiplier", "dead_branch")


class Closed(Block):
    """A block whose branch ends in two layers of zeros."""

    def __init__(self, width: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__(width, norm)
        self.conv3 = nn.Conv2d(width, width, 1, bias=False)
        nn.init.zeros_(self.conv2.weight)
        nn.init.zeros_(self.conv3.weight)

    def branch(self, x: Tensor) -> Tensor:
        return self.conv3(super().branch(x))


FROZEN = ("dead_branch", "stuck_multiplier")
add("frozen_at_zero", lambda: ResidualNet(block=Closed, norm=without_norm), images, sgd(), *FROZEN, aside=True)


def negative(layer: nn.Conv2d) -> None:
    """Makes a layer that no ReLU after it lets through."""
    layer.weight.copy_(-layer.weight.abs())
    layer.bias.fill_(-1.0)


# Biases of -10 before ReLUs; weights that a step of a far too large rate left negative.
off = altered(digits_mlp, lambda net: each(nn.Linear, lambda layer: layer.bias.fill_(-10.0), net[:-1]))
add("dead_relus", off, images, sgd(), "dead_units")
off = altered(lambda: convolutions(3, norm=False), lambda net: each(nn.Conv2d, negative, net))
add("dead_convolutions", off, images, sgd(), "dead_units", aside=True)


def frozen_zeros(net: RecurrentNet) -> None:
    """Freezes the recurrent part at zero."""
    for parameter in net.recurrent.parameters():
        parameter.requires_grad_(False).zero_()


# A recurrent part whose checkpoint had only zeros, frozen.
NONE = ("zero_weights", "frozen", "input_independent_outputs")
add("frozen_zero_recurrence", altered(RecurrentNet, frozen_zeros), sentences, adamw(), *NONE)
