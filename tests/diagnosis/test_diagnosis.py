"""Each finding on a network that has it, with its cure; none on healthy networks."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, AdamW

import normless as nl
from normless import diagnosis as doctor
from normless.diagnosis import Diagnosis, treat
from normless.edits import RemoveNorms, ScaleSums
from normless.models import dense, resnet_cifar, wide_resnet
from normless.models.transformer_blocks import AttentionBlock, FeedForwardBlock
from normless.schemes import Scheme


def vectors(examples: int = 32, features: int = 50, classes: int = 10) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(examples, features, generator=generator), torch.arange(examples) % classes


def images(examples: int = 16, side: int = 16) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(examples, 3, side, side, generator=generator), torch.arange(examples) % 10


def diagnose(network: nn.Module, batch: object, **options: object) -> Diagnosis:
    """A diagnosis whose cures are proposed and not tried, if nothing else is said."""
    return doctor.diagnose(network, batch, **({"trial_steps": 0} | options))  # type: ignore[arg-type]


def kinds(diagnosis: Diagnosis) -> list[str]:
    return [finding.kind for finding in diagnosis.findings]


def narrow(depth: int, **arguments: object) -> nn.Module:
    torch.manual_seed(0)
    return dense(depth, 50, in_features=50, **arguments)  # type: ignore[arg-type]


HEALTHY: dict[str, Callable[[], tuple[nn.Module, tuple[Tensor, Tensor]]]] = {
    "dense, 200 blocks, batch norm": lambda: (narrow(200), vectors(64)),
    "dense, 200 blocks, skipinit": lambda: (nl.convert(narrow(200), "skipinit"), vectors()),
    "dense, 200 blocks, fixup": lambda: (nl.convert(narrow(200, branch_layers=2), "fixup"), vectors()),
    "dense, 6 blocks, none": lambda: (nl.convert(narrow(6), "none"), vectors()),
    "wide resnet": lambda: (wide_resnet(16, 1), images()),
    "wide resnet, rezero": lambda: (nl.convert(wide_resnet(16, 1), "rezero"), images()),
    "wide resnet, zeroinit": lambda: (nl.convert(wide_resnet(16, 1), "zeroinit"), images()),
    "wide resnet, alpha 1/sqrt(L)": lambda: (nl.convert(wide_resnet(40, 1), "skipinit(alpha=1/sqrt(L))"), images()),
    "wide resnet, nf_resnet": lambda: (nl.convert(wide_resnet(16, 1), "nf_resnet"), images()),
    "resnet for CIFAR, 56 layers": lambda: (resnet_cifar(56), images()),
    "resnet for CIFAR, zero gamma": lambda: (nl.convert(resnet_cifar(20), "zero_gamma"), images()),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_networks_have_no_findings(name: str) -> None:
    torch.manual_seed(0)
    network, batch = HEALTHY[name]()
    optimizer = SGD(nl.param_groups(network, lr=1e-2, weight_decay=5e-4), lr=1e-2)
    diagnosis = diagnose(network, batch, optimizer=optimizer, trial_steps=3)
    assert diagnosis.healthy, str(diagnosis)
    assert diagnosis.scheme is None
    assert diagnosis.verdict.startswith("Nothing was seen that keeps it from training")
    assert {"signal along the skip path", "optimizer", "trial steps"} <= {
        one.name for one in diagnosis.checks if one.asked
    }
    assert treat(network, batch, diagnosis) is None


def test_torchvisions_resnet50_without_norms_and_with_skipinit() -> None:
    """The scenario of `normless diagnose`: the signal grows, and SkipInit stops that."""
    torchvision = pytest.importorskip("torchvision")
    torch.manual_seed(0)
    model = torchvision.models.resnet50()
    inputs, targets = images(8, 32)
    bare = nl.convert(model, "none", inputs)
    diagnosis = diagnose(bare, (inputs, targets))
    assert kinds(diagnosis) == ["growing_variance"]
    growth = diagnosis.findings[0]
    table = nl.probe(bare, (inputs, targets), ["signal"]).signal
    moments = table["sum_second_moment"].to_numpy()
    assert growth.evidence["second_moment_behind"] == pytest.approx(moments.max(), rel=1e-6)
    assert growth.where[-1] == table["name"][int(moments.argmax())]
    assert diagnosis.scheme == "skipinit"
    with pytest.raises(nl.AlreadyConvertedError):
        treat(bare, (inputs, targets), diagnosis)
    treatment = treat(bare, (inputs, targets), diagnosis, original=model)
    assert treatment is not None
    assert treatment.after.healthy, str(treatment.after)
    assert diagnose(nl.convert(model, "skipinit", inputs), (inputs, targets)).healthy
    verdicts = treatment.table.set_index("check")
    assert verdicts.loc["signal along the skip path", "verdict_before"] == "wrong"
    assert verdicts.loc["signal along the skip path", "verdict_after"] == "fine"
    assert verdicts.loc["optimizer", "verdict_after"] == "not asked"


def test_two_hundred_dense_relu_blocks_without_norm() -> None:
    """De & Smith: the variance doubles with every block, and the gradient grows by √2 in the backward pass."""
    network = nl.convert(narrow(100), "none")
    diagnosis = diagnose(network, vectors())
    assert kinds(diagnosis) == ["growing_variance", "exploding_gradient", "dominant_class"]
    growth, gradient, dominant = diagnosis.findings
    assert growth.evidence["factor_per_block"] == pytest.approx(2, rel=0.1)
    assert growth.evidence["blocks"] == 100
    assert np.log2(growth.evidence["factor"]) == pytest.approx(np.log2(growth.evidence["predicted_behind"]), rel=0.15)
    assert gradient.evidence["ratio_per_block"] == pytest.approx(2**0.5, rel=0.1)
    assert dominant.evidence["agreement_of_its_gradients"] > 0.99
    assert "2^d" in growth.theory
    assert growth.cure.schemes == ("skipinit", "fixup", "nf_resnet", "depth_mup")


def test_overflow_is_reported_with_its_block() -> None:
    network = nl.convert(narrow(300), "none")
    inputs, targets = vectors()
    table = nl.probe(network, (inputs, targets), ["signal"]).signal
    first = int(np.flatnonzero(~np.isfinite(table["sum_second_moment"]))[0])
    found = diagnose(network, (inputs, targets)).findings[0]
    assert found.kind == "overflow"
    json.dumps(diagnose(network, (inputs, targets)).to_dict(), allow_nan=False)
    json.dumps(nl.probe(network, (inputs, targets)).to_dict(), allow_nan=False)
    assert found.where == (table["name"][first],)
    assert found.evidence["block"] == first + 1


def test_fading_signal() -> None:
    network = nl.convert(narrow(40), Scheme("halved", (RemoveNorms(), ScaleSums(0.5))))
    found = diagnose(network, vectors()).findings[0]
    assert found.kind == "fading_signal"
    # (x + f(x)) / 2 has half the second moment of x, for a branch with that of x.
    assert found.evidence["factor_per_block"] == pytest.approx(2, rel=0.15)


class PostNorm(nn.Module):
    """x ← norm(x + W₂ sign(W₁ x)), many times: branches as large as the skip path, which pass no gradient."""

    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        self.first = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.second = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.head = nn.Linear(width, 10)
        for layer in [*self.first, *self.second]:
            nn.init.normal_(layer.weight, std=width**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        for first, second, norm in zip(self.first, self.second, self.norms, strict=True):
            x = norm(x + second(torch.sign(first(x))))
        return self.head(x)


def test_a_deep_post_norm_network_loses_its_gradient() -> None:
    """A norm after a sum of two equal variances divides the skip path's gradient by √2, 40 times."""
    torch.manual_seed(0)
    found = diagnose(PostNorm(40, 64), vectors(features=64)).findings
    assert [finding.kind for finding in found] == ["vanishing_gradient"]
    assert found[0].evidence["ratio_per_block"] == pytest.approx(2**0.5, rel=0.1)
    assert found[0].cure.schemes[0] in {"deepnorm", "skipinit"}
    healthy = diagnose(PostNorm(4, 64), vectors(features=64))
    assert healthy.healthy, str(healthy)


