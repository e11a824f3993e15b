"""Layers that loading left at zero, constant, as they were drawn or too large, each named at its place."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import cache
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from trained_health import Block, kinds, quick

import normless as nl

DIGITS = load_digits()
IMAGES = (torch.tensor(DIGITS.images, dtype=torch.float32)[:, None] - 4.9) / 6.0
LABELS = torch.tensor(DIGITS.target)
HELD = [(IMAGES[at : at + 64], LABELS[at : at + 64]) for at in range(1400, 1656, 64)]


def learn(net: nn.Module, steps: int = 200) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW([one for one in net.parameters() if one.requires_grad], 3e-3)
    net.train()
    for _ in range(steps):
        rows = torch.randint(1400, (64,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(net(IMAGES[rows]), LABELS[rows]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return net.eval()


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cut, self.attention = nn.Linear(8, 32), nn.MultiheadAttention(32, 4, batch_first=True)
        self.norm, self.last, self.head = nn.LayerNorm(32), nn.LayerNorm(32), nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = self.cut(x[:, 0])
        n = self.norm(y)
        y = y + self.attention(n, n, n, need_weights=False)[0]
        out: Tensor = self.head(self.last(y).flatten(1))
        return out


def perceptron() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.GELU(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 10))


def residual() -> nn.Sequential:
    stem = (nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
    return nn.Sequential(*stem, Block(16), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 10))


BUILDS: dict[str, Callable[[], nn.Module]] = {"perceptron": perceptron, "residual": residual, "mixer": Mixer}


@cache
def trained(kind: str) -> nn.Module:
    torch.manual_seed(0)
    return learn(BUILDS[kind]())


def zero(layer: Any) -> None:
    for parameter in layer.parameters():
        parameter.zero_()


def constant(layer: Any) -> None:
    layer.weight.fill_(0.1)


def fresh(layer: Any) -> None:
    torch.manual_seed(1)
    layer.reset_parameters() if hasattr(layer, "reset_parameters") else layer._reset_parameters()


def redrawn(layer: Any) -> None:
    """As transformers draws layers that a checkpoint has not."""
    torch.manual_seed(1)
    nn.init.normal_(layer.weight, std=0.02)
    layer.bias.zero_()


def large(layer: Any) -> None:
    layer.weight.mul_(1000.0)


DAMAGES: list[tuple[Callable[[Any], None], str, str, str]] = [
    *((zero, "zero_weights", "perceptron", path) for path in "135"),
    *((zero, "zero_weights", "residual", path) for path in ("0", "3.conv1", "3.conv2", "6")),
    *((zero, "zero_weights", "mixer", path) for path in ("cut", "attention.out_proj", "head")),
    (constant, "constant_weights", "perceptron", "3"),
    *((fresh, "fresh_weights", "perceptron", path) for path in "135"),
    *((fresh, "fresh_weights", "residual", path) for path in ("0", "6")),
    *((fresh, "fresh_weights", "mixer", path) for path in ("cut", "attention", "head", "norm")),
    *((redrawn, "fresh_weights", "perceptron", path) for path in "135"),
    *((large, "outlying_weights", kind, path) for kind, path in (("perceptron", "5"), ("mixer", "head"))),
]


@pytest.mark.parametrize(("damage", "kind", "network", "path"), DAMAGES)
def test_a_damaged_layer_is_named_before_its_consequences(
    damage: Callable[[Any], None], kind: str, network: str, path: str
) -> None:
    net = deepcopy(trained(network))
    with torch.no_grad():
        damage(net.get_submodule(path))
    report = nl.diagnose_trained(net, HELD)
    assert [(found.kind, found.where) for found in report.findings][:1] == [(kind, (path,))]


def adapted() -> nn.Module:
    """A trained network with an adapter of low rank that is at its start, as LoRA's."""

    class Adapted(nn.Module):
        def __init__(self, layer: nn.Module) -> None:
            super().__init__()
            self.base, self.down, self.up = layer, nn.Linear(48, 4, bias=False), nn.Linear(4, 48, bias=False)
            nn.init.zeros_(self.up.weight)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.base(x) + self.up(self.down(x))
            return y

    net: Any = deepcopy(trained("perceptron")).requires_grad_(False)
    net[3] = Adapted(net[3])
    return net  # type: ignore[no-any-return]


