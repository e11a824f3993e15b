"""Training and evaluation, frozen parts, examples that depend on each other; false alarms of these kinds."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from diagnosed import diagnose, images, kinds
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam

import normless as nl


def convolutional(norm: Callable[[int], nn.Module] = nn.BatchNorm2d) -> nn.Sequential:
    torch.manual_seed(0)
    body = [nn.Conv2d(3, 8, 3, padding=1), norm(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), norm(8), nn.ReLU()]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))


def seen(model: nn.Module, x: Tensor, passes: int = 60) -> nn.Module:
    with torch.no_grad():
        for _ in range(passes):
            model.train()(x)
    return model


def test_a_loss_in_evaluation_far_above_that_in_training() -> None:
    """The averages are of images twice as large and shifted, and the outputs' spread is large."""
    x, y = images(32)
    model = seen(convolutional(), x)
    optimizer = Adam(model.parameters(), 0.03)
    for _ in range(80):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    healthy = seen(model, x)
    assert "modes_differ" not in kinds(diagnose(healthy, (x, y)))
    other = seen(model, 3 * x + 1)
    found = diagnose(other, (x, y)).findings
    assert found[0].kind == "modes_differ"


class Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if self.training else -x


@pytest.mark.parametrize("wrong", [True, False])
def test_code_that_asks_for_the_mode(wrong: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(32, 6)
    y = (x @ torch.randn(6, 3)).argmax(1)
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3), Doubled() if wrong else nn.Dropout(0.1))
    optimizer = Adam(model.parameters(), 0.03)
    for _ in range(50):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert kinds(diagnose(model, (x, y))) == ["modes_differ"] * wrong


@pytest.mark.parametrize("state", ["training", "evaluation", "trained", "whole network in evaluation"])
def test_a_frozen_backbone_whose_norms_move(state: str) -> None:
    x, y = images(32)
    model = seen(convolutional(), x)
    model[:6].requires_grad_(state == "trained")
    if state == "evaluation":
        model[:6].eval()
    if state.startswith("whole"):
        model.eval()
    diagnosis = diagnose(model, (x, y), optimizer=SGD(model[-1].parameters(), 0.1))
    found = [one for one in diagnosis.findings if one.kind == "moving_frozen_norms"]
    assert [one.where for one in found] == [("1", "4")] * (state == "training")


def test_frozen_norms_that_never_saw_data() -> None:
    torchvision = pytest.importorskip("torchvision")
    x, y = images(32)
    fresh = convolutional(torchvision.ops.FrozenBatchNorm2d)
    assert "initial_frozen_norms" in kinds(diagnose(fresh, (x, y)))
    for module in fresh.modules():
        if isinstance(module, torchvision.ops.FrozenBatchNorm2d):
            module.running_mean.fill_(0.1)
            module.running_var.fill_(0.5)
    assert "initial_frozen_norms" not in kinds(diagnose(fresh, (x, y)))


def test_a_norm_after_pooling_at_one_example() -> None:
    torch.manual_seed(0)
    pooled = nn.Sequential(
        nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8, 3)
    )
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), pooled)
    diagnosis = diagnose(model, (torch.randn(1, 3, 8, 8), torch.tensor([1])))
    assert kinds(diagnosis) == ["single_element_norm"]
    assert diagnosis.findings[0].where == ("2.2",)
    assert "drop_last" in diagnosis.verdict


