"""Functions of `normless` on a network and inputs on the card: what they return on the CPU, and where."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from cuda_helpers import DEVICE, NEEDS_CARD, ON_CARD
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl
from normless.models import ResNetCifar, WideResNet

pytestmark = NEEDS_CARD

SCHEMES = [
    "as_written", "none", "skipinit", "fixup", "zeroinit(dropout=0)", "nf_resnet", "group_norm(groups=4)",
    "ghost_batch_norm(size=12)", "alternating_batch_norm", "partial_batch_norm(mean=True, variance=False)",
    "layer_scale", "weight_standardization", "only_top_norm", "norm_on_skip", "rezero",
]  # fmt: skip

PROBES = ("signal", "activations", "gradients", "logits", "gradient_sums")


class Written(nn.Module):
    """A network that does not state its structure, with in-place work in its forward code."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(3))
        self.first, self.second = (nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(2))
        self.head = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norms[0](self.stem(x)))
        branch = F.relu_(self.norms[1](self.first(x)))
        x = F.relu_(x + self.norms[2](self.second(branch)))
        return self.head(x.mean((2, 3)))


def original(kind: str) -> nn.Module:
    """A network in float64, the same at each call."""
    torch.manual_seed(1)
    return {"stated": lambda: WideResNet(depth=10, width=1, in_channels=1), "traced": Written}[kind]().double()


def batch(device: str, size: int = 32) -> tuple[Tensor, Tensor]:
    """Images and classes, the same on each device."""
    draw = torch.Generator().manual_seed(2)
    images = torch.randn(size, 1, 8, 8, generator=draw, dtype=torch.float64)
    return images.to(device), torch.randint(10, (size,), generator=draw).to(device)


def devices(net: nn.Module) -> set[str]:
    """The kinds of processor that hold something of a network."""
    return {tensor.device.type for tensor in (*net.parameters(), *net.buffers())}


