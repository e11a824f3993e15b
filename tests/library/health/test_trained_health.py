"""`nl.diagnose_trained`: findings and numbers against counts by hand, closed forms, and passes written out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch.nn import functional as F

import normless as nl
from normless.errors import InputsError
from normless.health.fit import Fit
from normless.health.limits import IDLE, QUANTITIES


def images(count: int = 4, size: int = 32, channels: int = 2) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    shape = (size, channels, 6, 6)
    return [(torch.randn(shape, generator=generator), torch.arange(size) % 5) for _ in range(count)]


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(width), nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2, self.conv2 = nn.BatchNorm2d(width), nn.Conv2d(width, width, 3, padding=1, bias=False)

    def branch(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv2(F.relu(self.norm2(self.conv1(F.relu(self.norm1(x))))))
        return y

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


class Network(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(2, width, 3, padding=1), nn.BatchNorm2d(width)
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.blocks(F.relu(self.norm(self.stem(x)))).mean((2, 3)))
        return y


def fitted() -> Network:
    """A network whose running statistics are those of the data."""
    torch.manual_seed(0)
    net = Network().train()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.2)
    with torch.no_grad():
        for x, _ in images():
            net(x)
    return net.eval()


def kinds(report: nl.Health) -> list[str]:
    return [found.kind for found in report.findings]


def row(report: nl.Health, layer: str) -> dict[str, Any]:
    (found,) = report.table[report.table["layer"] == layer].to_dict("records")
    return {str(name): value for name, value in found.items()}


def quick(net: nn.Module, batches: Any, **options: Any) -> nl.Health:
    return nl.diagnose_trained(net, batches, remove=False, **options)


def test_a_network_without_a_fault_has_no_findings_and_stays_as_it_was() -> None:
    net, batches = fitted(), images()
    net.train()
    net.head.weight.grad = torch.ones_like(net.head.weight)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    random = torch.get_rng_state()
    report = nl.diagnose_trained(net, batches)
    assert report.healthy
    assert not report.advice
    assert all(module.training for module in net.modules())
    assert torch.equal(torch.get_rng_state(), random)
    assert bool((net.head.weight.grad == 1).all())
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())
    # Four batches twice, the first batch as it is, and without 2 branches and 6 weight layers.
    assert report.passes == 4 + 4 + 1 + 2 + 6
    assert set(report.table["layer"]) >= {"norm", "blocks.0", "blocks.1.conv2", "head"}


@pytest.mark.parametrize("kind", [nn.ReLU, nn.GELU, nn.ReLU6])
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


def test_few_dead_units_are_advice_and_units_that_fire_in_one_batch_are_alive() -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(8, 20), nn.ReLU(), nn.Linear(20, 3)), torch.randn(64, 8)
    with torch.no_grad():
        nn.init.constant_(net[0].bias, 1.0)
        net[0].bias[:2] -= net[0](x).amax(0)[:2] + 0.01
    report = quick(net, [x])
    assert report.healthy
    assert [(found.kind, found.evidence["count"]) for found in report.advice] == [("dead_units", 2)]
    assert not quick(net, [x, 3 * x]).advice


def test_units_of_functions_belong_to_the_layer_before_them() -> None:
    net = fitted()
    with torch.no_grad():
        net.blocks[1].norm2.bias[:8] = -50.0
    report = quick(net, images())
    assert [(found.kind, found.where) for found in report.findings] == [("dead_units", ("blocks.1.norm2",))]
    assert report.findings[0].evidence["activation"] == "blocks.1"


def test_saturated_values_are_counted_and_gates_and_outputs_are_not() -> None:
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

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.value, self.head = nn.Linear(6, 16), nn.Linear(6, 16), nn.Linear(16, 4)

        def forward(self, x: Tensor) -> Tensor:
            gate = torch.sigmoid(self.gate(x)).unflatten(1, (4, 4)).flatten(1)
            y: Tensor = self.head(self.value(x) * gate)
            return y

    gated = Gated()
    with torch.no_grad():
        gated.gate.weight.mul_(500)
    assert quick(gated, [x]).healthy


def test_gamma_at_zero_is_counted_and_a_small_layer_scale_is_alive() -> None:
    net = fitted()
    with torch.no_grad():
        net.blocks[0].norm1.weight[3:6] = 0.0
    report = quick(net, images())
    assert report.findings[0].kind == "zero_gamma"
    assert report.findings[0].where == ("blocks.0.norm1",)
    assert row(report, "blocks.0.norm1")["gamma_zero"] == 3 / 16

    class Scaled(nn.Module):
        def __init__(self, start: float) -> None:
            super().__init__()
            self.layer, self.head = nn.Linear(8, 8), nn.Linear(8, 3)
            self.scale = nn.Parameter(start * torch.linspace(0.5, 1.5, 8))

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.head(x + self.scale * torch.tanh(self.layer(x)))
            return y

    x = torch.randn(64, 8)
    torch.manual_seed(0)
    assert nl.diagnose_trained(Scaled(0.05), [x]).healthy
    tiny = nl.diagnose_trained(Scaled(1e-6), [x])
    assert kinds(tiny) == ["idle_branch"]


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


@pytest.mark.parametrize("path", ["norm", "blocks.0.norm2", "blocks.1.norm1"])
def test_only_the_norm_with_wrong_statistics_is_named(path: str) -> None:
    net = fitted()
    norm = net.get_submodule(path)
    assert isinstance(norm.running_mean, Tensor)
    norm.running_mean += torch.linspace(-2, 2, 16)
    report = nl.diagnose_trained(net, images())
    assert [(found.kind, found.where) for found in report.findings] == [("unfitting_statistics", (path,))]
    # What evaluation computes after this norm is not judged.
    judged = report.table[report.table["removal"].notna()]["layer"]
    assert "head" not in set(judged)
    assert ("stem" in set(judged)) == (path != "stem")


def test_other_preprocessing_is_recognized_with_its_scale() -> None:
    net = fitted()
    report = quick(net, [(3 * x + 2, y) for x, y in images()])
    (found,) = report.findings
    assert (found.kind, found.where[0]) == ("other_preprocessing", "norm")
    assert found.evidence["scale"] == pytest.approx(3, rel=0.1)
    assert found.evidence["offset"] == pytest.approx(2, rel=0.2)
    assert quick(net, images()).healthy


def test_fresh_and_impossible_statistics() -> None:
    net = fitted()
    net.blocks[0].norm2.reset_running_stats()
    report = quick(net, images())
    assert (report.findings[0].kind, report.findings[0].where) == ("fresh_statistics", ("blocks.0.norm2",))
    net = fitted()
    net.norm.running_var[2] = -0.5
    report = nl.diagnose_trained(net, images())
    assert (report.findings[0].kind, report.findings[0].where) == ("negative_variance", ("norm",))
    net = fitted()
    net.head.weight.data[1, 1] = float("inf")
    report = nl.diagnose_trained(net, images())
    assert (report.findings[0].kind, report.findings[0].where) == ("not_finite_state", ("head",))
    assert report.findings[0].evidence["name"] == "head.weight"
    assert report.checks[-1].name == "everything else"


def test_statistics_of_few_examples_are_not_judged() -> None:
    report = quick(fitted(), [x[:4] for x, _ in images(2)])
    assert next(check for check in report.checks if check.name == "running statistics").asked is False


def test_results_that_are_not_finite_are_placed() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    with torch.no_grad():
        net[0].weight.copy_(torch.eye(4))
        net[2].weight.fill_(3e38)
    report = quick(net, [torch.rand(16, 4) + 1])
    assert [(found.kind, found.where) for found in report.findings] == [("not_finite", ("2",))]


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


def test_a_branch_that_adds_in_place_is_removed_too() -> None:
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.layer, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            x += torch.tanh(self.layer(x))
            y: Tensor = self.head(x)
            return y

    torch.manual_seed(0)
    net, x = InPlace(), torch.randn(32, 6)
    report = nl.diagnose_trained(net, [x])
    with torch.no_grad():
        out, without = net(x), net.head(net.first(x))
    (block,) = report.table[report.table["kind"] == "block"].to_dict("records")
    assert block["removal"] == pytest.approx(float((without - out).norm() / (out - out.mean(0)).norm()), rel=1e-4)


def test_idle_branches_and_layers_that_are_the_identity() -> None:
    net = fitted()
    with torch.no_grad():
        net.blocks[1].conv2.weight.mul_(1e-8)
    report = nl.diagnose_trained(net, images())
    (found,) = report.findings
    assert (found.kind, found.where) == ("idle_branch", ("blocks.1",))
    assert found.evidence["change"] < IDLE
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6, bias=False), nn.Linear(6, 6), nn.Linear(6, 3))
    with torch.no_grad():
        plain[2].weight.copy_(torch.eye(6))
    report = nl.diagnose_trained(plain, [torch.randn(32, 6)])
    assert [(found.kind, found.where) for found in report.findings] == [("identity_layer", ("2",))]


class Normed(nn.Module):
    """Tokens, a norm over features, and a head."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.inner, self.norm, self.head = nn.Linear(8, 12), norm, nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.norm(self.inner(x)))
        return y


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


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        y: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return y


