"""Healthy trainings of unusual forms: no raw errors and no false alarms."""

import odd_networks
import odd_objectives
import pytest
import torch
from odd_trainings import TRAININGS

import normless as nl

# Importing a module registers its trainings.
MODULES = (odd_networks, odd_objectives)


@pytest.mark.parametrize("name", TRAININGS)
def test_a_healthy_training_has_no_findings(name: str) -> None:
    torch.manual_seed(0)
    model, batch, loss, optimizer = TRAININGS[name]()
    found = nl.diagnose(model, batch, loss=loss, optimizer=optimizer)
    assert not found.findings, found.report(why=False)
