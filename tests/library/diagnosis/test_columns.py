"""Columns of the inputs and targets of very different scales, or with a mean that hides their differences."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from diagnosed import diagnose, kinds
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam

from normless import diagnosis as doctor
from normless.diagnosis import Diagnosis

COLUMNS: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "an amount beside shares": ("columns", lambda x: torch.cat([x[:, :1] * 3e4, x[:, 1:]], 1)),
    "years": ("hardly differ", lambda x: x + 2000),
    "scaled twice": ("hardly differ", lambda x: (x / 255 - 0.5) / 0.25),
    "identifiers": ("identifiers", lambda x: (x.abs() * 500).round()),
}


def net(outputs: int = 4, norm: bool = False) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        *([nn.BatchNorm1d(6)] if norm else []), nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(),
        nn.Linear(32, outputs),
    )  # fmt: skip


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_of_the_inputs(name: str) -> None:
    words, change = COLUMNS[name]
    torch.manual_seed(0)
    x, y = torch.randn(64, 6), torch.arange(64) % 4
    found = [one for one in diagnose(net(), (change(x), y)).findings if one.kind == "unscaled_inputs"]
    assert len(found) == 1
    assert words in found[0].title
    assert not kinds(diagnose(net(), (x, y)))
    # A norm of the inputs standardizes them.
    assert "unscaled_inputs" not in kinds(diagnose(net(norm=True), (change(x), y)))


def tried(x: Tensor, y: Tensor, model: nn.Module) -> Diagnosis:
    return diagnose(model, (x, y), loss=F.mse_loss, optimizer=Adam(model.parameters(), 1e-3), trial_steps=20)


@pytest.mark.parametrize(
    ("scale", "mean"), [(1e5, 4e5), (1.0, 300.0), pytest.param(1e-4, 0.0, marks=pytest.mark.slow)]
)
def test_targets_far_from_the_outputs(scale: float, mean: float) -> None:
    torch.manual_seed(0)
    x = torch.randn(128, 6)
    y = torch.tanh(x @ torch.randn(6, 1))
    found = tried(x, mean + scale * y, net(1)).findings
    assert found[0].kind == "unscaled_targets"
    assert float(found[0].evidence["deviation"]) == pytest.approx(float((scale * y).std(correction=0)), rel=1e-2)
    assert not kinds(tried(x, y, net(1)))
    # A last layer of the targets' scale reaches them.
    model = net(1)
    with torch.no_grad():
        model[-1].weight.mul_(scale)  # type: ignore[index]
        model[-1].bias.mul_(scale).add_(mean)  # type: ignore[index]
    assert "unscaled_targets" not in kinds(tried(x, mean + scale * y, model))


@pytest.mark.parametrize(("scale", "said"), [(127.5, True), (1.0, False)])
def test_noise_beside_data_of_bytes(scale: float, said: bool) -> None:
    """A denoiser with a norm: inputs √ᾱ x + √(1-ᾱ) ε, targets ε, x of ±127.5 or ±1."""
    torch.manual_seed(0)
    data, kept, noise = scale * torch.randn(64, 32).sign(), torch.rand(64, 1), torch.randn(64, 32)
    network = nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64), nn.Tanh(), nn.Linear(64, 32))
    diagnosis = diagnose(network, (kept.sqrt() * data + (1 - kept).sqrt() * noise, noise), loss=F.mse_loss)
    named = [found.title for found in diagnosis.findings if found.kind == "unscaled_inputs"]
    assert [("noise" in title) for title in named] == [True] * said


def test_large_noise_is_no_data() -> None:
    """Noise of variance up to 80² in the inputs of a denoiser, as in a schedule of exploding variance, and bytes that
    predict a value that is not normal."""
    torch.manual_seed(0)
    data, noise = torch.randn(64, 32).sign(), torch.randn(64, 32)
    level = torch.logspace(-2, 1.9, 64)[:, None]
    network = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 32))
    for inputs, targets in ((data + level * noise, noise), (127.5 * (data + 1), data)):
        assert "unscaled_inputs" not in kinds(diagnose(network, (inputs, targets), loss=F.mse_loss))


@pytest.mark.parametrize(
    ("size", "adapts", "said"), [(2000.0, False, True), (1.0, False, False), (60.0, True, False)]
)
def test_large_targets_beside_others(size: float, adapts: bool, said: bool) -> None:
    """Boxes in pixels beside classes: a rate that suits the classes takes long, and Adam may reach them soon."""

    class Detector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.body, self.classes, self.box = nn.Linear(8, 64), nn.Linear(64, 3), nn.Linear(64, 2)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            features = self.body(x).tanh()
            return {"classes": self.classes(features), "box": self.box(features)}

    def loss(outputs: dict[str, Tensor], targets: dict[str, Tensor]) -> Tensor:
        boxes = F.smooth_l1_loss(outputs["box"], targets["box"])
        return F.cross_entropy(outputs["classes"], targets["classes"]) + boxes

    network, x = Detector(), torch.randn(64, 8)
    targets = {"classes": (x[:, 0] > 0).long(), "box": size * (x[:, :2].sigmoid())}
    parameters = network.parameters()
    optimizer = Adam(parameters, 0.1) if adapts else SGD(parameters, 0.05, momentum=0.9)
    diagnosis = doctor.diagnose(network, (x, targets), loss=loss, optimizer=optimizer)
    assert [found.kind for found in diagnosis.findings] == ["unscaled_targets"] * said, str(diagnosis)
