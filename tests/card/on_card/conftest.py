"""Fixtures by which tests run on a simulated card; see `test_on_card`, which starts them."""

from __future__ import annotations

import pytest
import torch
from card_fabric import make_card_fabric
from simulated_card import register


@pytest.fixture(scope="session")
def card() -> torch.device:
    """The simulated card."""
    return register()


@pytest.fixture
def trains_on_card(card: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let trainings in this process run on the card."""
    monkeypatch.setattr("normless_lab.train._training_run.make_fabric", make_card_fabric)
