"""The training protocols that only the papers have: a warm start, epochs that are doubled until a plateau."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from normless_lab.train import train
from normless_lab.train._directory import RunDirectoryError
from normless_lab.train._run_listener import RunListener
from normless_papers.experiments.image_runs import PaperConfig

MODEL = "normless:wide_resnet(depth=10, width=1)"
SHORT = PaperConfig(model=MODEL, batch_size=512, epochs=2, rate=0.05, crop=0, device="cpu")


class Starts(RunListener):
    """Records the configuration of every training."""

    def __init__(self) -> None:
        self.configs: list[Any] = []

    def on_start(self, start: Any) -> None:
        self.configs.append(start.config)


@pytest.mark.slow
def test_epochs_double_until_the_loss_plateaus(tmp_path: Path) -> None:
    config = replace(SHORT, epochs_until_plateau=True, max_doublings=1)
    starts = Starts()
    result = train(config, tmp_path, listeners=[starts])
    assert [(start.epochs, start.epochs_until_plateau) for start in starts.configs] == [(2, False), (4, False)]
    assert (result.doublings, len(result.epochs), result.plateaued) == (1, 4, False)
    assert result.config_hash == config.hash
    assert sorted(path.name for path in tmp_path.glob("epochs-*")) == ["epochs-2", "epochs-4"]
    assert train(config, tmp_path) == result
    with pytest.raises(RunDirectoryError, match="epochs is 2 there and 3 here"):
        train(replace(config, epochs=3), tmp_path, lengthen=True)
    still = train(replace(config, rate=1e-9), tmp_path, resume=False)
    assert (still.doublings, len(still.epochs), still.plateaued) == (0, 2, True)
    assert [path.name for path in tmp_path.glob("epochs-*")] == ["epochs-2"]


def test_a_warm_start_has_a_rate_of_its_own(tmp_path: Path) -> None:
    config = replace(SHORT, epochs=3, warm_start_epochs=1, warm_start_rate=0.001, schedule="constant")
    warm = train(config, tmp_path / "warm").epochs
    assert [row.rate for row in warm] == [0.001, 0.05, 0.05]
    (cold,) = train(replace(config, epochs=1, warm_start_epochs=0, rate=0.001), tmp_path / "cold").epochs
    assert (warm[0].training_loss, warm[0].test_loss) == (cold.training_loss, cold.test_loss)
