"""Cases in which the gradient, or the optimizer, does not reach what should be trained."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from normless.bench.diagnosis.cases import Patient, adamw, case, sgd
from normless.bench.diagnosis.networks import (
    Block,
    RecurrentNet,
    ResidualNet,
    SentenceNet,
    convolutions,
    images,
    mlp,
    sentences,
    vectors,
    without_norm,
)
from normless.conversion import convert
from normless.models import resnet_cifar
from normless.residual import residual_map


@case("frozen")
def everything_frozen() -> Patient:
    """`requires_grad_(False)` on the whole network, not on the backbone."""
    return Patient(ResidualNet().requires_grad_(False), images())


@case("frozen", aside=True)
def head_frozen() -> Patient:
    """The wrong part was frozen: random features are trained for a random head that stays."""
    net = SentenceNet()
    net.requires_grad_(False)
    net.positions.requires_grad_(True)
    return Patient(net, sentences(), adamw(net))


@case("detached")
def detached_features() -> Patient:
    """`detach` on the features, left from an evaluation."""

    class Net(ResidualNet):
        def features(self, x: Tensor) -> Tensor:
            return super().features(x).detach()

    net = Net()
    return Patient(net, images(), sgd(net))


@case("detached", aside=True)
def through_numpy() -> Patient:
    """A resizing by numpy between two convolutions."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.rest = nn.Conv2d(1, 16, 3, padding=1), convolutions(2, width=16)
            self.rest[0] = nn.Conv2d(16, 16, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            pooled = self.first(x).relu().detach().numpy()[:, :, ::2, ::2].copy()
            logits: Tensor = self.rest(torch.from_numpy(pooled))
            return logits

    net = Net()
    return Patient(net, images(), sgd(net))


@case("detached")
def rebuilt_tensor() -> Patient:
    """`torch.tensor(x.tolist())` in forward code."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.head = mlp([8, 32, 16]), nn.Linear(16, 3)

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.head(torch.tensor(self.encoder(x).tolist()).relu())
            return logits

    net = Net()
    return Patient(net, vectors(), sgd(net))


@case("no_grad", "detached")
def backbone_under_no_grad() -> Patient:
    """A `torch.no_grad()` around a backbone that should be trained."""

    class Net(ResidualNet):
        def features(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                return super().features(x)

    net = Net()
    return Patient(net, images(), sgd(net))


@case("no_grad", "detached", aside=True)
def embedding_under_no_grad() -> Patient:
    """A decorator on a method of the forward pass."""

    class Net(SentenceNet):
        @torch.no_grad()
        def embed(self, tokens: Tensor) -> Tensor:
            return super().embed(tokens)

    net = Net()
    return Patient(net, sentences(), adamw(net))


@case("unregistered_modules")
def plain_list() -> Patient:
    """Layers in a Python list."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hidden = [nn.Linear(64, 64) for _ in range(3)]
            self.head = nn.Linear(64, 10)

        def forward(self, x: Tensor) -> Tensor:
            x = x.flatten(1)
            for layer in self.hidden:
                x = layer(x).relu()
            logits: Tensor = self.head(x)
            return logits

    net = Net()
    return Patient(net, images(), sgd(net))


@case("unregistered_modules", aside=True)
def plain_dictionary() -> Patient:
    """Residual blocks in a dictionary."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.head = nn.Conv2d(1, 8, 3, padding=1), nn.Linear(8, 10)
            self.stages = {"one": Block(8), "two": Block(8)}

        def forward(self, x: Tensor) -> Tensor:
            x = self.stages["two"](self.stages["one"](self.stem(x)))
            logits: Tensor = self.head(x.mean((2, 3)))
            return logits

    return Patient(Net(), images())


@case("untrained_parameters")
def only_the_head() -> Patient:
    """The optimizer was given the head's parameters only; the backbone is random."""
    net = ResidualNet()
    return Patient(net, images(), torch.optim.SGD(net.fc.parameters(), lr=0.05))


@case("untrained_parameters", aside=True)
def replaced_head() -> Patient:
    """The head was replaced after the optimizer was made."""
    net = SentenceNet()
    optimizer = adamw(net)
    net.head = nn.Linear(32, 4)
    return Patient(net, sentences(), optimizer)


@case("untrained_parameters")
def another_network() -> Patient:
    """The optimizer has the parameters of a network that was copied before."""
    return Patient(mlp([64, 64, 10]), images(), sgd(mlp([64, 64, 10])))


@case("unused_result", "unused_parameters")
def result_not_assigned() -> Patient:
    """`self.layer2(x)` where `x = self.layer2(x)` was meant."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer1, self.layer2, self.head = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10)

        def forward(self, x: Tensor) -> Tensor:
            x = self.layer1(x.flatten(1)).relu()
            self.layer2(x).relu()
            logits: Tensor = self.head(x)
            return logits

    net = Net()
    return Patient(net, images(), sgd(net))


@case("unused_result", "unused_parameters", aside=True)
def branch_not_added() -> Patient:
    """Blocks that return their skip path."""

    class Lost(Block):
        def forward(self, x: Tensor) -> Tensor:
            self.branch(x)
            return x.relu()

    net = ResidualNet(block=Lost)
    return Patient(net, images(), sgd(net))


@case("detached")
def predicted_classes() -> Patient:
    """A loss of the predicted class, which has no gradient."""

    class Net(ResidualNet):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.one_hot(super().forward(x).argmax(1), 10).float()

    return Patient(Net(), images())


@case("stuck_multiplier", "dead_branch")
def two_zeros() -> Patient:
    """SkipInit's multiplier and Fixup's zero layer at once."""
    net = convert(resnet_cifar(20, in_channels=1), "skipinit")
    for block in residual_map(net).blocks:
        last = [layer for layer in block.branch_layers if layer.kind == "weight"][-1]
        nn.init.zeros_(net.get_submodule(last.path).weight)  # type: ignore[arg-type]
    return Patient(net, images(), sgd(net))


@case("dead_branch", "stuck_multiplier", aside=True)
def frozen_at_zero() -> Patient:
    """Branches that end in two layers of zeros."""

    class Closed(Block):
        def __init__(self, width: int, norm: Callable[[int], nn.Module]) -> None:
            super().__init__(width, norm)
            self.conv3 = nn.Conv2d(width, width, 1, bias=False)
            nn.init.zeros_(self.conv2.weight)
            nn.init.zeros_(self.conv3.weight)

        def branch(self, x: Tensor) -> Tensor:
            y: Tensor = self.conv3(super().branch(x))
            return y

    net = ResidualNet(block=Closed, norm=without_norm)
    return Patient(net, images(), sgd(net))


@case("dead_units")
def dead_relus() -> Patient:
    """Biases of -10 before ReLUs."""
    net = mlp([64, 64, 64, 10])
    for layer in net[1:4]:
        if isinstance(layer, nn.Linear):
            nn.init.constant_(layer.bias, -10.0)
    return Patient(net, images(), sgd(net))


@case("dead_units", aside=True)
def dead_convolutions() -> Patient:
    """Weights that a step of a far too large rate left negative."""
    net = convolutions(3, norm=False)
    with torch.no_grad():
        for layer in net:
            if isinstance(layer, nn.Conv2d):
                layer.weight.copy_(-layer.weight.abs())
                layer.get_parameter("bias").fill_(-1.0)
    return Patient(net, images(), sgd(net))


@case("zero_weights", "frozen", "input_independent_outputs")
def frozen_zero_recurrence() -> Patient:
    """A recurrent part whose checkpoint had only zeros, frozen."""
    net = RecurrentNet()
    for parameter in net.recurrent.parameters():
        parameter.requires_grad_(False).zero_()
    return Patient(net, sentences(), adamw(net))