def test_admin_cures_a_deep_post_norm_network() -> None:
    torch.manual_seed(0)
    network, batch = PostNorm(40, 64), vectors(features=64)
    before = diagnose(network, batch)
    assert "admin" in before.findings[0].cure.schemes
    assert "peri_norm" not in before.findings[0].cure.schemes
    treatment = treat(network, batch, before, scheme="admin")
    assert treatment is not None
    assert treatment.after.healthy, str(treatment.after)


class Attending(nn.Module):
    """x + f(N(x)) with attention and feed-forward in turn, N a layer norm or nothing."""

    def __init__(self, layers: int, width: int = 32, norm: Callable[[int], nn.Module] = nn.LayerNorm) -> None:
        super().__init__()
        self.blocks = nn.ModuleList()
        for _ in range(layers):
            self.blocks.append(AttentionBlock(width, 2, "pre", 0.0))
            self.blocks.append(FeedForwardBlock(width, 2 * width, "pre", 0.0))
        for block in self.blocks:
            block.norm = norm(width)
        self.classifier = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)[0] if isinstance(block, AttentionBlock) else block(x)
        return self.classifier(x.mean(1))


def sequences() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(16, 6, 32, generator=generator), torch.arange(16) % 10


def test_depth_mup_cures_a_deep_transformer_without_norms() -> None:
    torch.manual_seed(0)
    network = Attending(40, norm=lambda _: nn.Identity())
    for block in network.blocks[1::2]:
        nn.init.normal_(block.linear1.weight, std=(2 / 32) ** 0.5)
        nn.init.normal_(block.linear2.weight, std=(1 / 64) ** 0.5)
    before = diagnose(network, sequences())
    growth = next(finding for finding in before.findings if finding.kind == "growing_variance")
    assert "depth_mup" in growth.cure.schemes
    assert "peri_norm" not in growth.cure.schemes
    treatment = treat(network, sequences(), before, scheme="depth_mup")
    assert treatment is not None
    assert treatment.after.healthy, str(treatment.after)