class Transformer(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.tokens, self.layers = nn.Embedding(9, width), nn.Sequential(Layer(width), Layer(width))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 9)

    def forward(self, tokens: Tensor) -> Tensor:
        y: Tensor = self.head(self.norm(self.layers(self.tokens(tokens))))
        return y


def transformer() -> tuple[Transformer, Tensor]:
    torch.manual_seed(0)
    # Equal tokens without positions would share the weight of an attention.
    return Transformer().eval(), torch.rand(16, 9, generator=torch.Generator().manual_seed(2)).argsort(1)[:, :7]


def test_massive_activations_and_outlier_features_are_advice_with_channel_and_token() -> None:
    net, x = transformer()
    assert quick(net, [x]).healthy
    with torch.no_grad():
        net.layers[0].down.bias[5] = 900.0
    report = quick(net, [x])
    found = {one.kind: one for one in report.advice}
    assert found["massive_activations"].evidence["channel"] == 5
    assert found["massive_activations"].evidence["largest"] == pytest.approx(900, rel=0.02)
    assert found["massive_activations"].where[0] == "layers.0.down"
    assert found["outlier_features"].evidence["channel"] == 5
    assert found["outlier_features"].evidence["share_of_tokens"] == 1


def test_saturated_attention_is_placed() -> None:
    net, x = transformer()
    with torch.no_grad():
        net.layers[1].attention.in_proj_weight[:32] *= 1000
    report = quick(net, [x])
    (found,) = report.findings
    assert (found.kind, found.where) == ("saturated_attention", ("layers.1.attention",))
    with torch.no_grad():
        h = net.layers[1].norm1(net.layers[0](net.tokens(x)))
        weights = net.layers[1].attention(h, h, h, average_attn_weights=False)[1]
    assert found.evidence["share"] == pytest.approx(float((weights.amax(-1) > 0.999).double().mean()), abs=0.02)