class Convolution(nn.Module):
    """Messages along edges, by the function given."""

    def __init__(self, mix: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.mix = nn.Linear(6, 32), nn.Linear(32, 3), mix

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        return self.second(self.mix(F.relu(self.first(x)), edges))


def added(x: Tensor, edges: Tensor) -> Tensor:
    return x + torch.zeros_like(x).index_add_(0, edges[1], x[edges[0]])


def selected(x: Tensor, edges: Tensor) -> Tensor:
    return x.scatter_add(0, edges[1][:, None].expand(-1, x.shape[1]), x.index_select(0, edges[0]))


def multiplied(x: Tensor, edges: Tensor) -> Tensor:
    matrix = torch.zeros(len(x), len(x))
    matrix[edges[0], edges[1]] = 0.5
    return x + matrix @ x


def attended(x: Tensor, edges: Tensor) -> Tensor:
    return x + torch.softmax(x @ x.t(), 1) @ x + 0 * edges.sum()


@pytest.mark.parametrize(("mix", "wrong"), [(added, False), (selected, False), (multiplied, False), (attended, True)])
def test_nodes_of_a_graph_depend_on_each_other(mix: Callable[[Tensor, Tensor], Tensor], wrong: bool) -> None:
    torch.manual_seed(0)
    x, edges = torch.randn(40, 6), torch.randint(40, (2, 100))
    diagnosis = diagnose(Convolution(mix), ((x, edges), torch.arange(40) % 3))
    assert kinds(diagnosis) == ["mixes_examples"] * wrong, str(diagnosis)


def test_norms_without_statistics_have_their_own_cure() -> None:
    x, y = images(32)
    model = convolutional(lambda channels: nn.BatchNorm2d(channels, track_running_stats=False))
    diagnosis = diagnose(model, (x, y))
    assert kinds(diagnosis) == ["mixes_examples"]
    cure = diagnosis.findings[0].cure
    assert "running statistics" in cure.words
    assert "softmax" not in cure.words
    assert cure.schemes[0] == "group_norm"
    converted = nl.convert(model, cure.schemes[0], x)
    assert "mixes_examples" not in kinds(diagnose(converted, (x, y)))


def test_an_axis_that_is_mistaken_for_the_batch() -> None:
    class Wrong(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * torch.softmax(x, 0)

    model = nn.Sequential(nn.Linear(6, 8), Wrong(), nn.Linear(8, 3))
    cure = diagnose(model, (torch.randn(16, 6), torch.arange(16) % 3)).findings[0].cure
    assert "axis 0" in cure.words


class InPlace(nn.Module):
    """A norm, an activation in place, and a sum."""

    def __init__(self, norm: nn.Module, activation: nn.Module) -> None:
        super().__init__()
        self.stem, self.conv, self.norm, self.act = (
            nn.Conv2d(3, 8, 1),
            nn.Conv2d(8, 8, 3, padding=1),
            norm,
            activation,
        )
        self.head = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        h = h + self.act(self.norm(self.conv(h)))
        return self.head(h.mean((2, 3)))


@pytest.mark.parametrize("norm", [nn.InstanceNorm2d(8, affine=True), nn.InstanceNorm2d(8), nn.GroupNorm(2, 8)])
@pytest.mark.parametrize(
    "activation", [nn.ReLU(inplace=True), nn.LeakyReLU(0.1, inplace=True), nn.SiLU(inplace=True)]
)
def test_writing_in_place_cuts_no_gradient(norm: nn.Module, activation: nn.Module) -> None:
    assert not kinds(diagnose(InPlace(norm, activation), images()))


class Standardized(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        flat = self.weight.reshape(1, self.out_channels, -1)
        weight = F.batch_norm(flat, None, None, training=True, momentum=0.0, eps=1e-6).reshape_as(self.weight)
        return F.conv2d(x, weight, self.bias, padding=self.padding)


def test_norms_of_weights_are_none_of_the_signal() -> None:
    """Two examples are too few for a batch norm, and there is none."""
    torch.manual_seed(0)
    model = nn.Sequential(
        Standardized(3, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)
    )
    diagnosis = diagnose(model, images(2))
    assert "small_batch" not in kinds(diagnosis)
    assert "no batch norm" in next(one.summary for one in diagnosis.checks if one.name == "batch statistics")


class Dropping(nn.Module):
    """A network with dropout that may be active in evaluation mode."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.first, self.last, self.way, self.dropout = nn.Linear(8, 32), nn.Linear(32, 4), way, nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.first(x))
        if self.way == "function":
            h = F.dropout(h, 0.2)
        elif self.way == "function with the mode":
            h = F.dropout(h, 0.2, training=self.training)
        elif self.way == "noise":
            h = h + 0.1 * torch.randn_like(h)
        elif self.way.startswith("attention"):
            p = 0.2 if self.training or self.way == "attention" else 0.0
            h = F.scaled_dot_product_attention(*3 * [h.unflatten(1, (4, 8))], dropout_p=p).flatten(1)
        result: Tensor = self.last(self.dropout(h) if self.way == "module" else h)
        return result


@pytest.mark.parametrize(
    "way", ["function", "function with the mode", "module", "attention", "attention with the mode", "noise"]
)
def test_dropout_in_evaluation(way: str) -> None:
    torch.manual_seed(0)
    batch = torch.randn(32, 8), torch.arange(32) % 4
    wrong = way in ("function", "attention")
    assert kinds(diagnose(Dropping(way), batch)) == ["dropout_in_evaluation"] * wrong


@pytest.mark.parametrize(
    ("momentum", "kind"),
    [(0.1, ""), (0.001, "lagging_statistics"), (0.01, ""), (0.99, "last_batch_statistics"), (1.0, "")],
)
def test_momentum_of_other_frameworks(momentum: float, kind: str) -> None:
    x, y = images(32)
    x = 3 * x + 2
    model = convolutional(lambda width: nn.BatchNorm2d(width, momentum=momentum))
    fresh = kinds(diagnose(model, (x, y)))
    assert fresh == [kind] * (kind == "last_batch_statistics")
    optimizer = Adam(model.parameters(), 0.01)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    # A momentum of 0.01 is torchvision's for some networks; it lags for a while, as any average does.
    assert kinds(diagnose(model, (x, y)))[:1] == [kind] * bool(kind)