def test_peri_norm_cures_a_pre_norm_transformer_whose_activations_grow() -> None:
    """Branches that grow with depth, as training makes them, add to the stream four times what they did before."""
    torch.manual_seed(0)
    network = Attending(12)
    with torch.no_grad():
        for number, block in enumerate(network.blocks):
            last = block.attention.output if isinstance(block, AttentionBlock) else block.linear2
            last.weight.mul_(2.0**number)
    before = diagnose(network, sequences())
    growth = next(finding for finding in before.findings if finding.kind == "growing_variance")
    assert growth.cure.schemes[0] == "peri_norm"
    assert "'peri_norm'" in growth.cure.words
    treatment = treat(network, sequences(), before, scheme="peri_norm")
    assert treatment is not None
    assert treatment.after.healthy, str(treatment.after)


def test_weight_standardization_cures_statistics_over_few_examples() -> None:
    torch.manual_seed(0)
    network = wide_resnet(10, 1)
    before = diagnose(network, images(2))
    treatment = treat(network, images(2), before, scheme="weight_standardization")
    assert "weight_standardization" in before.findings[0].cure.schemes
    assert treatment is not None
    assert treatment.after.healthy, str(treatment.after)


def plain(depth: int, activation: Callable[[], nn.Module] = nn.ReLU, norm: bool = False) -> nn.Module:
    """Layers of 64 features with He's variance, one after the other."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers.append(nn.Linear(64, 64))
        nn.init.normal_(layers[-1].weight, std=(2 / 64) ** 0.5)
        layers.extend([nn.BatchNorm1d(64)] if norm else [])
        layers.append(activation())
    return nn.Sequential(*layers, nn.Linear(64, 10))


def test_tailored_activations_cure_a_plain_network_that_makes_examples_alike() -> None:
    network, (inputs, targets) = plain(100), vectors(features=64)
    before = diagnose(network, (inputs, targets))
    assert kinds(before) == ["alike_examples"]
    found = before.findings[0]
    last = network[:-1](inputs).detach()
    pairs = [F.cosine_similarity(last[i], last[j], 0) for i in range(32) for j in range(i)]
    assert found.evidence["correlation_behind"] == pytest.approx(float(torch.stack(pairs).mean()), abs=1e-6)
    assert found.evidence["layers"] == 101
    assert found.where == ("200",)
    assert before.scheme == "tailored_activations"
    treatment = treat(network, (inputs, targets), before)
    assert treatment is not None
    assert treatment.after.healthy, str(treatment.after)


@pytest.mark.parametrize("network", [plain(20), plain(20, norm=True)])
def test_plain_networks_that_tell_examples_apart(network: nn.Module) -> None:
    diagnosis = diagnose(network, vectors(features=64))
    assert diagnosis.healthy, str(diagnosis)
    assert "signal of the layers" in [check.name for check in diagnosis.checks if check.asked]


def test_an_unsuitable_plain_network_gets_no_scheme() -> None:
    """Sigmoids make examples alike sooner than ReLUs do, and have no slope to tailor."""
    found = diagnose(plain(20, nn.Sigmoid), vectors(features=64)).findings
    assert found[0].kind == "vanishing_signal"
    (alike,) = (one for one in found if one.kind == "alike_examples")
    assert alike.cure.schemes == ()


def test_bert_is_healthy_at_initialization() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        num_hidden_layers=6, hidden_size=64, num_attention_heads=4, intermediate_size=128, vocab_size=100
    )
    model = transformers.BertForSequenceClassification(config)
    tokens = {"input_ids": torch.randint(0, 100, (16, 12))}
    diagnosis = diagnose(model, (tokens, torch.arange(16) % 2))
    assert diagnosis.healthy, str(diagnosis)
    assert not diagnosis.missed


def test_dominant_class() -> None:
    network = nl.convert(narrow(4), "skipinit")
    with torch.no_grad():
        network.classifier.bias[3] = 20.0
    diagnosis = diagnose(network, vectors())
    assert kinds(diagnosis) == ["dominant_class"]
    found = diagnosis.findings[0]
    # p is 1 for class 3: its gradient is 0.9 over the batch, the others' -0.1 each.
    share = 0.9**2 / (0.9**2 + 9 * 0.1**2)
    targets = vectors()[1]
    counts = torch.bincount(targets, minlength=10) / len(targets)
    exact = float((1 - counts[3]) ** 2 / ((1 - counts[3]) ** 2 + (counts.square().sum() - counts[3] ** 2)))
    assert share == pytest.approx(exact, abs=0.02)
    assert found.evidence["share_of_squared_logit_gradient"] == pytest.approx(exact, rel=1e-3)
    assert found.evidence["class"] == 3
    assert found.where == ("classifier",)


def test_zeroing_the_classifier_is_a_cure() -> None:
    torch.manual_seed(0)
    model = dense(4, 50, in_features=50)
    with torch.no_grad():
        model.classifier.bias[2] = 30.0
    before = diagnose(model, vectors(64))
    assert before.scheme == "batch_norm + ZeroClassifier()"
    treatment = treat(model, vectors(64), before)
    assert treatment is not None
    assert treatment.after.healthy


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


def test_a_multiplier_of_a_zero_branch_is_stuck() -> None:
    network = nl.convert(wide_resnet(10, 1), "skipinit")
    nn.init.zeros_(network.blocks[1].conv2.weight)
    diagnosis = diagnose(network, images())
    assert kinds(diagnosis) == ["stuck_multiplier"]
    assert diagnosis.findings[0].where == ("blocks.1",)
    assert diagnosis.findings[0].evidence["dead"] == 1


def test_dead_branch_after_a_closed_relu() -> None:
    torch.manual_seed(0)
    network = nl.convert(narrow(3, branch_layers=2), "none")
    nn.init.zeros_(network.blocks[2].branch.linear2.weight)
    with torch.no_grad():
        network.blocks[2].branch.linear1.weight.copy_(-torch.eye(50) * 0)
    diagnosis = diagnose(network, vectors())
    assert set(kinds(diagnosis)) == {"dead_units", "dead_branch"}
    assert diagnosis.findings[1].where == ("blocks.2",)


def test_branch_that_never_grew_in_training() -> None:
    torch.manual_seed(0)
    network = nl.convert(narrow(6), "skipinit")
    multipliers = [one for name, one in network.named_parameters() if name.endswith("multiplier")]
    for number, one in enumerate(multipliers):
        nn.init.constant_(one, 1e-6 if number == 4 else 0.3)
    diagnosis = diagnose(network, vectors())
    assert kinds(diagnosis) == ["branch_never_grew"]
    assert diagnosis.findings[0].where == ("blocks.4",)


def test_multipliers_missing_in_the_optimizer() -> None:
    torch.manual_seed(0)
    network = nl.convert(narrow(4), "skipinit")
    others = [one for name, one in network.named_parameters() if not name.endswith("multiplier")]
    diagnosis = diagnose(network, vectors(), optimizer=SGD(others, lr=0.01), trial_steps=5)
    assert kinds(diagnosis) == ["untrained_parameters", "branch_never_grows"]
    assert diagnosis.findings[0].evidence == {"parameters": 4, "scalars": 4}
    assert diagnosis.findings[1].evidence["shut"] == 4


def test_a_rate_that_is_too_large_and_one_that_works() -> None:
    torch.manual_seed(0)
    network = nl.convert(narrow(4), "batch_norm")
    found = diagnose(network, vectors(), optimizer=SGD(network.parameters(), lr=100.0), trial_steps=10).findings
    assert [one.kind for one in found] == ["rate_too_large"]
    evidence = found[0].evidence
    assert evidence["rate"] == 100.0
    assert evidence["loss_after"] > evidence["loss_before"] > evidence["loss_at_working_rate"]


@pytest.mark.parametrize("policy", ["all", "guidelines", "weights"])
def test_weight_decay_policies(policy: str) -> None:
    torch.manual_seed(0)
    model = wide_resnet(10, 1)
    groups = nl.param_groups(model, lr=0.01, weight_decay=5e-4, policy=policy)
    diagnosis = diagnose(model, images(), optimizer=AdamW(groups), trial_steps=0)
    if policy != "all":
        assert diagnosis.healthy
        return
    assert diagnosis.healthy
    assert [one.kind for one in diagnosis.advice] == ["decayed_gamma_down"]
    roles = nl.residual_map(model).norms
    down = {f"{path}.weight" for path, role in roles.items() if role == "down"}
    assert down <= set(diagnosis.advice[0].where)
    assert diagnosis.advice[0].evidence["gamma_down"] == len(down)


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


def test_diagnosis_as_data_and_text() -> None:
    network = nl.convert(narrow(30), "none")
    diagnosis = diagnose(network, vectors(), optimizer=SGD(network.parameters(), lr=1e-12))
    data = json.loads(json.dumps(diagnosis.to_dict()))
    assert data["healthy"] is False
    assert [finding["kind"] for finding in data["findings"]] == kinds(diagnosis)
    severities = [finding["severity"] for finding in data["findings"]]
    assert severities == sorted(severities, reverse=True)
    assert all(0 < severity <= 1 for severity in severities)
    words = " ".join(str(diagnosis).split())
    for finding in diagnosis.findings:
        assert finding.title in words
        assert finding.theory in words
        assert finding.cure.words in words


def test_a_batch_is_inputs_and_targets() -> None:
    with pytest.raises(ValueError, match=r"targets are needed: pass \(inputs, targets\)"):
        diagnose(narrow(2), vectors()[0])
    with pytest.raises(ValueError, match="got tuple of 3"):
        diagnose(narrow(2), (*vectors(), 1))
