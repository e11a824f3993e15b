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
    *(("wide_resnet", "none", "adamw"), ("wide_resnet", "sandwich_norm", "adamw"), ("vit", "xavier", "adamw")),
    *(("convmixer", "rezero", "adamw"), ("test_convnext3", "none", "adamw"), ("gpt2", "layer_norm_scaling", "sgd")),
    *(("cait", "rezero", "adamw"), ("resnet_cifar", "partial_batch_norm", "adamw"), ("mixer", "skipinit", "sgd")),
    *(("unet", "none", "adamw"), ("bert", "fixup", "adamw"), ("test_resnet", "regularized_skipinit", "sgd")),
)
STEPS = 100


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
    torch.manual_seed(0)
    model, inputs, targets, loss = NETWORKS[network]()
    try:
        converted = nl.convert(model, scheme, example_inputs=inputs)
    except NormlessError as refused:
        pytest.skip(str(refused))
    found = nl.diagnose(converted, (inputs, targets), loss=loss, optimizer=optimizer_of(optimizer, converted, inputs))
    if found.findings:
        trained = copied(converted)
        left = left_of_loss(trained, inputs, targets, loss, optimizer_of(optimizer, trained, inputs))
        assert left > 0.5, found.report(why=False)


@pytest.mark.parametrize(("network", "scheme", "optimizer"), SAMPLE)
def test_a_conversion_has_no_findings(network: str, scheme: str, optimizer: str) -> None:
    check(network, scheme, optimizer)


@pytest.mark.slow
@pytest.mark.parametrize(("network", "scheme", "optimizer"), list(product(NETWORKS, SCHEMES, ("sgd", "adamw"))))
def test_every_scheme_of_every_network(network: str, scheme: str, optimizer: str) -> None:
    check(network, scheme, optimizer)
