"""Assertions for tests of networks."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch.nn.functional as F
from torch import nn
from torch.optim import Optimizer

from normless.doctor import Diagnosis
from normless.doctor._diagnose import diagnose
from normless.probes import Loss
from normless.residual import ResidualMap

__all__ = ["assert_trains"]


def assert_trains(
    model: nn.Module,
    batch: Any,
    optimizer: Optimizer | None = None,
    *,
    loss: Loss = F.cross_entropy,
    known: Collection[str] = (),
    residual_map: ResidualMap | None = None,
    trial_steps: int = 20,
) -> Diagnosis:
    """Assert that `normless.diagnose` finds nothing that keeps a network from training.

        def test_my_network_trains():
            model = Mine()
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
            nl.testing.assert_trains(model, (inputs, targets), optimizer)

    The network and the optimizer are not changed; the cost is that of `diagnose`.

    Args:
        model, batch, loss, optimizer, residual_map, trial_steps: as in `normless.diagnose`.
        known: kinds of findings that are accepted, such as `small_batch`.

    Returns:
        The diagnosis, with its advice.

    Raises:
        AssertionError: there are other findings; the message is the report of the diagnosis.
    """
    __tracebackhide__ = True  # pytest shows the line of the test.
    diagnosis = diagnose(
        model, batch, loss=loss, optimizer=optimizer, residual_map=residual_map, trial_steps=trial_steps
    )
    new = [found.kind for found in diagnosis.findings if found.kind not in known]
    if new:
        raise AssertionError(
            f"This {type(model).__name__} does not train: {', '.join(new)}.\n\n{diagnosis.full(why=False)}"
        )
    return diagnosis
