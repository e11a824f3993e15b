"""The training of a network that translates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from normless.data import SetName, TranslationBatch, TranslationData
from normless.optim import rate_multiplier
from normless.train.atomic_write import replaced
from normless.train.decoding import Bleu, bleu, translate
from normless.train.outcome import chance_accuracy, finished_outcome
from normless.train.task import EpochTraining, StepStatistics, Task
from normless.train.token_loss import token_cross_entropy
from normless.train.translation.config import TranslationConfig
from normless.train.translation.directory import TranslationDirectory
from normless.train.translation.evaluation import (
    TokenEvaluation,
    count_right_tokens,
    evaluate_tokens,
    labels_of,
)
from normless.train.translation.result import TranslationResult, TranslationRow
from normless.train.versions import versions_of


@dataclass(frozen=True)
class TranslationTask(Task[TranslationConfig, TranslationRow, TranslationResult]):
    """An encoder-decoder on a parallel text; what it says in the end is written to `place`."""

    data: TranslationData
    place: TranslationDirectory

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps in an epoch."""
        return self.data.steps_per_epoch(self.config.batch_tokens)

    @property
    def bare(self) -> nn.Module:
        """The network without what `fabric` wrapped it in."""
        module: nn.Module = self.network.module  # type: ignore[assignment]
        return module

    def batches(self, epoch: int) -> Iterator[TranslationBatch]:
        """The batches of an epoch, counted from 0."""
        return self.data.train_batches(
            self.config.batch_tokens, seed=self.config.seed, epoch=epoch, device=self.fabric.device
        )

    def rate(self, done: int) -> float:
        """The learning rate of the step that follows `done` steps, before the groups' multipliers."""
        config = self.config
        total = config.epochs * self.steps_per_epoch
        return config.rate * rate_multiplier(config.schedule, done, total, warmup=config.warmup_steps)

    def gradients(self, batch: TranslationBatch, step: int) -> StepStatistics:
        """Add the gradient of the batch's mean cross entropy per token to the parameters' gradients."""
        most, count = self.config.micro_batch_tokens, batch.label_count
        losses, right = [], []
        with self.measured(step, batch.labels):
            for part in [batch] if most is None else batch.parts(most):
                logits = self.network(part.source, part.target)
                mean = token_cross_entropy(logits, part.labels, label_smoothing=self.config.label_smoothing)
                loss = mean * (part.label_count / count)
                self.fabric.backward(loss)
                losses.append(loss.detach())
                right.append(count_right_tokens(logits.detach(), part.labels))
        return StepStatistics(torch.stack(losses).sum(), torch.stack(right).sum() / count)

    def clip(self) -> None:
        """Limit the norm of the whole gradient, if the configuration says so."""
        if self.config.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.config.clip)

    def row(self, epoch: int, training: EpochTraining) -> TranslationRow:
        """Evaluate on the validation set, and report an epoch that is finished, counted from 1."""
        validation = self._evaluated("validation")
        every = self.config.bleu_every
        due = epoch == self.config.epochs or (every is not None and epoch % every == 0)
        return TranslationRow(
            epoch=epoch,
            rate=training.rate,
            training_loss=training.loss,
            training_accuracy=training.accuracy,
            validation_loss=validation.loss,
            validation_accuracy=validation.accuracy,
            validation_bleu=self._scored("validation")[0].score if due else None,
            seconds=training.seconds,
        )

    def result(self, rows: Sequence[TranslationRow], steps: int, diverged: EpochTraining | None) -> TranslationResult:
        """Test the network as it stands, and write its translations."""
        test = self._evaluated("test")
        greedy, _ = self._scored("test")
        beam, translations = self._scored("test", width=self.config.beam_width)
        with replaced(self.place.translations) as part:
            part.write_text("".join(f"{line}\n" for line in translations), encoding="utf-8")
        labels = labels_of(self.data, "test", self.config.batch_tokens)
        return TranslationResult(
            outcome=finished_outcome(test.accuracy, labels) if diverged is None else "diverged",
            test_bleu_greedy=greedy.score,
            test_bleu_beam=beam.score,
            bleu_signature=beam.signature,
            test_loss=test.loss,
            test_accuracy=test.accuracy,
            chance_accuracy=chance_accuracy(labels),
            validation_loss=rows[-1].validation_loss if rows else None,
            validation_bleu=rows[-1].validation_bleu if rows else None,
            vocabulary=self.data.vocabulary.size,
            data=self.data.provenance,
            data_checksum=self.data.text.checksum,
            seed=self.config.seed,
            versions=versions_of("numpy", "tokenizers", "sacrebleu"),
            **self.course(rows, steps, diverged),
        )

    def _evaluated(self, name: SetName) -> TokenEvaluation:
        return evaluate_tokens(self.fabric, self.bare, self.data, name, self.config.batch_tokens)

    def _scored(self, name: SetName, width: int = 1) -> tuple[Bleu, list[str]]:
        """BLEU of the translations of a set, greedy ones or by a beam, and these."""
        with self.fabric.autocast():
            translations = translate(
                self.bare,
                self.data,
                name,
                width=width,
                penalty=self.config.length_penalty,
                longer_by=self.config.longer_by,
                device=self.fabric.device,
            )
        return bleu(translations, self.data.pairs(name).target), translations
