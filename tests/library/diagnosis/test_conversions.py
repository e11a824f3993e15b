"""Networks that this package converts, and that fit their batch, have no findings."""

from __future__ import annotations

from itertools import product
from math import isfinite
from typing import Any

import pytest
import torch
from converted import NETWORKS, Loss
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

import normless as nl
from normless._internal.copying import copied
from normless.errors import NormlessError
from normless.schemes import SCHEMES

# One network of each kind, with schemes that begin closed, without norms, or with other norms.
SAMPLE = (
    *(("wide_resnet", "none", "adamw"), ("vit", "xavier", "adamw"), ("convmixer", "rezero", "adamw")),
    *(("gpt2", "layer_norm_scaling", "sgd"), ("mixer", "skipinit", "sgd"), ("unet", "none", "adamw")),
)
# A conversion harms if its training leaves more than half of the loss, and this multiple of the original's.
STEPS, HALF, WORSE = 100, 0.5, 1.2
# Kinds of findings that concern the optimizer or are the trial itself, and that may hold for the original too.
OF_STEPS = {"rate_too_large", "rate_too_small", "effective_rate", "not_fitted"}


def optimizer_of(name: str, network: nn.Module, inputs: Any) -> Optimizer:
    decay = {"sgd": 5e-4, "adamw": 0.01}[name]
    groups = nl.param_groups(network, lr=0.1 if name == "sgd" else 1e-3, weight_decay=decay, example_inputs=inputs)
    return SGD(groups, momentum=0.9) if name == "sgd" else AdamW(groups)


def left_of_loss(network: nn.Module, inputs: Any, targets: Tensor, loss: Loss, optimizer: Optimizer) -> float:
    """The share of the loss that a plain training leaves, infinite if it diverges."""
    network.train()
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        value = loss(network(**inputs) if isinstance(inputs, dict) else network(inputs), targets)
        losses.append(float(value.detach()))
        value.backward()
        optimizer.step()
    return losses[-1] / losses[0] if isfinite(losses[-1]) else float("inf")


def check(network: str, scheme: str, optimizer: str) -> None:
    """A finding is right if the network hardly trains; one in the network, if the original trains better."""
    torch.manual_seed(0)
    model, inputs, targets, loss = NETWORKS[network]()
    try:
        converted = nl.convert(model, scheme, example_inputs=inputs)
    except NormlessError as refused:
        pytest.skip(str(refused))

    def left(trained: nn.Module) -> float:
        return left_of_loss(trained, inputs, targets, loss, optimizer_of(optimizer, trained, inputs))

    found = nl.diagnose(converted, (inputs, targets), loss=loss, optimizer=optimizer_of(optimizer, converted, inputs))
    if found.findings:
        after = left(copied(converted))
        assert after > HALF, found.report(why=False)
        if {finding.kind for finding in found.findings} - OF_STEPS:
            assert after > WORSE * left(model), found.report(why=False)


@pytest.mark.parametrize(("network", "scheme", "optimizer"), SAMPLE)
def test_a_conversion_has_no_findings(network: str, scheme: str, optimizer: str) -> None:
    check(network, scheme, optimizer)


@pytest.mark.slow
@pytest.mark.parametrize(("network", "scheme", "optimizer"), list(product(NETWORKS, SCHEMES, ("sgd", "adamw"))))
def test_every_scheme_of_every_network(network: str, scheme: str, optimizer: str) -> None:
    check(network, scheme, optimizer)
