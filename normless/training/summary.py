"""From what an epoch and a run gave to the row and the result that are reported."""

from __future__ import annotations

from normless.training.curves import Curves
from normless.training.evaluation import Evaluation, evaluate
from normless.training.loop import EpochTraining, Pieces
from normless.training.outcome import chance_accuracy, finished_outcome
from normless.training.plateau import has_plateaued
from normless.training.result import EpochRow, RunResult


def evaluated(pieces: Pieces) -> Evaluation:
    """The test set's loss and accuracies, in passes about as large as those of training."""
    config = pieces.config
    share = config.micro_batch_size or config.batch_size // config.devices
    return evaluate(
        pieces.fabric,
        pieces.network.module,  # type: ignore[arg-type]
        pieces.data,
        max(64, share) * config.devices,
    )


def epoch_row(epoch: int, training: EpochTraining, test: Evaluation) -> EpochRow:
    """The row of a finished epoch, counted from 1."""
    return EpochRow(
        epoch=epoch,
        rate=training.rate,
        training_loss=training.loss,
        training_loss_with_l2=training.loss_with_l2,
        training_accuracy=training.accuracy,
        test_loss=test.loss,
        test_accuracy=test.accuracy,
        test_accuracy_top5=test.accuracy_top5,
        seconds=training.seconds,
    )


def run_result(pieces: Pieces, curves: Curves, diverged: EpochTraining | None = None) -> RunResult:
    """What became of the run; a diverged network is tested as it stands."""
    rows, data = curves.rows, pieces.data
    labels = data.test_labels
    if diverged is not None:
        test = evaluated(pieces)
    else:
        test = Evaluation(rows[-1].test_loss, rows[-1].test_accuracy, rows[-1].test_accuracy_top5)
    if rows:
        seconds = sum(row.seconds for row in rows) / len(rows)
    else:
        assert diverged is not None
        seconds = diverged.seconds / len(diverged.losses) * pieces.steps_per_epoch
    return RunResult(
        outcome=finished_outcome(test.accuracy, labels) if diverged is None else "diverged",
        test_accuracy=test.accuracy,
        test_accuracy_top5=test.accuracy_top5,
        test_loss=test.loss,
        chance_accuracy=chance_accuracy(labels),
        seconds_per_epoch=seconds,
        steps=len(curves.losses),
        parameters=sum(p.numel() for p in pieces.network.parameters() if p.requires_grad),
        diverged_epoch=None if diverged is None else len(rows) + 1,
        diverged_step=None if diverged is None else len(curves.losses),
        plateaued=None if diverged is not None else has_plateaued([row.training_loss for row in rows]),
        doublings=0,
        data=data.provenance,
        config_hash=pieces.config.hash,
        epochs=tuple(rows),
    )
