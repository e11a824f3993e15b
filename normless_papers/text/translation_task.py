"""The training of an encoder-decoder on parallel text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normless.models import build_model
from normless.saving import replaced
from normless.spec import format_call, parse_call
from normless_lab.data import load_data
from normless_lab.train import (
    EpochTraining,
    chance_accuracy,
    check_logits,
    evaluate,
    finished_outcome,
)
from normless_papers.text.config import INVERSE_SQUARE_ROOT, TranslationConfig, TranslationResult, TranslationRow
from normless_papers.text.text_run import VOCABULARY_FILE, TextRun
from normless_papers.text.text_sets import ParallelText
from normless_papers.text.tokens import (
    SPECIAL_TOKENS,
)
from normless_papers.text.translating import Bleu, bleu, sacrebleu, translate
from normless_papers.text.translation_batches import SetName, TranslationBatch, TranslationData

if TYPE_CHECKING:
    from lightning_fabric import Fabric

TRANSLATIONS_FILE = "translations.txt"


class TranslationTask(TextRun[TranslationConfig]):
    """Translation by an encoder-decoder, with the cross entropy per token; the test set as translated is a file."""

    RESULT = TranslationResult
    FILES = (VOCABULARY_FILE, TRANSLATIONS_FILE)

    data: TranslationData

    def load_data(self) -> TranslationData:
        """Load the parallel text that the configuration names, in a vocabulary."""
        sacrebleu()
        config = self.config
        sides = {"source": config.source, "target": config.target}
        languages: dict[str, Any] = {side: language for side, language in sides.items() if language is not None}
        text = load_data(config.data, root=config.data_root, kind=ParallelText, **languages)
        vocabulary = self.byte_pairs((*text.train.source, *text.train.target), config.vocabulary)
        data = TranslationData(text, vocabulary, longest=config.longest)
        total = config.epochs * data.steps_per_epoch(config.batch_tokens)
        if config.warmup_steps >= total:
            raise ValueError(
                f"Expected warmup_steps below the {total} steps of epochs={config.epochs}, got "
                f"{config.warmup_steps}: the warm-up is part of the training."
            )
        return data

    def original(self) -> nn.Module:
        """Build the network before its conversion, with the vocabulary of the data."""
        model = self.config.model
        source, separator, call = model.strip().partition(":")
        if not separator:
            raise ValueError(
                f"Expected normless:transformer(…), FILE.py:FUNCTION or the folder of a saved network, got {model!r}."
            )
        name, arguments = parse_call(call)
        if "vocabulary" in arguments:
            raise ValueError(
                f"{model} sets vocabulary, which is the number of byte pairs of the text: leave it out there, and "
                "limit that number by the setting vocabulary of the run."
            )
        if arguments.get("padding", SPECIAL_TOKENS.padding) != SPECIAL_TOKENS.padding:
            raise ValueError(
                f"{model} sets padding, but the token that fills up sentences is {SPECIAL_TOKENS.padding}."
            )
        return build_model(format_call(f"{source}:{name}", {**arguments, "vocabulary": self.data.vocabulary.size}))

    def check(self, network: nn.Module, *, saved: bool) -> None:
        """Check that the network encodes and decodes; a saved one has logits for every token."""
        if not all(callable(getattr(network, name, None)) for name in ("encode", "decode")):
            raise ValueError(
                f"{self.config.model} is not a network that translates: that has encode(source) and "
                "decode(tokens, memory, cache), as normless:transformer."
            )
        if saved:
            size = self.data.vocabulary.size
            highest = [torch.full_like(tokens[:1], size - 1) for tokens in self.example_inputs()]
            advice = f"Put the {VOCABULARY_FILE} of the network into its folder."
            check_logits(self.config, network, highest, size, f"sentences of {size} byte pairs", advice)

    def lr(self, done: int) -> float:
        """Return the learning rate of the step that follows `done` steps, before the groups' multipliers."""
        if self.config.schedule == INVERSE_SQUARE_ROOT:
            return self.config.rate * inverse_square_root(done, self.warmup)
        return super().lr(done)

    @property
    def warmup(self) -> int:
        """The steps over which the learning rate first rises linearly."""
        return self.config.warmup_steps

    def micro_batches(self, batch: TranslationBatch) -> list[TranslationBatch]:
        """Return a batch in parts of at most so many tokens."""
        limit = self.config.micro_batch_tokens
        return [batch] if limit is None else batch.parts(limit)

    def count(self, targets: Tensor) -> Tensor:
        """Return the number of labels that are not padding, a scalar."""
        return (targets != SPECIAL_TOKENS.padding).sum()

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross entropy (nats) per token, with label smoothing; 0 of a part without labels."""
        total = token_cross_entropy(logits, targets, label_smoothing=self.config.label_smoothing)
        return total / self.count(targets).clamp(min=1)

    def correct(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the number of largest logits [B, T, vocabulary] at the labels [B, T]; padding does not count."""
        return ((logits.argmax(-1) == targets) & (targets != SPECIAL_TOKENS.padding)).sum()

    def epoch_metrics(
        self, epoch: int, training: EpochTraining, fabric: Fabric, network: nn.Module
    ) -> dict[str, Any]:
        """Return loss, accuracy and, if due, BLEU on the validation set."""
        loss, accuracy = self._evaluated("validation", fabric, network)
        every = self.config.bleu_every
        due = epoch == self.config.epochs or (every is not None and epoch % every == 0)
        return {
            "validation_loss": loss,
            "validation_accuracy": accuracy,
            "validation_bleu": self._scored("validation", fabric, network)[0].score if due else None,
        }

    def final_metrics(
        self, rows: Sequence[TranslationRow], diverged: bool, fabric: Fabric, network: nn.Module
    ) -> dict[str, Any]:
        """Return the metrics on the test set, the outcome, and what identifies the text; write translations."""
        loss, accuracy = self._evaluated("test", fabric, network)
        greedy, _ = self._scored("test", fabric, network)
        beam, translations = self._scored("test", fabric, network, width=self.config.beam_width)
        if fabric.is_global_zero:
            with replaced(self.directory.path / TRANSLATIONS_FILE) as part:
                part.write_text("".join(f"{line}\n" for line in translations), encoding="utf-8")
        batches = self.data.evaluation_batches("test", self.config.batch_tokens)
        labels = torch.cat([batch.labels.flatten() for _, batch in batches])
        labels = labels[labels != SPECIAL_TOKENS.padding]
        return {
            "outcome": "diverged" if diverged else finished_outcome(accuracy, labels),
            "test_bleu_greedy": greedy.score,
            "test_bleu_beam": beam.score,
            "bleu_signature": beam.signature,
            "test_loss": loss,
            "test_accuracy": accuracy,
            "chance_accuracy": chance_accuracy(labels),
            "validation_loss": rows[-1].validation_loss if rows else None,
            "validation_bleu": rows[-1].validation_bleu if rows else None,
        } | self.about(self.data.text, self.data.vocabulary.size, "sacrebleu")

    def _evaluated(self, name: SetName, fabric: Fabric, network: nn.Module) -> list[float]:
        """Return teacher-forced loss and accuracy on a set, some of its batches in each process."""

        def sums(logits: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
            loss = token_cross_entropy(logits, labels)
            return loss, self.correct(logits, labels), self.count(labels)

        every = self.data.evaluation_batches(name, self.config.batch_tokens, device=fabric.device)
        batches = (batch for _, batch in islice(every, fabric.global_rank, None, fabric.world_size))
        return evaluate(fabric, network, batches, sums)

    def _scored(self, name: SetName, fabric: Fabric, network: nn.Module, width: int = 1) -> tuple[Bleu, list[str]]:
        """Return BLEU of the translations of a set, by greedy or by beam search, and these."""
        config, place = self.config, self.place(fabric)
        search = {"width": width, "penalty": config.length_penalty, "longer_by": config.longer_by}
        with fabric.autocast():
            translations = translate(network, self.data, name, **search, **place)  # type: ignore[arg-type]
        return bleu(translations, self.data.pairs(name).target), translations


def inverse_square_root(done: int, warmup: int) -> float:
    """min(s / w, √(w / s)) of step s = done + 1 and warm-up w: 1 at the end of the warm-up (Vaswani et al. 2017).

    It is their Eq. 3, d^(-1/2) · min(s^(-1/2), s · w^(-3/2)), in units of its largest value (d · w)^(-1/2). It does
    not depend on how long the training is. Without a warm-up it is s^(-1/2).
    """
    step, last = done + 1, max(1, warmup)
    return min(step / last, math.sqrt(last / step))


def token_cross_entropy(logits: Tensor, labels: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """Sum of the cross entropy (nats) of logits [B, T, vocabulary] over all labels [B, T] except padding.

    With label smoothing ε the target of a token is (1 − ε)·one-hot + ε/vocabulary (Szegedy et al. 2016, section 7;
    0.1 in Vaswani et al. 2017, section 5.4).
    """
    return F.cross_entropy(
        logits.flatten(0, 1),
        labels.flatten(),
        ignore_index=SPECIAL_TOKENS.padding,
        label_smoothing=label_smoothing,
        reduction="sum",
    )
