"""How a network and its optimizer were built: modules never called, lost scales, stale and repeated tensors."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from math import sqrt

import pytest
import torch
from diagnosed import diagnose, kinds
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, AdamW

import normless as nl

LAYERS, WIDTH, TOKENS = 3, 64, 40


class Branch(nn.Module):
    def __init__(self, inner: int) -> None:
        super().__init__()
        self.norm, self.fc, self.proj = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, inner), nn.Linear(inner, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(F.gelu(self.fc(self.norm(x)))) + x


class Language(nn.Module):
    """A model of tokens; `scale` says how the ends of its branches are initialized."""

    def __init__(self, scale: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.scale = scale
        self.tokens = nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList(Branch(inner) for _ in range(LAYERS) for inner in (WIDTH, 4 * WIDTH))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, TOKENS, bias=False)
        self.apply(self._init_weights)
        if scale == "first":
            # The bug: what `_init_weights` scales is drawn once more by something else.
            for module in self.modules():
                if isinstance(module, nn.Linear):
                    nn.init.normal_(module.weight, std=0.02)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        for name, parameter in module.named_parameters():
            wanted = {"reached": "proj.weight", "first": "proj.weight", "never": "c_proj.weight", "none": "?"}
            if name == wanted[self.scale]:
                parameter.data.normal_(0, 0.02 / sqrt(2 * LAYERS))

    def forward(self, i: Tensor) -> Tensor:
        x = self.tokens(i)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def texts() -> tuple[Tensor, Tensor]:
    tokens = torch.randint(TOKENS, (8, 13), generator=torch.Generator().manual_seed(0))
    return tokens[:, :-1], tokens[:, 1:]


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())


@pytest.mark.parametrize(
    ("scale", "found", "advised"),
    [
        ("reached", [], []),
        ("first", ["unreached_initialization"], ["unscaled_branch_ends"]),
        ("never", [], ["unscaled_branch_ends"]),
        ("none", [], ["unscaled_branch_ends"]),
    ],
)
def test_the_scale_of_branch_ends(scale: str, found: list[str], advised: list[str]) -> None:
    diagnosis = diagnose(Language(scale), texts(), loss=loss)
    assert kinds(diagnosis) == found, str(diagnosis)
    assert [one.kind for one in diagnosis.advice] == advised
    for one in (*diagnosis.findings, *diagnosis.advice):
        assert float(one.evidence["deviation"]) == pytest.approx(0.02, rel=0.1)
        assert float(one.evidence["asked"]) == pytest.approx(0.02 / sqrt(2 * LAYERS), rel=0.1)
    if found:
        assert set(diagnosis.findings[0].where) == {f"blocks.{number}.proj.weight" for number in range(2 * LAYERS)}


def test_trained_weights_are_not_compared_with_an_initialization() -> None:
    model = Language("first")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + torch.rand(()) * 2)
    assert not kinds(diagnose(model, texts(), loss=loss))


class Parts(nn.Module):
    """Parts of which some are called."""

    def __init__(self, called: bool) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 16), nn.Linear(16, 3)
        self.norm, self.act, self.extra = nn.LayerNorm(16), nn.GELU(), nn.Sequential(nn.Linear(16, 16), nn.Dropout())
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.criterion, self.tied, self.called = nn.CrossEntropyLoss(), nn.Linear(16, 3), called

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x).unsqueeze(1)
        if self.called:
            x = self.extra(self.act(self.norm(x)))
        x = self.attention(x, x, x)[0].squeeze(1).relu()
        return self.head(x) + F.linear(x, self.tied.weight, self.tied.bias)


@pytest.mark.parametrize("called", [True, False])
def test_modules_that_were_built_and_never_called(called: bool) -> None:
    torch.manual_seed(0)
    diagnosis = diagnose(Parts(called), (torch.randn(16, 6), torch.arange(16) % 3))
    assert not kinds(diagnosis), str(diagnosis)
    found = [one for one in diagnosis.advice if one.kind == "never_called"]
    # A dropout has nothing to train; that of `extra` is within what is not called.
    assert [set(one.where) for one in found] == [{"norm", "act", "extra.0"}] * (not called)
    assert all(one.evidence["parameters"] == 2 * 16 + 16 * 17 for one in found)


def replaced_head(model: nn.Sequential) -> None:
    model[2] = nn.Linear(32, 3)


def reset(model: nn.Sequential) -> None:
    for number in (0, 2):
        model[number] = nn.Linear(model[number].in_features, model[number].out_features)


def emptied(model: nn.Sequential) -> None:
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        model.to(torch.float64).to(torch.float32)
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3))


@pytest.mark.parametrize(("change", "count"), [(replaced_head, 2), (reset, 4), (emptied, 4)])
def test_an_optimizer_of_tensors_that_were_replaced(change: Callable[[nn.Sequential], None], count: int) -> None:
    model, batch = network(), (torch.randn(32, 6), torch.arange(32) % 3)
    optimizer = AdamW(model.parameters(), 1e-2)
    assert not kinds(diagnose(model, batch, optimizer=optimizer, trial_steps=5))
    change(model)
    found = diagnose(model, batch, optimizer=optimizer, trial_steps=5).findings
    assert (found[0].kind, found[0].evidence["parameters"]) == ("untrained_parameters", count)
    assert "same shapes" in found[0].title
    assert not kinds(diagnose(model, batch, optimizer=AdamW(model.parameters(), 1e-2), trial_steps=5))


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, watch: nl.diagnosis.Watch, count: int) -> list[str]:
    x, y = torch.randn(32, 6), torch.arange(32) % 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(count):
            optimizer.zero_grad()
            watch.loss(F.cross_entropy(model(x), y)).backward()
            optimizer.step()
    return [one.kind for one in watch.findings]


@pytest.mark.parametrize("is_stale", [True, False])
def test_a_watched_optimizer_of_tensors_that_were_replaced(is_stale: bool) -> None:
    model = network()
    optimizer = SGD(model.parameters(), 0.1)
    if is_stale:
        reset(model)
    watch = nl.watch(model, interval=2)
    assert steps(model, optimizer, watch, 6) == ["untrained_parameters"] * is_stale


@pytest.mark.parametrize("mode", ["training", "evaluation", "trained"])
def test_watched_norms_that_are_frozen(mode: str) -> None:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.ReLU())
    body.requires_grad_(mode == "trained")
    model = nn.Sequential(body, nn.Linear(32, 3))
    if mode == "evaluation":
        body.eval()
    watch = nl.watch(model, interval=2)
    found = steps(model, SGD(model.parameters(), 0.1), watch, 8)
    assert found == ["moving_frozen_norms"] * (mode == "training")


def test_parameters_without_an_optimizer_are_not_called_stale() -> None:
    model, batch = network(), (torch.randn(32, 6), torch.arange(32) % 3)
    other = nn.Linear(6, 7)
    optimizer = SGD([*model[0].parameters(), *other.parameters()], 0.1)
    found = diagnose(model, batch, optimizer=optimizer).findings[0]
    assert found.kind == "untrained_parameters"
    assert "same shapes" not in found.title


def test_a_parameter_in_two_groups() -> None:
    model, batch = network(), (torch.randn(32, 6), torch.arange(32) % 3)
    optimizer = SGD([{"params": list(model[0].parameters())}, {"params": list(model[2].parameters())}], 0.1)
    optimizer.param_groups[1]["params"].append(model[0].weight)
    found = diagnose(model, batch, optimizer=optimizer).findings
    assert [(one.kind, one.where) for one in found] == [("repeated_parameters", ("0.weight",))]
