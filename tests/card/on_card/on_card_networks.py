"""What examines, watches, trains and saves a network, on the simulated card."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl
from normless.models import resnet_cifar, wide_resnet
from normless.probes import PROBES
from normless_papers.probes.class_gradients import classwise_elements
from normless_papers.probes.divergence import (
    find_divergence,
    largest_stable_rate,
    loss_along,
    moments_along,
    steepest_descent,
)
from normless_papers.probes.gamma_rate import gamma_invariance, gamma_updates
from normless_papers.probes.sgd_noise import noise_table
from normless_papers.probes.training_signals import gradient_correlation_table
from normless_papers.probes.updates import function_update_table, update_trace_table


def batch(device: torch.device, size: int = 8) -> tuple[Tensor, Tensor]:
    return torch.randn(size, 1, 8, 8, device=device), torch.arange(size, device=device) % 10


def network(device: torch.device, scheme: str = "skipinit(alpha=0.5)") -> nn.Module:
    images, _ = batch(device)
    return nl.convert(wide_resnet(10, 1, in_channels=1).to(device), scheme, images)


@pytest.mark.parametrize("scheme", ["batch_norm", "skipinit(alpha=0.5)"])
def test_every_probe(card: torch.device, scheme: str) -> None:
    needed = {"summand_distribution": "summand_distribution(layer='classifier')"}
    measured = nl.probe(network(card, scheme), batch(card), [needed.get(name, name) for name in PROBES])
    assert len([*measured]) == len(PROBES)
    assert len(measured["signal"]) == 3


def test_probes_leave_the_random_numbers_of_the_card_as_they_were(card: torch.device) -> None:
    images, labels = batch(card)
    model = nl.convert(wide_resnet(10, 1, in_channels=1).to(card), "zeroinit(dropout=0.5)", images)
    before = torch.get_device_module(card).get_rng_state(card)
    nl.probe(model, (images, labels))
    nl.residual_map(model, images)
    assert torch.equal(before, torch.get_device_module(card).get_rng_state(card))


DRAWN = torch.tensor([[0, 1], [2, 2]])
FUNCTIONS: dict[str, Callable[[nn.Module, Tensor, Tensor], Any]] = {
    "classwise_elements": lambda model, x, y: classwise_elements(model, x, y, "classifier.weight"),
    "find_divergence": lambda model, x, y: find_divergence(model, [(x, y)], 0.1),
    "largest_stable_rate": lambda model, x, y: largest_stable_rate(model, [(x, y)] * 2),
    "function_update": function_update_table,
    "gamma_invariance": gamma_invariance,
    "gamma_updates": gamma_updates,
    "gradient_correlation": lambda model, x, y: gradient_correlation_table(model, x),
    "loss_along": lambda model, x, y: loss_along(model, x, y, steepest_descent(model, x, y), (0.0, 0.1)),
    "moments_along": lambda model, x, y: moments_along(model, x, y, steepest_descent(model, x, y), (0.0, 0.1)),
    "update_trace": update_trace_table,
    "sgd_noise": lambda model, x, y: noise_table(model, x, y, F.cross_entropy, [(0.1, DRAWN.to(x.device))]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_measurement_of_the_papers(card: torch.device, name: str) -> None:
    scheme = "batch_norm" if name.startswith("gamma") else "none"
    assert FUNCTIONS[name](network(card, scheme), *batch(card)) is not None


@pytest.mark.parametrize("scheme", ["none", "batch_norm"])
def test_a_network_is_diagnosed(card: torch.device, scheme: str) -> None:
    model = nl.convert(resnet_cifar(8, in_channels=1), scheme).to(card)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e3, momentum=0.9)
    assert nl.diagnose(model, batch(card), optimizer=optimizer, trial_steps=4).findings


@pytest.mark.filterwarnings("ignore::normless.doctor.WatchWarning")
def test_a_training_is_watched(card: torch.device) -> None:
    model = network(card)
    images, labels = batch(card)
    watch = nl.watch(model, 2)
    optimizer = torch.optim.AdamW(nl.param_groups(model, lr=1.0, weight_decay=0.1), fused=True)
    for _ in range(5):
        optimizer.zero_grad()
        with torch.autocast("card", torch.bfloat16):
            loss = F.cross_entropy(model(images), labels)
        watch.loss(loss).backward()
        nl.optim.adaptive_gradient_clipping(model, 0.1)
        optimizer.step()
    assert watch.step == 5
    assert isinstance(watch.table, pd.DataFrame)


def test_a_network_is_saved_loaded_and_pickled(card: torch.device, tmp_path: Path) -> None:
    model, (images, _) = network(card, "fixup"), batch(card)
    nl.save(model, tmp_path, example_inputs=images)
    loaded = nl.load(tmp_path, wide_resnet(10, 1, in_channels=1).to(card))
    assert torch.equal(loaded(images), model(images))
    # Without a network of the user's it is on the CPU.
    on_cpu = nl.load(tmp_path, "normless:wide_resnet(depth=10, width=1, in_channels=1)")
    torch.testing.assert_close(on_cpu(images.cpu()), model(images).cpu())
    assert torch.equal(pickle.loads(pickle.dumps(model))(images), model(images))