@pytest.mark.parametrize("written", ["softmax", "function"])
def test_attention_that_is_written_out_is_seen(written: str) -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.head = nn.Linear(8, 24), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
            if written == "function":
                y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            else:
                hidden = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
                y = (q @ k.mT / 2).masked_fill(hidden, float("-inf")).softmax(-1) @ v
            result: Tensor = self.head(y.transpose(1, 2).flatten(2))
            return result

    torch.manual_seed(0)
    net, x = Attention(), torch.randn(16, 6, 8)
    assert quick(net, [x]).healthy
    with torch.no_grad():
        net.qkv.weight[:4] *= 1e3
    report = quick(net, [x])
    (found,) = report.advice
    assert (found.kind, found.evidence["head"], found.evidence["heads"]) == ("saturated_attention", 0, 1)
    with torch.no_grad():
        net.qkv.weight[4:8] *= 1e3
    assert kinds(quick(net, [x])) == ["saturated_attention"]


def test_equal_units_are_counted() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 10, 3), nn.ReLU(), nn.Flatten(), nn.Linear(160, 5))
    with torch.no_grad():
        net[0].weight[4], net[0].weight[7] = 2 * net[0].weight[1], -net[0].weight[2]
    report = quick(net, [x for x, _ in images(1)])
    (found,) = report.findings
    assert (found.kind, found.where, found.evidence["count"]) == ("equal_units", ("0",), 1)


def test_what_follows_from_an_earlier_fault_comes_after_it() -> None:
    net = fitted()
    with torch.no_grad():
        net.blocks[0].norm2.weight[:12] = 0.0
        net.blocks[0].norm2.bias[:12] = 2.0
    report = quick(net, images())
    assert report.findings[0].kind == "zero_gamma"
    assert report.findings[0].where == ("blocks.0.norm2",)


def test_a_network_without_a_map_and_networks_with_named_inputs() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.head = nn.Linear(6, 20), nn.Linear(6, 20), nn.Linear(20, 3)

        def forward(self, x: Tensor, flag: Tensor) -> Tensor:
            layer = self.first if float(x.sum()) != 0.123 and bool(flag.any()) else self.second
            y: Tensor = self.head(F.relu(layer(x)))
            return y

    torch.manual_seed(0)
    net = Branching()
    with torch.no_grad():
        net.first.bias[:10] = -100
    batch = {"x": torch.randn(32, 6), "flag": torch.ones(32)}
    report = nl.diagnose_trained(net, batch)
    assert [(found.kind, found.where) for found in report.findings] == [("dead_units", ("first",))]
    assert set(report.table[report.table["removal"].notna()]["layer"]) == {"first", "head"}


