"""Several probes in one pass, alone or riding along a training."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import normless as nl
from normless.models import wide_resnet
from normless.probes import RideAlong, Signal, Watcher
from normless.probes.measure import DEFAULT_PROBES, PROBES
from normless.probes.ride_along import every


def batch(examples: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(examples, 3, 8, 8, generator=generator), torch.arange(examples) % 10


def network() -> nn.Module:
    torch.manual_seed(0)
    return wide_resnet(10, 1)


def test_one_pass_feeds_all_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    passes = []
    model.register_forward_hook(lambda *_: passes.append(1))
    measured = nl.probe(model, batch(), list(PROBES))
    assert len(passes) == 1
    assert list(measured) == list(PROBES)
    for name in PROBES:
        assert isinstance(measured[name], pd.DataFrame)
        assert len(measured[name])
        assert getattr(measured, name) is measured[name]
    pd.testing.assert_frame_equal(measured.signal, nl.probe(model, batch()[0], ["signal"]).signal)
    assert measured.loss == pytest.approx(
        float(F.cross_entropy(model.train()(batch()[0]), batch()[1]).detach()), rel=1e-5
    )


def test_the_usual_probes_are_known() -> None:
    measured = nl.probe(network(), batch())
    assert tuple(measured) == DEFAULT_PROBES
    rows = json.loads(json.dumps(measured.to_dict()))
    assert set(rows["tables"]) == set(DEFAULT_PROBES)


def test_a_probe_without_gradients_needs_no_targets() -> None:
    measured = nl.probe(network(), (batch()[0], None), ["signal"])
    assert np.isnan(measured.loss)
    assert measured.signal["skip_variance"].notna().all()


def test_a_watcher_of_ones_own() -> None:
    class Calls(Watcher):
        def on_layer(self, layer: object, module: nn.Module, x: Tensor, y: Tensor) -> None:
            self.count = getattr(self, "count", 0) + 1

        def table(self) -> pd.DataFrame:
            return pd.DataFrame({"calls": [self.count]})

    model = network()
    assert nl.probe(model, batch(), [Calls()])["Calls"]["calls"][0] == len(list(nl.residual_map(model).layers()))


@pytest.mark.parametrize(
    ("measure", "said"),
    [
        (lambda: nl.probe(network(), batch(), ["signals"]), "There is no probe 'signals'; choose among signal"),
        (lambda: nl.probe(network(), batch(), ["signal", "signal"]), "'signal' is named twice"),
        (lambda: nl.probe(network(), batch()[0]), "Expected a batch of two"),
        (lambda: RideAlong(["signals"], every(1)), "There is no probe 'signals'"),
        (lambda: every(0), "every 1 or more steps, got 0"),
    ],
)
def test_what_cannot_be_measured_is_told(measure: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        measure()


def test_a_table_that_was_not_measured_is_no_attribute() -> None:
    measured = nl.probe(network(), batch(), ["signal"])
    with pytest.raises(AttributeError, match="No probe 'logits' was measured, but signal"):
        _ = measured.logits


def trained(ride: RideAlong | None, steps: int = 6) -> tuple[nn.Module, list[float]]:
    torch.manual_seed(3)
    model = nl.convert(wide_resnet(10, 1), "zeroinit(dropout=0.5)")
    found = nl.residual_map(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    inputs, targets = batch()
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        if ride is None:
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
        else:
            with ride.during(step, model, found, targets):
                loss = F.cross_entropy(model(inputs), targets)
                loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return model, losses


def test_riding_along_changes_nothing_and_measures_at_the_chosen_steps() -> None:
    ride = RideAlong(["signal", "gradients"], when=lambda step: step in (1, 4))
    watched, losses = trained(ride)
    plain, expected = trained(None)
    assert losses == expected
    assert all(torch.equal(one, plain.state_dict()[name]) for name, one in watched.state_dict().items())
    tables = ride.tables()
    assert sorted(tables) == ["gradients", "signal"]
    assert list(tables["signal"]["step"].unique()) == [1, 4]
    assert not any(module._forward_hooks for module in watched.modules())
    # The branches are shut before the first step, and open before the fourth.
    by_step = tables["signal"].groupby("step")["branch_variance"].max()
    assert by_step[1] == 0
    assert by_step[4] > 0
    assert list(ride.take()) == list(tables)
    assert ride.tables() == {}


def test_a_step_that_fails_leaves_no_rows() -> None:
    ride = RideAlong(["signal"], every(1))
    model = network()
    found = nl.residual_map(model)

    def failing() -> None:
        with ride.during(1, model, found, batch()[1]):
            model(batch()[0])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        failing()
    assert ride.tables() == {}
    assert not any(module._forward_hooks for module in model.modules())


def test_every_so_many_steps() -> None:
    assert [step for step in range(12) if every(4)(step)] == [1, 5, 9]
    assert [step for step in range(12) if every(5, start=2)(step)] == [2, 7]
    assert isinstance(Signal(), Watcher)
