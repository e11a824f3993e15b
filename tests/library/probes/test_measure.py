"""Several probes in one pass, alone or during a training."""

from __future__ import annotations

from contextlib import nullcontext
from inspect import signature
from unittest.mock import Mock

import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import normless as nl
from normless.models import wide_resnet
from normless.probes import PredictedRows, RideAlong, Watcher
from normless.probes._measure import PROBES, every


def batch(examples: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(examples, 3, 8, 8, generator=generator), torch.arange(examples) % 10


def network() -> nn.Module:
    torch.manual_seed(0)
    return wide_resnet(10, 1)


def test_one_pass_measures_all_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    # What hooks of the network's owner hold is restored.
    mapped, passes = nl.residual_map(model, batch()[0]), Mock(return_value=None)
    model.register_forward_hook(passes)
    # `parameter_gradients` and `summand_distribution` need an argument.
    names = [name for name in PROBES if not _required(PROBES[name])]
    measured = nl.probe(model, batch(), names, residual_map=mapped)
    assert passes.call_count == 1
    assert list(measured) == names
    for name in names:
        assert isinstance(measured[name], pd.DataFrame)
        assert len(measured[name])
        assert getattr(measured, name) is measured[name]
    pd.testing.assert_frame_equal(measured.signal, nl.probe(model, batch()[0], ["signal"]).signal)
    pd.testing.assert_frame_equal(measured.signal, nl.probe(model, batch()[0], "signal").signal)
    assert measured.loss == pytest.approx(
        float(F.cross_entropy(model.train()(batch()[0]), batch()[1]).detach()), rel=1e-5
    )


def _required(watcher: type[Watcher]) -> list[str]:
    return [one.name for one in signature(watcher).parameters.values() if one.default is one.empty]


def trained(ride: RideAlong | None, steps: int = 6) -> tuple[nn.Module, list[float]]:
    torch.manual_seed(3)
    model = nl.convert(wide_resnet(10, 1), "zeroinit(dropout=0.5)")
    found = nl.residual_map(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    inputs, targets = batch()
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        with nullcontext() if ride is None else ride.during(step, model, found, targets):
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return model, losses


def test_ride_along_measures_the_chosen_steps_and_leaves_training_unchanged() -> None:
    ride = RideAlong(["signal", "gradients"], every(3))
    watched, losses = trained(ride)
    plain, expected = trained(None)
    assert losses == expected
    assert all(torch.equal(one, plain.state_dict()[name]) for name, one in watched.state_dict().items())
    tables = ride.tables()
    assert sorted(tables) == ["gradients", "signal"]
    assert list(tables["signal"]["step"].unique()) == [1, 4]
    assert not any(module._forward_hooks for module in watched.modules())
    # The branches are closed before the first step, and open before the fourth.
    by_step = tables["signal"].groupby("step")["branch_variance"].max()
    assert by_step[1] == 0
    assert by_step[4] > 0
    assert list(ride.take()) == list(tables)
    assert ride.tables() == {}


@pytest.mark.parametrize("name", ["weight_dynamics", *(one for one in PROBES if not _required(PROBES[one]))])
def test_every_probe_measures_the_same_alone_and_along_a_training(name: str) -> None:
    """But for predictions, which a training does not compute."""
    model, (inputs, targets) = network(), batch()
    alone = nl.probe(model, (inputs, targets), [name])[name]
    ride = RideAlong([name], every(1))
    with ride.during(1, model, nl.residual_map(model), targets):
        F.cross_entropy(model(inputs), targets).backward()
    along = ride.tables()[name]
    assert list(along["step"].unique()) == [1]
    predicted = along.columns[along.isna().all()] if issubclass(PROBES[name], PredictedRows) else []
    measured = [column for column in alone if column not in predicted]
    assert len(measured) > 2
    pd.testing.assert_frame_equal(along[measured], alone[measured])


def test_a_mean_over_examples_is_of_unknown_layout() -> None:
    class Centred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm, self.a = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x)
            h = h - h.mean(0) * 0.1
            return h + self.a(self.norm(h))  # type: ignore[no-any-return]

    assert len(nl.probe(Centred(), (torch.randn(16, 6), torch.arange(16) % 4)).signal) == 1
