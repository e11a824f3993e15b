"""Probes, watches, formats of numbers and the plain loop of torch beside a captured training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from cuda_helpers import DEVICE, NEEDS_CARD, ONLY_ON_CARD, assert_same_run, config, finished, losses_of, run
from torch.nn import functional as F

import normless as nl
from normless_lab.data import load_data
from normless_lab.train import ImageTask, rate_multiplier, train

pytestmark = NEEDS_CARD


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Networks of a run in float64 are drawn in float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def test_a_plain_loop_of_torch_has_the_same_losses(tmp_path: Path) -> None:
    """Written from the public pieces alone: groups, the schedule's multiplier, SGD and the batches of the data."""
    settings = config(scheme="fixup", schedule="cosine", warmup_epochs=1, scalar_rate_scale=0.1)
    train(settings, tmp_path / "run")

    data = load_data(settings.data)
    with default_dtype(torch.float64):
        net = ImageTask(settings).build_network().double().to(DEVICE).train()
    groups = nl.param_groups(
        net, lr=settings.rate, weight_decay=settings.weight_decay, scalar_lr_scale=settings.scalar_rate_scale
    )
    optimizer = torch.optim.SGD(groups, momentum=settings.momentum)
    losses: list[float] = []
    steps = data.steps_per_epoch(settings.batch_size)
    for epoch in range(settings.epochs):
        batches = data.train_batches(
            settings.batch_size, seed=0, epoch=epoch, augmentation=data.default_augmentation, device=DEVICE
        )
        for inputs, targets in batches:
            multiplier = rate_multiplier("cosine", len(losses), settings.epochs * steps, steps)
            for group in optimizer.param_groups:
                group["lr"] = settings.rate * multiplier * group["rate_scale"]
            loss = F.cross_entropy(net(inputs.double()), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses_of(tmp_path / "run") == pytest.approx(losses, rel=1e-6)


def test_probes_along_the_way_change_nothing_and_see_every_third_step(tmp_path: Path) -> None:
    settings = {"scheme": "alternating_batch_norm", "dropout": 0.5}

    def observed(name: str, **further: Any) -> dict[str, pd.DataFrame]:
        ride = nl.RideAlong(("signal", "gradients"), when=lambda step: step % 3 == 1)
        result = train(config(**settings | further), tmp_path / name, ride_along=ride)
        assert_same_run(finished(tmp_path / name, result), plain, 1e-7)
        files = sorted((tmp_path / name / "probes").rglob("*.parquet"))
        assert files
        return {str(file.relative_to(tmp_path / name)): pd.read_parquet(file) for file in files}

    plain = run(tmp_path / "plain", **settings)
    captured, eager = observed("auto"), observed("never", graph="never")
    assert captured.keys() == eager.keys()
    for name, table in captured.items():
        pd.testing.assert_frame_equal(table, eager[name], rtol=1e-5, atol=1e-9)
        assert set(table["step"]) <= set(range(1, 19, 3))


@pytest.mark.parametrize(("precision", "rtol"), [("32-true", 2e-3), ("bf16-mixed", 5e-2)])
def test_a_captured_step_has_the_format_of_the_eager_one(precision: str, rtol: float, tmp_path: Path) -> None:
    """A cast that was kept from the capture would read the weights of the first step."""
    settings = {"precision": precision, "schedule": "cosine", "scheme": "fixup", "dropout": 0.2}
    captured = run(tmp_path / "auto", **settings)
    eager = run(tmp_path / "never", **settings, graph="never")
    assert captured.losses == pytest.approx(eager.losses, rel=rtol)
    assert captured.result.test_loss == pytest.approx(eager.result.test_loss, rel=4 * rtol)
    assert {name: value.dtype for name, value in captured.state.items()} == {
        name: value.dtype for name, value in eager.state.items()
    }


# torch's compiler imports what torch deprecates, and that of 2.11 looks for gradients of activations.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@ONLY_ON_CARD
def test_a_compiled_network_trains_as_the_plain_one(tmp_path: Path) -> None:
    settings = {"scheme": "batch_norm", "epochs": 2}
    compiled = run(tmp_path / "compiled", **settings, compile=True)
    assert_same_run(compiled, run(tmp_path / "plain", **settings, graph="never"), 1e-6)