@pytest.mark.parametrize(
    ("batches", "words"),
    [
        ([], "got none"),
        (3, "DataLoader"),
        ([["a", "b"]], "batches of tensors"),
        ([(torch.ones(1), torch.ones(1), torch.ones(1))], "batch of two"),
        ([torch.randn(4, 9)], "does not take"),
    ],
)
def test_what_is_not_calibration_data_is_refused(batches: Any, words: str) -> None:
    with pytest.raises((InputsError, ValueError), match=words):
        nl.diagnose_trained(nn.Linear(3, 3), batches)


def test_the_report_in_text_json_and_html() -> None:
    net = fitted()
    with torch.no_grad():
        net.norm.weight[:8] = 0.0
    report = nl.diagnose_trained(net, images())
    text = str(report)
    assert "zero_gamma" not in text
    assert "γ of zero" in text
    assert "gamma_zero" in text
    assert "blocks.1.conv2" in text
    data = report.to_dict()
    assert data["healthy"] is False
    assert data["passes"] == report.passes
    assert {"layer": "norm", "kind": "norm"}.items() <= next(
        r for r in data["layers"] if r["layer"] == "norm"
    ).items()
    assert not any(value is None for rows in data["layers"] for value in rows.values())
    assert "<table>" in report._repr_html_()
    assert set(report.table.columns) == {"layer", "kind", *QUANTITIES}


def test_norms_that_are_functions_and_frozen_batch_norms_are_measured() -> None:
    class Written(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Linear(8, 12), nn.Linear(12, 4)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.head(F.layer_norm(self.first(x), (12,), eps=1e-3))
            return y

    torch.manual_seed(0)
    net, x = Written(), torch.randn(16, 8)
    with torch.no_grad():
        net.first.weight.mul_(0.1)
        share = float((net.first(x).var(1, correction=0) < 0.81 / 0.19 * 1e-3).double().mean())
        assert quick(net, [x]).healthy == (share < 0.2)
        net.first.weight.mul_(0.01)
        net.first.bias.zero_()
    found = quick(net, [x]).findings[0]
    assert (found.kind, found.where, found.evidence["epsilon"]) == ("divides_by_epsilon", ("forward",), 1e-3)
    frozen = nl.freeze(fitted())
    assert nl.diagnose_trained(frozen, images()).healthy


def test_masks_of_minus_infinity_and_norms_that_do_not_run_are_fine() -> None:
    net = fitted()
    net.register_buffer("mask", torch.full((4, 4), float("-inf")).triu(1))
    net.other = nn.BatchNorm2d(16)
    assert nl.diagnose_trained(net, images()).healthy
    net.register_buffer("mask", torch.full((4, 4), float("nan")).triu(1))
    assert kinds(nl.diagnose_trained(net, images())) == ["not_finite_state"]


def test_batches_that_are_sorted_by_class_fit_too() -> None:
    net = fitted()
    means = torch.linspace(-2, 2, 6)
    x = torch.cat([mean + torch.randn(32, 2, 6, 6, generator=torch.Generator().manual_seed(3)) for mean in means])
    net.train()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
    with torch.no_grad():
        net(x[torch.randperm(192, generator=torch.Generator().manual_seed(4))])
    assert nl.diagnose_trained(net.eval(), list(x.split(32))).healthy


def test_every_output_counts() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head, self.other = nn.Linear(6, 12), nn.Linear(12, 3), nn.Linear(12, 2)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            h = torch.tanh(self.body(x))
            return self.head(h), self.other(h)

    torch.manual_seed(0)
    report = nl.diagnose_trained(Two(), [(torch.randn(32, 6), torch.arange(32) % 3)])
    assert report.healthy
    assert row(report, "other")["removal"] == pytest.approx(1, rel=0.01)


def test_modes_of_modules_inside_norms_are_kept() -> None:
    class Fused(nn.LayerNorm):
        def __init__(self, width: int) -> None:
            super().__init__(width)
            self.act = nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.act(super().forward(x))
            return y

    torch.manual_seed(0)
    net = Normed(Fused(12)).train()
    report = nl.diagnose_trained(net, [torch.randn(16, 5, 8)])
    assert all(module.training for module in net.modules())
    assert row(report, "norm")["spread"] > 0


def test_tokens_that_do_not_vary_are_not_near_epsilon() -> None:
    torch.manual_seed(0)
    net, x = Normed(nn.LayerNorm(12)), torch.randn(16, 5, 8)
    with torch.no_grad():
        net.inner.bias.zero_()
    x[:, 3:] = 0
    assert quick(net, [x]).healthy
    net.register_buffer("largest", torch.full((3,), float("inf")))
    assert quick(net, [x]).healthy
