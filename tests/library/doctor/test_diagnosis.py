"""Findings of a diagnosis: each where its cause is, with its closed form, and none in healthy networks."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from diagnosed import diagnose, images, kinds, narrow, vectors
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW

import normless as nl
from normless.models import wide_resnet


def test_two_hundred_dense_relu_blocks_without_norm() -> None:
    """De & Smith: the variance doubles with every block, and the gradient grows by √2 in the backward pass."""
    network = nl.convert(narrow(100), "none")
    diagnosis = diagnose(network, vectors())
    assert kinds(diagnosis) == ["growing_variance", "exploding_gradient", "dominant_class"]
    growth, gradient, dominant = diagnosis.findings
    assert growth.evidence["factor_per_block"] == pytest.approx(2, rel=0.1)
    assert growth.evidence["blocks"] == 100
    assert np.log2(growth.evidence["factor"]) == pytest.approx(np.log2(growth.evidence["predicted_after"]), rel=0.15)
    assert gradient.evidence["ratio_per_block"] == pytest.approx(2**0.5, rel=0.1)
    assert dominant.evidence["agreement_of_its_gradients"] > 0.99
    assert "2^d" in growth.theory
    assert growth.cure.schemes == ("skipinit", "fixup", "nf_resnet", "depth_mup")


def test_overflow_is_reported_with_its_block() -> None:
    network: Any = nl.convert(narrow(30), "none")
    with torch.no_grad():
        for block in network.blocks:
            block.branch.linear1.weight.mul_(64)
    inputs, targets = vectors()
    table = nl.probe(network, (inputs, targets), ["signal"]).signal
    first = int(np.flatnonzero(~np.isfinite(table["sum_second_moment"]))[0])
    diagnosis = diagnose(network, (inputs, targets), trial_steps=0)
    found = diagnosis.findings[0]
    json.dumps(diagnosis.to_dict(), allow_nan=False)
    assert (found.kind, found.where) == ("overflow", (table["name"][first],))
    assert found.evidence["block"] == first + 1


def test_dominant_class() -> None:
    network = nl.convert(narrow(4), "skipinit")
    with torch.no_grad():
        network.classifier.bias[3] = 20.0
    (found,) = diagnose(network, vectors()).findings
    assert (found.kind, found.where, found.evidence["class"]) == ("dominant_class", ("classifier",), 3)
    # p is 1 for class 3: its gradient is 1 minus its frequency, those of the others are minus theirs.
    shares = torch.bincount(vectors()[1], minlength=10) / 32
    squares = (shares - (torch.arange(10) == 3).float()).square()
    exact = float(squares[3] / squares.sum())
    assert found.evidence["share_of_squared_logit_gradient"] == pytest.approx(exact, rel=1e-3)


@pytest.mark.parametrize(("examples", "norm", "found"), [(2, "batch_norm", 2), (32, "ghost_batch_norm(size=4)", 4)])
def test_statistics_over_few_examples(examples: int, norm: str, found: int) -> None:
    torch.manual_seed(0)
    diagnosis = diagnose(nl.convert(wide_resnet(10, 1), norm), images(examples))
    assert kinds(diagnosis) == ["small_batch"]
    evidence = diagnosis.findings[0].evidence
    assert evidence["examples"] == found
    assert evidence["norms"] == 7
    assert evidence["relative_deviation_of_variance"] == pytest.approx((2 / (found - 1)) ** 0.5)
    # The last stage of 16×16 images has 4×4 positions.
    assert evidence["values_in_smallest"] == found * 16
    assert diagnosis.findings[0].cure.schemes == ("group_norm", "skipinit", "fixup", "weight_standardization")


@pytest.mark.parametrize("policy", ["all", "guidelines"])
def test_weight_decay_policies(policy: str) -> None:
    torch.manual_seed(0)
    model = wide_resnet(10, 1)
    groups = nl.param_groups(model, lr=0.01, weight_decay=5e-4, policy=policy)
    diagnosis = diagnose(model, images(), optimizer=AdamW(groups))
    assert diagnosis.healthy
    if policy == "all":
        assert [one.kind for one in diagnosis.advice] == ["decayed_gamma_down"]
        down = {f"{path}.weight" for path, role in nl.residual_map(model).norms.items() if role == "down"}
        assert down <= set(diagnosis.advice[0].where)
        assert diagnosis.advice[0].evidence["gamma_down"] == len(down)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has Muon since 2.9")
@pytest.mark.parametrize("scheme", ["derf", "derf(alpha=0.3)"])
def test_muon_with_a_large_alpha_of_derf_is_advised_against(scheme: str) -> None:
    norms = len(nl.residual_map(narrow(4)).norms)
    network = nl.convert(narrow(4), scheme)
    groups = nl.param_groups(network, vectors()[0], lr=1e-3, weight_decay=0, muon_lr=1e-3)
    optimizer = [torch.optim.Muon(groups.muon), torch.optim.AdamW(groups.rest)]
    found = [one for one in diagnose(network, vectors(), optimizer=optimizer).advice if one.kind == "derf_under_muon"]
    assert bool(found) == (scheme == "derf")
    if found:
        assert found[0].evidence == {"modules": norms, "alpha": 0.5}
        assert len(found[0].where) == norms
        assert "alpha=0.3" in found[0].cure.words


def test_network_and_optimizer_are_unchanged() -> None:
    torch.manual_seed(0)
    model = wide_resnet(10, 1).eval()
    optimizer = SGD(nl.param_groups(model, lr=0.1, weight_decay=5e-4), lr=0.1, momentum=0.9)
    nn.functional.cross_entropy(model(images()[0]), images()[1]).backward()
    optimizer.step()
    weights, state = deepcopy(model.state_dict()), deepcopy(optimizer.state_dict())
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    random = torch.get_rng_state()
    diagnose(model, images(), optimizer=optimizer)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert not model.training
    for one, other in zip(model.parameters(), gradients, strict=True):
        assert torch.equal(one.grad, other)
    assert torch.equal(torch.get_rng_state(), random)
    after = optimizer.state_dict()
    assert after["param_groups"] == state["param_groups"]
    for key, buffers in state["state"].items():
        assert torch.equal(after["state"][key]["momentum_buffer"], buffers["momentum_buffer"])


def test_branch_that_never_grew_in_training() -> None:
    torch.manual_seed(0)
    network = nl.convert(narrow(6), "skipinit")
    multipliers = [one for name, one in network.named_parameters() if name.endswith("multiplier")]
    for number, one in enumerate(multipliers):
        nn.init.constant_(one, 1e-6 if number == 4 else 0.3)
    diagnosis = diagnose(network, vectors())
    assert kinds(diagnosis) == ["branch_never_grew"]
    assert diagnosis.findings[0].where == ("blocks.4",)


def test_a_trained_network_has_little_left_to_learn() -> None:
    torch.manual_seed(0)
    x = torch.randn(32, 6)
    batch = x, (x[:, 0] > 0).long()
    network = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = Adam(network.parameters(), 1e-2)
    for _ in range(500):
        optimizer.zero_grad()
        F.cross_entropy(network(x), batch[1]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    for other in (SGD(network.parameters(), 1e-4), Adam(network.parameters(), 1e-2)):
        assert not kinds(diagnose(network, batch, optimizer=other, trial_steps=10))


class Recurrent(nn.Module):
    """A recurrence of tanh with half of an orthogonal matrix."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.read, self.step, self.last = nn.Linear(4, 32), nn.Linear(32, 32, bias=False), nn.Linear(32, 4)
        nn.init.orthogonal_(self.step.weight, 0.5)

    def forward(self, x: Tensor) -> Tensor:
        state = self.read(x[:, 0])
        for place in range(1, x.shape[1]):
            state = (self.step(state) + self.read(x[:, place])).tanh()
        return self.last(state)  # type: ignore[no-any-return]


def test_the_ratio_is_that_of_autograd() -> None:
    """The label is in the first of sixty steps, of which little is left at the end."""
    model = Recurrent()
    torch.manual_seed(1)
    x = torch.randn(64, 60, 4)
    y = x[:, 0].argmax(1)
    found = next(
        known
        for known in diagnose(model, (x, y), optimizer=Adam(model.parameters(), 1e-3), trial_steps=20).advice
        if known.kind == "vanishing_through_time"
    )
    given = x.clone().requires_grad_()
    F.cross_entropy(model.eval()(given), y).backward()  # type: ignore[no-untyped-call]
    assert given.grad is not None
    steps = given.grad.double().abs().sum((0, 2))
    ratio = float(steps[-15:].max() / steps[:15].max())
    assert float(found.evidence["ratio"]) == pytest.approx(ratio, rel=1e-3)
