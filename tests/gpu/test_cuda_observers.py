"""Probes, watches, formats of numbers and the plain loop of torch beside a captured training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from cuda_helpers import NEEDS_CARD, ONLY_ON_CARD, assert_same_run, config, finished, run

import normless as nl
from normless_lab.train import train

pytestmark = NEEDS_CARD


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
