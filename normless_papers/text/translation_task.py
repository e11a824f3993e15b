"""Sentence pairs as tokens, their batches, and the training of an encoder-decoder on them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normless.models import build_model
from normless.saving import replaced
from normless.spec import format_call, parse_call
from normless_lab.data import check_share, load_data
from normless_lab.train import (
    EpochTraining,
    chance_accuracy,
    check_logits,
    evaluate,
    finished_outcome,
)
from normless_lab.train.fabric import Fabric
from normless_papers.text.config import INVERSE_SQUARE_ROOT, TranslationConfig, TranslationResult, TranslationRow
from normless_papers.text.text_run import VOCABULARY_FILE, TextRun
from normless_papers.text.text_sets import Pairs, ParallelText
from normless_papers.text.tokens import (
    SPECIAL_TOKENS,
    BytePairs,
    Integers,
    bucket_epoch,
    padded,
    sorted_buckets,
    tensors,
    token_buckets,
)
from normless_papers.text.translating import Bleu, bleu, sacrebleu, translate

SetName = Literal["train", "validation", "test"]


class TranslationBatch(NamedTuple):
    """Sentence pairs as an encoder-decoder takes them, padded.

    Attributes:
        source: int64 [B, S], each sentence with its end.
        target: int64 [B, T], the decoder's input: the start, then the sentence.
        labels: int64 [B, T], the expected output: the sentence, then its end.
    """

    source: Tensor
    target: Tensor
    labels: Tensor

    def parts(self, max_tokens: int) -> list[TranslationBatch]:
        """Return the same pairs in batches of the same width, of one pair or at most ``max_tokens`` a side."""
        width = max(self.source.shape[1], self.target.shape[1])
        split = (torch.split(side, max(1, max_tokens // width)) for side in self)
        return [TranslationBatch(*sides) for sides in zip(*split, strict=True)]


class TranslationData:
    """A parallel text in a vocabulary.

    The batches of an epoch are a pure function of (seed, epoch); the global generators are not used.

    Training pairs with an empty side, or one with more than `longest` tokens, its end included, are left out; their
    number is `left_out`, that of the others `train_size`.

    Raises:
        ValueError: no training pair is left.
    """

    def __init__(self, text: ParallelText, vocabulary: BytePairs, *, longest: int | None = None) -> None:
        self.text, self.vocabulary = text, vocabulary
        both = text.train.take([all(pair) for pair in zip(*text.train, strict=True)])
        self._sets: dict[SetName, _Encoded] = {
            "train": _Encoded(both, vocabulary, longest),
            "validation": _Encoded(text.validation, vocabulary),
            "test": _Encoded(text.test, vocabulary),
        }
        self.train_size = len(self._sets["train"].lengths)
        self.left_out = text.size("train") - self.train_size
        if not self.train_size:
            raise ValueError(f"No training pair of {text.name} has both sides within {longest} tokens.")
        self._steps: dict[int, int] = {}

    @cached_property
    def provenance(self) -> str:
        """One line for a table of results: the text's, the vocabulary's size, and what was left out."""
        left = f", {self.left_out} training pairs left out" if self.left_out else ""
        return f"{self.text.provenance}; {self.vocabulary.size} byte pairs{left}"

    def pairs(self, name: SetName) -> Pairs:
        """Return the sentences of a set as text, in the order of the rows; of training, with those left out."""
        pairs: Pairs = getattr(self.text, name)
        return pairs

    def steps_per_epoch(self, max_tokens: int) -> int:
        """Number of training batches in an epoch, the same in each.

        Raises:
            ValueError: a sentence is longer than a batch.
        """
        if max_tokens not in self._steps:
            self._steps[max_tokens] = len(token_buckets(np.sort(self._sets["train"].lengths), max_tokens))
        return self._steps[max_tokens]

    def train_batches(
        self,
        max_tokens: int,
        *,
        seed: int,
        epoch: int,
        device: torch.device | str = "cpu",
        rank: int = 0,
        world_size: int = 1,
    ) -> Iterator[TranslationBatch]:
        """Return the batches of one epoch in random order, with every training pair once.

        B · max(S, T) of a batch is at most ``max_tokens``. Process ``rank`` of ``world_size`` receives its part of
        every batch; parts differ by at most one sentence, and an empty one is a sentence without labels.

        Raises:
            ValueError: a sentence is longer than a batch, the rank does not exist, or seed or epoch is negative.
        """
        check_share(rank, world_size)
        train = self._sets["train"]
        buckets = bucket_epoch(train.lengths, max_tokens, seed=seed, epoch=epoch)
        return (train.part(rows, rank, world_size, device) for rows in buckets)

    def evaluation_batches(
        self, name: SetName, max_tokens: int, *, device: torch.device | str = "cpu"
    ) -> Iterator[tuple[Integers, TranslationBatch]]:
        """Return every pair of a set once, the shortest first, with the rows [B] it has in the set.

        A pair longer than ``max_tokens`` is a batch of its own.
        """
        encoded = self._sets[name]
        return ((rows, encoded.batch(rows, device)) for rows in sorted_buckets(encoded.lengths, max_tokens))


class _Encoded:
    """Sentence pairs as tokens, each sentence with its end, without pairs of a side longer than `longest`.

    Attributes:
        lengths: [N], of the longer side of each pair, which is also that of the decoder's inputs.
    """

    def __init__(self, pairs: Pairs, vocabulary: BytePairs, longest: int | None = None) -> None:
        ended = ([[*tokens, SPECIAL_TOKENS.end] for tokens in vocabulary.encode(side)] for side in pairs)
        both = [pair for pair in zip(*ended, strict=True) if longest is None or max(map(len, pair)) <= longest]
        self.lengths = np.array([max(map(len, pair)) for pair in both], np.int64)
        self._source, self._target = (tensors(pair[side] for pair in both) for side in (0, 1))

    def batch(self, rows: Integers, device: torch.device | str) -> TranslationBatch:
        source, labels = padded(self._source, rows), padded(self._target, rows)
        target = F.pad(labels[:, :-1], (1, 0), value=SPECIAL_TOKENS.start)
        target[target == SPECIAL_TOKENS.end] = SPECIAL_TOKENS.padding
        # Else each batch waits for the work of the device.
        return TranslationBatch(*(tokens.to(device, non_blocking=True) for tokens in (source, target, labels)))

    def part(self, rows: Integers, rank: int, world_size: int, device: torch.device | str) -> TranslationBatch:
        """Return the consecutive part of one process; if it is empty, one sentence without labels."""
        own = np.array_split(rows, world_size)[rank]
        if len(own):
            return self.batch(own, device)
        idle = self.batch(rows[:1], device)
        return idle._replace(labels=torch.full_like(idle.labels, SPECIAL_TOKENS.padding))


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
