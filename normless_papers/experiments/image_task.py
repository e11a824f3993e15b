"""The task of `PaperConfig`: a warm start, and epochs that are doubled until a plateau."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from normless.probes import probe
from normless_lab.train import EpochRow, ImageTask
from normless_papers.experiments.image_runs import PaperConfig, PaperResult
from normless_papers.results.reproduction import table_to_dict

if TYPE_CHECKING:
    from lightning_fabric import Fabric

# Images of a pass that is recorded.
RECORDED = 256


class PaperTask(ImageTask[PaperConfig]):
    """Labelled images as the papers train on them: a warm start, epochs that are doubled until a plateau."""

    RESULT = PaperResult

    @classmethod
    def trainings(cls, config: PaperConfig, train: Callable[[PaperConfig], PaperResult]) -> PaperResult:
        """Train anew with twice the epochs until the training loss plateaus, if the configuration says so."""
        if not config.epochs_until_plateau:
            return train(config)
        for doublings in range(config.max_doublings + 1):
            attempt = replace(config, epochs=config.epochs * 2**doublings, epochs_until_plateau=False)
            result = train(attempt)
            if result.plateaued or result.outcome == "diverged":
                break
        return replace(result, doublings=doublings, config_hash=config.hash)

    def final_metrics(
        self, rows: Sequence[EpochRow], diverged: bool, fabric: Fabric, network: nn.Module
    ) -> dict[str, Any]:
        """Return the metrics of every classification, and the `PaperResult.records`."""
        metrics = super().final_metrics(rows, diverged, fabric, network)
        if self.config.record and not diverged:
            inputs = next(iter(self.data.test_batches(min(RECORDED, self.data.test_size)))).inputs
            inputs = inputs.to(device=fabric.device, dtype=torch.get_default_dtype())
            measured = probe(network, inputs, ["gammas", "stream"])
            tables = {"gammas": measured.gammas, "stream": measured.stream}
            metrics["records"] = {name: table_to_dict(table) for name, table in tables.items()}
        return metrics

    def lr(self, done: int) -> float:
        """Return the learning rate of the step that follows `done` steps, before the groups' multipliers."""
        if done < self.config.warm_start_epochs * self.steps_per_epoch:
            return self.config.warm_start_rate
        return super().lr(done)
