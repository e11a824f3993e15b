"""`nl.diagnose_trained`: findings and numbers against counts by hand, closed forms, and passes written out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from matrix.case import changed, state_of
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch.nn import functional as F
from trained_health import Normed, fitted, images, inputs, kinds, quick, row

import normless as nl
from normless.doctor.trained._fit import Fit
from normless.doctor.trained._limits import IDLE


def test_a_network_without_a_fault_has_no_findings_and_stays_as_it_was() -> None:
    net = fitted().train()
    net.head.weight.grad = torch.ones_like(net.head.weight)
    before = state_of(net)
    report = nl.diagnose_trained(net, inputs())
    assert report.healthy
    assert not report.advice
    assert changed(before, state_of(net)) == []
    assert bool((net.head.weight.grad == 1).all())
    # Four batches twice, the first batch as it is, and without 2 branches and 6 weight layers.
    assert report.passes == 4 + 4 + 1 + 2 + 6
    assert set(report.table["layer"]) >= {"norm", "blocks.0", "blocks.1.conv2", "head"}


@pytest.mark.parametrize("kind", [nn.ReLU, nn.GELU])
def test_dead_units_are_counted_as_by_hand(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 20), kind(), nn.Linear(20, 20), kind(), nn.Linear(20, 3))
    with torch.no_grad():
        net[2].bias[:7] = -50.0
    x = torch.randn(64, 8)
    report = quick(net, [x])
    with torch.no_grad():
        constant = int(((net[:4](x).amax(0) - net[:4](x).amin(0)) < 1e-6).sum())
    assert constant >= 7
    assert kinds(report) == ["dead_units"]
    (found,) = report.findings
    assert found.where == ("2",)
    assert (found.evidence["count"], found.evidence["of"]) == (constant, 20)
    assert row(report, "2")["dead"] == constant / 20
    with torch.no_grad():
        dead = (net[:4](x).amax(0) - net[:4](x).amin(0)) < 1e-6
        share = float(net[4].weight[:, dead].square().sum() / net[4].weight.square().sum())
        assert found.evidence["read"] == pytest.approx(share, rel=1e-5)
        # Units of which the reader has hardly any use, as those that died in training, are advice.
        net[4].weight[:, dead] *= 0.2
    report = quick(net, [x])
    assert not report.findings
    assert [one.kind for one in report.advice] == ["dead_units"]


def emptied(net: Any) -> None:
    net.blocks[0].norm2.weight[:12], net.blocks[0].norm2.bias[:12] = 0.0, 2.0


# What is done to a fitted network, the first finding, its place, and some of its evidence.
DAMAGES: dict[str, tuple[Callable[[Any], object], str, str, dict[str, Any]]] = {
    "dead units": (
        lambda net: net.blocks[1].norm2.bias[:8].fill_(-50),
        "dead_units",
        "blocks.1.norm2",
        {"activation": "blocks.1"},
    ),
    "γ of zero": (lambda net: net.blocks[0].norm1.weight[3:6].zero_(), "zero_gamma", "blocks.0.norm1", {}),
    # Constant units follow from it.
    "γ of zero and constants": (emptied, "zero_gamma", "blocks.0.norm2", {}),
    "fresh": (lambda net: net.blocks[0].norm2.reset_running_stats(), "fresh_statistics", "blocks.0.norm2", {}),
    "negative": (lambda net: net.norm.running_var[2].fill_(-0.5), "negative_variance", "norm", {}),
    "infinite": (
        lambda net: net.head.weight[1, 1].fill_(float("inf")),
        "not_finite_state",
        "head",
        {"name": "head.weight"},
    ),
    "idle": (lambda net: net.blocks[1].conv2.weight.mul_(1e-8), "idle_branch", "blocks.1", {}),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_the_first_finding_is_what_was_done(name: str) -> None:
    damage, kind, where, evidence = DAMAGES[name]
    net = fitted()
    with torch.no_grad():
        damage(net)
    report = nl.diagnose_trained(net, inputs())
    found = report.findings[0]
    assert (found.kind, found.where) == (kind, (where,))
    assert evidence.items() <= found.evidence.items()
    if kind in ("idle_branch", "dead_units"):
        assert [*report.findings] == [found]
        assert found.evidence.get("change", 0) < IDLE
    if name == "γ of zero":
        assert row(report, where)["gamma_zero"] == 3 / 16
    if kind == "not_finite_state":
        assert report.checks[-1].name == "everything else"


def test_saturated_values_are_counted_and_outputs_are_not() -> None:
    torch.manual_seed(0)
    x = torch.randn(200, 6)
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4), nn.Sigmoid())
    with torch.no_grad():
        net[2].weight.mul_(200)
        net[4].weight.mul_(500)
    report = quick(net, [x])
    assert [(found.kind, found.where) for found in report.findings] == [("saturated_units", ("2",))]
    share = float((net[:4](x).abs() > 0.98).double().mean())
    assert report.findings[0].evidence["share"] == pytest.approx(share, abs=1e-9)


def test_the_misfit_is_the_divergence_of_two_normal_distributions() -> None:
    torch.manual_seed(0)
    x = 3 * torch.randn(20000, 4) + torch.tensor([0.0, 1.0, 0.0, 2.0])
    fit = Fit(torch.zeros(4).double(), torch.full((4,), 9.0).double(), 0.0)
    fit.see(x)
    mean, variance = x.double().mean(0), x.double().var(0, correction=0)
    expected = kl_divergence(Normal(mean, variance.sqrt()), Normal(fit.mean, fit.variance.sqrt()))
    # Differences within three standard errors do not count.
    assert fit.misfit()[[0, 2]].abs().max() == 0
    assert fit.misfit()[[1, 3]].tolist() == pytest.approx(expected[[1, 3]].tolist(), rel=0.15)
    wide = Fit(mean, 4 * variance, 0.0)
    wide.see(x)
    halved = kl_divergence(Normal(mean, variance.sqrt()), Normal(mean, 2 * variance.sqrt()))
    assert wide.misfit().tolist() == pytest.approx(halved.tolist(), rel=0.1)


@pytest.mark.parametrize("path", ["norm", "blocks.1.norm1"])
def test_only_the_norm_with_wrong_statistics_is_named(path: str) -> None:
    net = fitted()
    norm = net.get_submodule(path)
    assert isinstance(norm.running_mean, Tensor)
    norm.running_mean += torch.linspace(-2, 2, 16)
    report = nl.diagnose_trained(net, inputs())
    assert [(found.kind, found.where) for found in report.findings] == [("unfitting_statistics", (path,))]
    # What evaluation computes after this norm is not judged.
    judged = report.table[report.table["removal"].notna()]["layer"]
    assert "head" not in set(judged)
    assert ("stem" in set(judged)) == (path != "stem")


def test_other_preprocessing_is_recognized_with_its_scale() -> None:
    net = fitted()
    report = quick(net, [3 * x + 2 for x in inputs()])
    (found,) = report.findings
    assert (found.kind, found.where[0]) == ("other_preprocessing", "norm")
    assert found.evidence["scale"] == pytest.approx(3, rel=0.1)
    assert found.evidence["offset"] == pytest.approx(2, rel=0.2)
    assert quick(net, inputs()).healthy


def test_a_branch_is_removed_as_by_hand() -> None:
    net = fitted()
    (x, y), *_ = batches = images()
    report = nl.diagnose_trained(net, batches)
    with torch.no_grad():
        entry = F.relu(net.norm(net.stem(x)))
        out, without = net(x), net.head(net.blocks[1](entry).mean((2, 3)))
        middle = net.blocks[0](entry)
        alone = net.head(middle.mean((2, 3)))
    spread = (out - out.mean(0)).norm()
    measured = row(report, "blocks.0"), row(report, "blocks.1")
    for numbers, other in zip(measured, (without, alone), strict=True):
        assert numbers["removal"] == pytest.approx(float((other - out).norm() / spread), rel=1e-4)
        expected = float(F.cross_entropy(other, y) - F.cross_entropy(out, y))
        assert numbers["removal_loss"] == pytest.approx(expected, rel=1e-3, abs=1e-6)
    with torch.no_grad():
        squares = [
            (net.blocks[0].branch(e).square().sum(), e.square().sum())
            for e in (F.relu(net.norm(net.stem(each))) for each, _ in batches)
        ]
    branch, skip = (sum(parts) for parts in zip(*squares, strict=True))
    assert measured[0]["ratio"] == pytest.approx(float(branch / skip) ** 0.5, rel=1e-5)


def test_branches_of_costly_networks_are_left_out_on_a_few_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    net = fitted()
    (x, y), *_ = images()
    few = nl.diagnose_trained(net, [(x[:2], y[:2])]).table["removal"].tolist()
    whole = nl.diagnose_trained(net, images())
    monkeypatch.setattr("normless.doctor.trained._limits.WORK", 1e3)
    cut = nl.diagnose_trained(net, images())
    assert cut.table["removal"].dropna().tolist() == pytest.approx([one for one in few if one == one], rel=1e-4)
    assert cut.table["removal"].dropna().tolist() != pytest.approx(whole.table["removal"].dropna().tolist(), rel=1e-2)
    # What is not a removal is measured on all examples.
    assert cut.table["misfit"].equals(whole.table["misfit"])
    assert cut.passes == whole.passes + 1


@pytest.mark.parametrize("norm", [nn.LayerNorm(12), nn.RMSNorm(12, eps=1e-6)])
def test_the_cost_of_a_constant_divisor_is_that_by_hand(norm: nn.Module) -> None:
    torch.manual_seed(0)
    net, x = Normed(norm), torch.randn(16, 5, 8)
    report = nl.diagnose_trained(net, [x])
    with torch.no_grad():
        h = net.inner(x)
        centred = h - h.mean(-1, keepdim=True) if isinstance(norm, nn.LayerNorm) else h
        d = (centred.square().mean(-1, keepdim=True) + (norm.eps or 0)).sqrt()
        # The first token of a sequence has a constant of its own.
        constant = torch.cat([d[:, :1].mean().expand(16, 1, 1), d[:, 1:].mean().expand(16, 4, 1)], 1)
        out, other = net(x), net.head(centred / constant)
    expected = float((other - out).norm() / (out - out.mean(0)).norm())
    measured = row(report, "norm")
    assert measured["cost"] == pytest.approx(expected, rel=1e-3)
    assert measured["spread"] == pytest.approx(float(d.std(correction=0) / d.mean()), rel=1e-3)
    assert measured["near_eps"] == 0


def test_norms_that_divide_by_epsilon_are_named() -> None:
    torch.manual_seed(0)
    net, x = Normed(nn.LayerNorm(12, eps=1e-5)), torch.randn(16, 5, 8)
    with torch.no_grad():
        net.inner.weight.mul_(1e-3)
        net.inner.bias.zero_()
        variance = net.inner(x).var(-1, correction=0)
    report = quick(net, [x])
    (found,) = report.findings
    assert (found.kind, found.where) == ("divides_by_epsilon", ("norm",))
    assert found.evidence["share"] == pytest.approx(float((variance < 0.81 / 0.19 * 1e-5).double().mean()), abs=1e-6)


def test_new_statistics_are_tried_without_a_last_batch_of_one_example() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 5))
    x, labels = torch.randn(7, 6), torch.arange(7) % 5
    report = quick(net, [(x[at : at + 3], labels[at : at + 3]) for at in (0, 3, 6)])
    (found,) = (found for found in report.findings if found.kind == "fresh_statistics")
    assert "with new statistics" in found.cure.words


def test_the_weight_of_dead_units_is_said_only_if_their_reader_is_known() -> None:
    class Reversed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.act = nn.Linear(6, 16), nn.ReLU()
            self.last = nn.Linear(24, 5)

        def forward(self, x: Tensor) -> Tensor:
            y = self.act(self.first(x))
            out: Tensor = self.last(torch.cat([y, y[:, :8]], 1))
            return out

    torch.manual_seed(0)
    for net, is_known in ((Reversed(), False), (nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 5)), True)):
        first: Any = next(net.children())
        with torch.no_grad():
            first.bias[:8] = -100.0
        (found,) = quick(net, [torch.randn(64, 6)]).findings
        assert ("what reads them" in found.title, "read" in found.evidence) == (is_known, is_known)
        assert "50%" in found.title
