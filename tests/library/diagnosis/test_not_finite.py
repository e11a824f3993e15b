"""Values that are not finite: the first is named, with operation, module and line, in both directions and modes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from diagnosed import diagnose, kinds
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam

from normless.diagnosis import Finding


def first(model: nn.Module, batch: object, loss: object = F.mse_loss, **options: object) -> Finding:
    diagnosis = diagnose(model, batch, loss=loss, **options)
    assert kinds(diagnosis)[0].startswith(("not_finite", "ignored")), str(diagnosis)
    return diagnosis.findings[0]


class Unit(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / x.norm(dim=1, keepdim=True)


class Masked(nn.Module):
    def __init__(self, length: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.project = nn.Linear(8, 8, dtype=dtype)
        self.length = length

    def forward(self, x: Tensor) -> Tensor:
        logits = self.project(x) @ x.transpose(1, 2)
        hidden = torch.arange(x.shape[1]) >= self.length
        return torch.softmax(logits.masked_fill(hidden, float("-inf")), -1) @ x


class Powers(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.exp() / x.exp().sum(1, keepdim=True)


class Rooted(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x > 0, torch.sqrt(x), torch.zeros_like(x))


class Scaled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / (x.square().sum(1, keepdim=True).sqrt() + 1e-3)


def zero_row() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    model = nn.Sequential(nn.Linear(4, 6, bias=False), Unit(), nn.Linear(6, 2))
    x = torch.randn(8, 4)
    x[3] = 0
    return model, (x, torch.randn(8, 2))


def fully_masked() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    return nn.Sequential(nn.Linear(8, 8), Masked(0)), (torch.randn(4, 5, 8), torch.randn(4, 5, 8))


def overflow() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    model = nn.Sequential(nn.Linear(4, 6), Powers(), nn.Linear(6, 2)).half()
    nn.init.normal_(model[0].weight, std=50)
    return model, (torch.randn(8, 4).half(), torch.randn(8, 2).half())


FORWARD: dict[str, tuple[Callable[[], tuple[nn.Module, tuple[Tensor, Tensor]]], str, str, str]] = {
    "0/0": (zero_row, "1", "div", "x / x.norm"),
    "softmax of a masked row": (fully_masked, "1", "softmax", "masked_fill(hidden"),
    "float16 overflows": (overflow, "1", "div", "x.exp() / "),
}


@pytest.mark.parametrize("name", FORWARD)
@pytest.mark.parametrize("has_optimizer", [False, True])
def test_the_first_call_in_the_forward_pass(name: str, has_optimizer: bool) -> None:
    torch.manual_seed(0)
    make, place, operation, code = FORWARD[name]
    model, batch = make()
    found = first(model, batch, optimizer=SGD(model.parameters(), 0.1) if has_optimizer else None, trial_steps=5)
    assert found.where == (place,)
    assert operation in str(found.evidence["operation"])
    assert code in str(found.evidence["line"])
    assert found.evidence["value"] == "NaN"


def test_a_mask_that_leaves_something_is_healthy() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), Masked(3))
    batch = torch.randn(4, 5, 8), torch.randn(4, 5, 8)
    assert "not_finite" not in kinds(diagnose(model, batch, loss=F.mse_loss))


@pytest.mark.parametrize(
    ("module", "operation"), [(Rooted(), "sqrt"), (Scaled(), "sqrt")], ids=["where and root", "ε outside of a root"]
)
def test_the_first_call_in_the_backward_pass(module: nn.Module, operation: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6, bias=False), nn.Identity(), module, nn.Linear(6, 2))
    x = torch.randn(8, 4)
    x[2] = 0
    found = first(model, (x, torch.randn(8, 2)))
    assert found.evidence["what"] == "gradient"
    assert found.where == ("2",)
    assert found.evidence["operation"] == operation


def test_an_angle_in_the_loss() -> None:
    """∂ arccos(c)/∂c is infinite at c = 1, where an output has the direction of its target."""
    model, x = nn.Linear(4, 4, bias=False), torch.eye(4).repeat(2, 1)
    nn.init.eye_(model.weight)

    def angle(outputs: Tensor, targets: Tensor) -> Tensor:
        return torch.acos((outputs * targets).sum(1)).mean()

    found = first(model, (x, x), angle)
    assert (found.evidence["what"], found.evidence["operation"]) == ("gradient", "acos")
    assert "torch.acos" in str(found.evidence["line"])
    assert found.where == ()


@pytest.mark.parametrize("holder", ["statistics", "weights"])
def test_a_state_that_is_not_finite(holder: str) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3))
    name = "1.running_var" if holder == "statistics" else "4.weight"
    model.state_dict()[name].fill_(float("nan"))
    batch = torch.randn(16, 3, 8, 8), torch.arange(16) % 3
    diagnosis = diagnose(model, batch)
    found = diagnosis.findings[0]
    assert (found.kind, found.where[0]) == ("not_finite_state", name)
    assert ("evaluation" in found.title) == (holder == "statistics")
    assert "kaiming" not in diagnosis.verdict


def test_targets_with_missing_values_and_a_loss_that_leaves_them_out() -> None:
    torch.manual_seed(0)
    model, x, y = nn.Linear(4, 2), torch.randn(8, 4), torch.randn(8, 2)
    y[5, 1] = float("nan")

    def known_only(outputs: Tensor, targets: Tensor) -> Tensor:
        known = targets.isfinite()
        return F.mse_loss(outputs[known], targets[known])

    assert first(model, (x, y)).evidence == {"values": 1, "example": 5}
    assert not kinds(diagnose(model, (x, y), loss=known_only))


def test_a_text_longer_than_its_sound() -> None:
    """CTC's loss is infinite where the target has more symbols than the output has steps."""

    def ctc(outputs: Tensor, targets: Tensor) -> Tensor:
        steps = outputs.log_softmax(-1).transpose(0, 1)
        return F.ctc_loss(steps, targets, torch.full((4,), 3), torch.full((4,), 6))

    found = first(nn.Linear(8, 5), (torch.randn(4, 3, 8), torch.randint(1, 5, (4, 6))), ctc)
    assert (found.evidence["operation"], found.evidence["value"]) == ("ctc_loss", "infinite")


@pytest.mark.parametrize("index", [-100, 0, 255])
def test_labels_that_are_all_ignored(index: int) -> None:
    loss = nn.CrossEntropyLoss(ignore_index=index)
    found = first(nn.Linear(4, 5), (torch.randn(9, 4), torch.full((9,), index)), loss)
    assert (found.kind, found.evidence["labels"]) == ("ignored_labels", 9)


@pytest.mark.parametrize("rate", [1e6, 1e9])
def test_a_rate_far_too_large(rate: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    x = torch.randn(32, 8)
    batch = x, x[:, :1].tanh()
    optimizer = SGD(model.parameters(), rate)
    found = diagnose(model, batch, loss=F.mse_loss, optimizer=optimizer, trial_steps=10).findings
    assert found[0].kind == "rate_too_large"
    assert float(found[0].evidence["working_rate"]) <= 10
    assert not kinds(diagnose(model, batch, loss=F.mse_loss, optimizer=Adam(model.parameters()), trial_steps=10))