def close(a: Tensor, b: Tensor, tolerance: float = 1e-8) -> None:
    torch.testing.assert_close(a.cpu(), b.cpu(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", ["stated", "traced"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_conversion_on_the_card_is_that_on_the_cpu(scheme: str, kind: str) -> None:
    """Outputs in both modes, gradients, buffers after an odd and an even pass, and groups; nothing stays behind."""
    nets = []
    for device in ("cpu", DEVICE):
        images, labels = batch(device)
        torch.manual_seed(3)
        net = nl.convert(original(kind).to(device), scheme, images).train()
        assert devices(net) == {device}
        for _ in range(2):
            F.cross_entropy(net(images), labels).backward()
        nets.append(net)
    cpu, card = nets
    for (name, ours), (_, theirs) in zip(card.named_parameters(), cpu.named_parameters(), strict=True):
        close(ours.detach(), theirs.detach())
        assert (ours.grad is None) == (theirs.grad is None), name
        if ours.grad is not None and theirs.grad is not None:
            close(ours.grad, theirs.grad, 1e-7)
    for ours, theirs in zip(card.buffers(), cpu.buffers(), strict=True):
        close(ours, theirs)
    close(card.eval()(batch(DEVICE)[0]), cpu.eval()(batch("cpu")[0]))
    groups = [nl.param_groups(net, lr=0.1, weight_decay=5e-4) for net in nets]
    described = [[(g["name"], g["lr"], g["weight_decay"], len(g["params"])) for g in found] for found in groups]
    assert described[0] == described[1]


def test_lsuv_on_the_card_gives_every_layer_unit_variance() -> None:
    """Its orthogonal weights are drawn there."""
    images, _ = batch(DEVICE)
    net = nl.convert(original("stated").to(DEVICE), "lsuv", images).train()
    assert devices(net) == {DEVICE}
    deviations = []
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(lambda _, __, output: deviations.append(float(output.detach().std())))
    net(images)
    assert deviations == pytest.approx([1.0] * len(deviations), abs=0.1)


@pytest.mark.parametrize("size", [32, 25, 12, 7])
def test_unequal_ghosts_are_batch_norm_on_each_part(size: int) -> None:
    """By hand: each part through the network with batch norm by itself."""
    images, _ = batch(DEVICE, size)
    plain = original("stated").to(DEVICE).train()
    ghosts = nl.convert(plain, "ghost_batch_norm(size=12)", images).train()
    parts = torch.tensor_split(images, -(-size // 12))
    by_hand = torch.cat([copy.deepcopy(plain)(part) for part in parts])
    close(ghosts(images), by_hand)


@pytest.mark.parametrize("scheme", ["skipinit(alpha=1)", "fixup", "nf_resnet"])
def test_the_gradient_of_a_batch_is_the_mean_over_examples_one_by_one(scheme: str) -> None:
    images, labels = batch(DEVICE, 6)
    net = nl.convert(original("traced").to(DEVICE), scheme, images).train()
    nn.init.normal_(net.head.weight)
    F.cross_entropy(net(images), labels).backward()
    whole = [p.grad.clone() for p in net.parameters() if p.grad is not None]
    net.zero_grad()
    for image, label in zip(images, labels, strict=True):
        (F.cross_entropy(net(image[None]), label[None]) / len(images)).backward()
    for expected, found in zip(whole, (p.grad for p in net.parameters() if p.grad is not None), strict=True):
        close(found, expected)


def test_batch_norms_of_a_trained_network_are_taken_out_on_the_card() -> None:
    images, _ = batch(DEVICE)
    net = original("traced").to(DEVICE).train()
    for _ in range(3):
        net(images)
    net.eval()
    fixup = nl.convert(original("traced").to(DEVICE), "fixup", images).eval()
    folded, report = nl.fold(net, images)
    assert "folded" in str(report)
    for without, expected in ((folded, net), (nl.freeze(net), net), (nl.fuse_for_inference(fixup), fixup)):
        assert devices(without) == {DEVICE}
        close(without(images), expected(images))


def test_a_saved_network_is_loaded_on_the_cpu_or_where_its_original_is(tmp_path: Path) -> None:
    images, _ = batch(DEVICE)
    net = nl.convert(original("traced").to(DEVICE), "skipinit(alpha=1)", images)
    nl.save(net, tmp_path / "saved", example_inputs=images)
    here = nl.load(tmp_path / "saved", original("traced").to(DEVICE))
    there = nl.load(tmp_path / "saved", original("traced"))
    assert (devices(here), devices(there)) == ({DEVICE}, {"cpu"})
    close(here.eval()(images), net.eval()(images))
    close(there.eval()(images.cpu()), net.eval()(images))


def test_probes_measure_on_the_card_what_they_measure_on_the_cpu() -> None:
    """Weights, gradients, buffers and the generators of both processors are restored."""
    found = []
    for device in ("cpu", DEVICE):
        net = original("stated").to(device)
        before = copy.deepcopy(net.state_dict())
        random = torch.cuda.get_rng_state() if ON_CARD else torch.get_rng_state()
        found.append(nl.probe(net, batch(device), PROBES))
        assert torch.equal(random, torch.cuda.get_rng_state() if ON_CARD else torch.get_rng_state())
        assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
        assert all(parameter.grad is None for parameter in net.parameters())
    for name in PROBES:
        pd.testing.assert_frame_equal(found[1][name], found[0][name], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("scheme", ["none", "batch_norm"])
def test_a_diagnosis_on_the_card_is_that_on_the_cpu(scheme: str) -> None:
    found: list[Any] = []
    for device in ("cpu", DEVICE):
        torch.manual_seed(1)
        net = ResNetCifar(depth=20, in_channels=1).double().to(device)
        images, labels = batch(device)
        net = nl.convert(net, scheme, images) if scheme == "none" else net
        optimizer = torch.optim.SGD(nl.param_groups(net, images, lr=0.5, weight_decay=5e-4), momentum=0.9)
        before = copy.deepcopy(net.state_dict())
        diagnosis = nl.diagnose(net, (images, labels), optimizer=optimizer)
        assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
        assert not optimizer.state
        found.append([(finding.kind, finding.where) for finding in diagnosis.findings])
    assert found[0] == found[1]


def test_a_network_on_the_card_and_a_batch_on_the_host_are_told_apart() -> None:
    if not ON_CARD:
        pytest.skip("there are no two devices")
    from normless.errors import NormlessError

    with pytest.raises((NormlessError, ValueError), match=r"cuda|device"):
        nl.diagnose(original("stated").to(DEVICE), batch("cpu"))


@pytest.mark.parametrize("clip", [None, 0.01])
def test_a_watch_says_on_the_card_what_it_says_on_the_cpu(clip: float | None) -> None:
    said = []
    for device in ("cpu", DEVICE):
        images, labels = batch(device)
        net = nl.convert(original("stated").to(device), "none", images).train()
        optimizer = torch.optim.SGD(nl.param_groups(net, lr=3.0, weight_decay=0.0), momentum=0.9)
        with warnings.catch_warnings(), nl.watch(net, interval=2) as watch:
            warnings.simplefilter("ignore")
            for _ in range(12):
                loss = watch.loss(F.cross_entropy(net(images), labels))
                optimizer.zero_grad()
                loss.backward()
                if clip:
                    nl.adaptive_gradient_clipping(net, clip)
                optimizer.step()
            said.append([message.split(":")[0] for message in watch.messages])
            assert len(watch.table.to_json()) > 2, "the table is of numbers and not of tensors"
    assert said[0] == said[1]


@pytest.mark.parametrize("how", ["recompute", "step in backward"])
def test_less_memory_and_the_same_weights(how: str) -> None:
    nets = []
    for special in (False, True):
        images, labels = batch(DEVICE)
        torch.manual_seed(1)
        net = WideResNet(depth=16, width=1, in_channels=1).double().to(DEVICE).train()
        if special and how == "recompute":
            assert nl.recompute_blocks(net, images) > 1
        optimizer = torch.optim.SGD(nl.param_groups(net, images, lr=0.1, weight_decay=5e-4), momentum=0.9)
        ending = nl.step_in_backward(optimizer) if special and how == "step in backward" else None
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(net(images), labels).backward()
            optimizer.step()
        if ending:
            ending.close()
        nets.append(net)
    for ours, theirs in zip(nets[1].state_dict().values(), nets[0].state_dict().values(), strict=True):
        close(ours.double(), theirs.double(), 1e-10)