def grown() -> nn.Module:
    """A last layer that started at zero and was trained, beside a norm and a layer that were frozen."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 48), nn.LayerNorm(48), *perceptron()[2:5], nn.LayerNorm(48), nn.Linear(48, 10)
    )
    nn.init.zeros_(net[-1].weight)
    nn.init.zeros_(net[-1].bias)
    net[1].requires_grad_(False)
    net[2].requires_grad_(False)
    return learn(net)


def small() -> nn.Module:
    torch.manual_seed(0)
    return learn(nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 10)), 400)


@pytest.mark.parametrize("build", [*(lambda kind=kind: trained(kind) for kind in BUILDS), adapted, grown, small])
def test_networks_without_a_fault_have_no_findings(build: Callable[[], nn.Module]) -> None:
    report = quick(build(), HELD)
    assert not report.findings
    assert report.checks[2].summary.startswith("the loss is")


def test_outputs_that_do_not_depend_on_the_inputs_are_said() -> None:
    class Blind(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.read, self.head = nn.Linear(64, 16), nn.Linear(16, 10)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(0 * self.read(x.flatten(1)) + 1)
            return out

    torch.manual_seed(0)
    found = {one.kind: one for one in nl.diagnose_trained(Blind(), HELD).findings}
    assert found["input_independent_outputs"].where == ("head",)
    # An example beside itself says nothing.
    assert "input_independent_outputs" not in kinds(quick(trained("perceptron"), [IMAGES[:1].expand(32, -1, -1, -1)]))


@pytest.mark.parametrize("network", BUILDS)
def test_a_layer_that_differs_from_a_reference_is_named(network: str) -> None:
    right = trained(network)
    assert not nl.diagnose_trained(deepcopy(right), HELD, against=right).findings
    for path in (
        ("3", "5") if network == "perceptron" else ("6", "0") if network == "residual" else ("attention", "cut")
    ):
        net = deepcopy(right)
        weight = next(net.get_submodule(path).parameters())
        with torch.no_grad():
            weight += 0.2 * weight.std() * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
        report = quick(net, HELD, against=right)
        (found,) = (one for one in report.findings if one.kind == "differs_from_reference")
        assert found.where == (path,)
        differ = report.table[report.table["own_apart"] > 1e-3]
        assert [*differ["layer"]] == [path]


def test_code_that_differs_from_a_reference_is_placed() -> None:
    class Doubled(Mixer):
        def forward(self, x: Tensor) -> Tensor:
            y = 1.5 * self.cut(x[:, 0])
            n = self.norm(y)
            y = y + self.attention(n, n, n, need_weights=False)[0]
            out: Tensor = self.head(self.last(y).flatten(1))
            return out

    net = Doubled().eval()
    net.load_state_dict(trained("mixer").state_dict())
    (found,) = quick(net, HELD, against=trained("mixer")).findings
    # Layer norms return nearly the same: what the attention adds to has another scale.
    assert (found.kind, found.where) == ("forward_differs_from_reference", ("last",))


def test_a_small_layer_is_not_compared_with_the_bounds_of_other_laws() -> None:
    net = deepcopy(trained("perceptron"))
    head: Any = net.get_submodule("5")
    torch.manual_seed(0)
    # As if training had ended within the bound, which is not that of torch's layers.
    nn.init.xavier_uniform_(head.weight)
    nn.init.constant_(head.bias, 0.05)
    assert head.weight.numel() == 480
    assert "fresh_weights" not in kinds(quick(net, HELD))


class Typed(nn.Module):
    """Images as sequences of one type, and a head that nothing runs."""

    def __init__(self) -> None:
        super().__init__()
        self.types, self.inner, self.unused = nn.Embedding(1, 64), nn.Linear(64, 48), nn.Linear(48, 48)
        self.blur, self.norm, self.head = nn.Conv2d(1, 1, 3, padding=1), nn.LayerNorm((8, 8)), nn.Linear(48, 10)
        nn.init.constant_(self.blur.weight, 1 / 9)
        self.blur.requires_grad_(False)
        self.norm.requires_grad_(False)
        nn.init.zeros_(self.types.weight)
        nn.init.zeros_(self.unused.weight)
        self.types.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x + self.blur(x)).flatten(1) + self.types(self.kinds(x))
        out: Tensor = self.head(torch.tanh(self.inner(y)))
        return out

    def kinds(self, x: Tensor) -> Tensor:
        return torch.zeros(len(x), dtype=torch.long)


@pytest.mark.parametrize("is_trained", [True, False])
def test_what_is_meant_to_be_zero_or_constant_or_does_not_run_is_no_finding(is_trained: bool) -> None:
    torch.manual_seed(0)
    net: Any = learn(Typed())
    net.types.requires_grad_(is_trained)
    report = quick(net, HELD)
    assert not report.findings
    (advice,) = (found for check in report.checks for found in check.findings if found.kind == "zero_weights")
    assert (advice.where, advice.advice) == (("types",), True)


def test_the_reference_is_run_by_the_same_call() -> None:
    class Called(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner: Any = deepcopy(trained("perceptron"))

        def logits(self, x: Tensor) -> Tensor:
            y: Tensor = self.inner(x)
            return y

    right = Called().eval()
    report = quick(deepcopy(right), HELD, call="logits", against=right)
    assert not report.findings
    assert "forward" not in vars(right)


def test_rounding_beside_a_reference_is_not_a_difference() -> None:
    class Shifted(nn.Module):
        def __init__(self, shift: float) -> None:
            super().__init__()
            self.token, self.inner, self.read = nn.Linear(4, 64), nn.Linear(64, 64), nn.Linear(64, 10)
            self.shift = shift

        def forward(self, x: Tensor) -> Tensor:
            same = self.token(x.new_ones(len(x), 4) + self.shift)
            out: Tensor = self.read(torch.tanh(self.inner(x.flatten(1)) + same))
            return out

    torch.manual_seed(0)
    right = learn(Shifted(0.0))
    net: Any = deepcopy(right)
    with torch.no_grad():
        # The same for all examples: it varies by rounding alone, and changes by rounding.
        net.token.weight *= 1 + 1e-6
        net.inner.weight += 0.2 * net.inner.weight.std() * torch.randn(net.inner.weight.shape)
    report = quick(net, HELD, against=right)
    (found,) = (found for found in report.findings if found.kind == "differs_from_reference")
    assert found.where == ("inner",)


def test_a_last_batch_of_one_example_leaves_the_check_of_independence() -> None:
    report = quick(trained("perceptron"), [*HELD, (IMAGES[:1], LABELS[:1])])
    (independence,) = (check for check in report.checks if check.name == "independence")
    assert independence.asked
    (refused,) = (
        check for check in quick(trained("perceptron"), [IMAGES[:1]]).checks if check.name == "independence"
    )
    assert not refused.asked
