"""Functions of `normless` on a network and inputs on the card: what they return on the CPU, and where."""

from __future__ import annotations

import copy
from typing import Any

import pandas as pd
import pytest
import torch
from cuda_helpers import DEVICE, NEEDS_CARD, ON_CARD
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl
from normless.models import WideResNet
from normless.models._resnets import ResNetCifar

pytestmark = NEEDS_CARD

SCHEMES = ("none", "skipinit", "fixup", "nf_resnet", "ghost_batch_norm(size=12)", "alternating_batch_norm")

PROBES = ("signal", "activations", "gradients", "logits", "gradient_sums")


def original() -> nn.Module:
    """A network in float64, the same at each call."""
    torch.manual_seed(1)
    return WideResNet(depth=10, width=1, in_channels=1).double()


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


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_conversion_on_the_card_is_that_on_the_cpu(scheme: str) -> None:
    """Outputs in both modes, gradients, buffers after an odd and an even pass, and groups; nothing stays behind."""
    nets = []
    for device in ("cpu", DEVICE):
        images, labels = batch(device)
        torch.manual_seed(3)
        net = nl.convert(original().to(device), scheme, images).train()
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


def test_probes_measure_on_the_card_what_they_measure_on_the_cpu() -> None:
    """Weights, gradients, buffers and the generators of both processors are restored."""
    found = []
    for device in ("cpu", DEVICE):
        net = original().to(device)
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
