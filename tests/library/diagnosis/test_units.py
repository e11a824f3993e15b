"""Weights that keep each other from learning, and losses of torch with outputs and targets that they do not mean."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from diagnosed import diagnose, kinds
from torch import Tensor, nn
from torch.nn import functional as F


def classifier(*last: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), *(last or (nn.Linear(32, 6),)))


def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(48, 12, generator=torch.Generator().manual_seed(1)), torch.arange(48) % 6


def test_constant_weights_are_named() -> None:
    model = classifier()
    for layer in (model[0], model[2], model[4]):
        nn.init.constant_(layer.weight, 0.05)
        nn.init.zeros_(layer.bias)
    found = diagnose(model, batch()).findings[0]
    assert found.kind == "identical_units"
    assert found.where[0] == "0"
    assert not kinds(diagnose(classifier(), batch()))


class Adapted(nn.Module):
    """A layer with a low-rank addition, whose second factor starts at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(12, 32), nn.Linear(32, 6)
        self.down, self.up = nn.Linear(12, 4, bias=False), nn.Linear(4, 32, bias=False)
        nn.init.zeros_(self.up.weight)
        nn.init.constant_(self.head.weight, 0.0)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(F.relu(self.layer(x) + self.up(self.down(x))))
        return result


def test_equal_units_with_different_gradients_are_healthy() -> None:
    torch.manual_seed(0)
    model = Adapted()
    assert not kinds(diagnose(model, batch()))
    # Without the zero head, the addition opens with the first step.
    nn.init.normal_(model.head.weight, std=0.1)
    assert not kinds(diagnose(model, batch()))


class Attention(nn.Module):
    """A class token that attends to positions, in a residual block or not."""

    def __init__(self, residual: bool, zeros: tuple[str, ...]) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(16, 16, bias=False) for _ in range(3))
        self.embed, self.head, self.residual = nn.Linear(6, 16), nn.Linear(16, 4), residual
        self.token, self.positions = nn.Parameter(torch.zeros(1, 1, 16)), nn.Parameter(torch.zeros(1, 9, 16))
        for name in zeros:
            nn.init.zeros_(self.get_submodule(name).weight)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(len(x), 1, 16), self.embed(x)], 1) + self.positions
        y = F.scaled_dot_product_attention(self.query(x), self.key(x), self.value(x))
        result: Tensor = self.head((x + y if self.residual else y)[:, 0])
        return result


@pytest.mark.parametrize("residual", [False, True])
def test_queries_and_keys_that_are_both_zero(residual: bool) -> None:
    given = torch.randn(24, 8, 6), torch.arange(24) % 4
    for zeros, wrong in (
        (("query", "key"), True),
        (("query",), False),
        (("head",), False),
        (("head", "query"), False),
    ):
        torch.manual_seed(0)
        found = diagnose(Attention(residual, zeros), given).findings
        assert [finding.kind for finding in found] == ["zero_weights"] * wrong, zeros
        assert not wrong or {"query.weight", "key.weight"} <= set(found[0].where)


def test_packed_queries_and_keys_that_are_zero() -> None:
    class Packed(nn.Module):
        def __init__(self, zero: int) -> None:
            super().__init__()
            self.attention, self.head = nn.MultiheadAttention(16, 2, batch_first=True), nn.Linear(16, 4)
            nn.init.zeros_(self.attention.in_proj_bias)
            with torch.no_grad():
                self.attention.in_proj_weight[:zero] = 0

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))
            return result

    given = torch.randn(24, 8, 16), torch.arange(24) % 4
    for zero, expected in ((32, ["zero_weights"]), (16, []), (0, [])):
        torch.manual_seed(0)
        assert kinds(diagnose(Packed(zero), given)) == expected


def test_dead_units_of_a_function_are_named_by_their_layer() -> None:
    class Scorer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hidden, self.head = nn.Linear(12, 32), nn.Linear(32, 6)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.head(F.relu(self.hidden(x)))
            return result

    torch.manual_seed(0)
    model = Scorer()
    assert not kinds(diagnose(model, batch()))
    nn.init.constant_(model.hidden.bias, -20.0)
    found = diagnose(model, batch()).findings[0]
    assert (found.kind, found.where) == ("dead_units", ("hidden",))


def test_outputs_of_the_size_of_large_targets_do_not_explode() -> None:
    x, _ = batch()
    for bias, kind in ((5000.0, []), (2e7, ["exploding_weights"])):
        model = classifier(nn.Linear(32, 1))
        nn.init.constant_(model[4].bias, bias)
        assert kinds(diagnose(model, (x, 5000 + 100 * x[:, :1]), loss=F.mse_loss))[:1] == kind


LOSSES: dict[str, tuple[tuple[nn.Module, ...], Callable[[Tensor], Tensor], Callable[..., Tensor], str]] = {
    "labels of a margin": (
        (nn.Linear(32, 1),),
        lambda y: 2.0 * (y > 2) - 1,
        F.binary_cross_entropy_with_logits,
        "targets_out_of_range",
    ),
    "labels of a margin, made probabilities": (
        (nn.Linear(32, 1),),
        lambda y: 2.0 * (y > 2) - 1,
        lambda o, t: F.binary_cross_entropy_with_logits(o, (t + 1) / 2),
        "",
    ),
    "smoothed labels": ((nn.Linear(32, 1),), lambda y: 0.1 + 0.8 * (y > 2), F.binary_cross_entropy_with_logits, ""),
    "margins": ((nn.Linear(32, 1),), lambda y: 2.0 * (y > 2) - 1, lambda o, t: F.relu(1 - o * t).mean(), ""),
    "softmax of one output": (
        (nn.Linear(32, 1), nn.Softmax(1)),
        lambda y: 1.0 * (y > 2),
        F.binary_cross_entropy,
        "softmax_over_one",
    ),
    "sigmoid of one output": ((nn.Linear(32, 1), nn.Sigmoid()), lambda y: 1.0 * (y > 2), F.binary_cross_entropy, ""),
    "one class": ((nn.Linear(32, 1),), lambda y: 0 * y[:, 0], F.cross_entropy, "one_class"),
    "logits as logarithms": ((nn.Linear(32, 6),), lambda y: y[:, 0], F.nll_loss, "logits_as_logarithms"),
    "logarithms": ((nn.Linear(32, 6), nn.LogSoftmax(1)), lambda y: y[:, 0], F.nll_loss, ""),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_what_a_loss_means(name: str) -> None:
    last, target, loss, kind = LOSSES[name]
    x, y = batch()
    assert kinds(diagnose(classifier(*last), (x, target(y[:, None])), loss=loss))[:1] == [kind] * bool(kind)


def test_tiny_inputs() -> None:
    x, y = batch()
    assert kinds(diagnose(classifier(), (x / 500, y)))[:1] == ["unscaled_inputs"]
    assert not kinds(diagnose(classifier(), (x, y)))
    # One-hot vectors of many columns have a small standard deviation.
    torch.manual_seed(0)
    wide = nn.Sequential(nn.Linear(5000, 32), nn.ReLU(), nn.Linear(32, 6))
    assert not kinds(diagnose(wide, (F.one_hot(100 * torch.arange(48), 5000).float(), y)))
