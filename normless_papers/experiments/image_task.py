"""The task of `PaperConfig`: a warm start, and epochs that are doubled until a plateau."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from normless_lab.train import ImageTask, Steps
from normless_papers.experiments.image_runs import PaperConfig, PaperResult


class PaperTask(ImageTask[PaperConfig]):
    """Labelled images as the papers train on them: a warm start, epochs that are doubled until a plateau."""

    RESULT = PaperResult

    @classmethod
    def trainings(cls, config: PaperConfig, train: Callable[[PaperConfig], Steps[PaperResult]]) -> Steps[PaperResult]:
        """Train anew with twice the epochs until the training loss plateaus, if the configuration says so."""
        if not config.epochs_until_plateau:
            return (yield from train(config))
        for doublings in range(config.max_doublings + 1):
            attempt = replace(config, epochs=config.epochs * 2**doublings, epochs_until_plateau=False)
            result = yield from train(attempt)
            if result.plateaued or result.outcome == "diverged":
                break
        return replace(result, doublings=doublings, config_hash=config.hash)

    def lr(self, done: int) -> float:
        """Return the learning rate of the step that follows `done` steps, before the groups' multipliers."""
        if done < self.config.warm_start_epochs * self.steps_per_epoch:
            return self.config.warm_start_rate
        return super().lr(done)
