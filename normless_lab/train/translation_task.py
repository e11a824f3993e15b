"""The training of an encoder-decoder on parallel text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from normless import schemes
from normless.conversion import convert
from normless.models import build_model
from normless.saving import replaced
from normless.spec import format_call, parse_call
from normless_lab.data import (
    SPECIAL_TOKENS,
    SetName,
    TranslationBatch,
    TranslationData,
    joint_vocabulary,
    load_parallel_text,
)
from normless_lab.train.config import TranslationConfig
from normless_lab.train.decoding import Bleu, bleu, translate
from normless_lab.train.decoding.translate import require_sacrebleu
from normless_lab.train.directory import VOCABULARY_FILE
from normless_lab.train.objective import evaluate, token_cross_entropy
from normless_lab.train.result import (
    TranslationResult,
    TranslationRow,
    chance_accuracy,
    finished_outcome,
    versions_of,
)
from normless_lab.train.task import EpochTraining, Task, check_logits, few, load_saved, saved_folder
from normless_lab.train.turns import Steps


class TranslationTask(Task[TranslationConfig]):
    """An encoder-decoder, by Adam on the cross entropy per token."""

    RESULT = TranslationResult

    data: TranslationData

    def load_data(self) -> TranslationData:
        """The parallel text that the configuration names, in a vocabulary."""
        require_sacrebleu()
        config = self.config
        sides = {"source": config.source, "target": config.target}
        languages: dict[str, Any] = {side: language for side, language in sides.items() if language is not None}
        text = load_parallel_text(config.data, root=config.data_root, **languages)
        self.vocabulary = self.stored_vocabulary() or joint_vocabulary(text, config.vocabulary)
        data = TranslationData(text, self.vocabulary, longest=config.longest)
        total = config.epochs * data.steps_per_epoch(config.batch_tokens)
        if config.warmup_steps >= total:
            raise ValueError(
                f"Expected warmup_steps below the {total} steps of epochs={config.epochs}, got "
                f"{config.warmup_steps}: the warm-up is part of the training."
            )
        return data

    def example_inputs(self) -> tuple[Tensor, ...]:
        """Source [B, S] and target [B, T] of the first training batch."""
        batch = next(self.train_batches(0))
        return batch.source, batch.target

    def build_network(self) -> nn.Module:
        """See `Task.build_network`."""
        config, size = self.config, self.data.vocabulary.size
        torch.manual_seed(config.seed)
        folder = saved_folder(config.model)
        scheme = schemes.scheme(config.scheme)
        network = build_model(_fitted_to(config.model, size)) if folder is None else load_saved(config, folder)
        if not all(callable(getattr(network, name, None)) for name in ("encode", "decode")):
            raise ValueError(
                f"{config.model} is not a network that translates: that has encode(source) and "
                "decode(tokens, memory, cache), as normless:transformer."
            )
        inputs = self.example_inputs()
        if folder is None:
            return convert(network, scheme, *inputs, check_inputs=few(*inputs), in_place=True)
        highest = [torch.full_like(tokens[:1], size - 1) for tokens in inputs]
        advice = f"Put the {VOCABULARY_FILE} of the network into its folder."
        check_logits(config, network, highest, size, f"sentences of {size} byte pairs", advice)
        return network

    @property
    def warmup(self) -> int:
        """The steps over which the learning rate first rises linearly."""
        return self.config.warmup_steps

    def micro_batches(self, batch: TranslationBatch) -> list[TranslationBatch]:
        """A batch in parts of at most so many tokens."""
        limit = self.config.micro_batch_tokens
        return [batch] if limit is None else batch.parts(limit)

    def count(self, targets: Tensor) -> Tensor:
        """Return the number of labels that are not padding, a scalar."""
        return (targets != SPECIAL_TOKENS.padding).sum()

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The mean cross entropy (nats) per token, with label smoothing."""
        smoothing = self.config.label_smoothing
        if self.config.devices == 1:
            return token_cross_entropy(logits, targets, label_smoothing=smoothing)
        # The part of a process may be without labels, whose mean would be NaN.
        total = token_cross_entropy(logits, targets, label_smoothing=smoothing, reduction="sum")
        return total / self.count(targets).clamp(min=1)

    def correct(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The number of largest logits [B, T, vocabulary] at the labels [B, T]; padding does not count."""
        return ((logits.argmax(-1) == targets) & (targets != SPECIAL_TOKENS.padding)).sum()

    def epoch_metrics(
        self, epoch: int, training: EpochTraining, fabric: Fabric, network: nn.Module
    ) -> Steps[dict[str, Any]]:
        """Loss, accuracy and, if due, BLEU on the validation set."""
        loss, accuracy = yield from self._evaluated("validation", fabric, network)
        every = self.config.bleu_every
        due = epoch == self.config.epochs or (every is not None and epoch % every == 0)
        return {
            "validation_loss": loss,
            "validation_accuracy": accuracy,
            "validation_bleu": self._scored("validation", fabric, network)[0].score if due else None,
        }

    def final_metrics(
        self, rows: Sequence[TranslationRow], diverged: bool, fabric: Fabric, network: nn.Module
    ) -> Steps[dict[str, Any]]:
        """Loss, accuracy and BLEU on the test set, the outcome, and what identifies the text; write translations."""
        loss, accuracy = yield from self._evaluated("test", fabric, network)
        greedy, _ = self._scored("test", fabric, network)
        beam, translations = self._scored("test", fabric, network, width=self.config.beam_width)
        if fabric.is_global_zero:
            with replaced(self.directory.translations) as part:
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
            "vocabulary": self.data.vocabulary.size,
            "data_checksum": self.data.text.checksum,
            "seed": self.config.seed,
            "versions": versions_of("numpy", "tokenizers", "sacrebleu"),
        }

    def _evaluated(self, name: SetName, fabric: Fabric, network: nn.Module) -> Steps[list[float]]:
        """Teacher-forced loss and accuracy on a set, some of its batches in each process."""

        def sums(logits: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
            loss = token_cross_entropy(logits, labels, reduction="sum")
            return loss, self.correct(logits, labels), self.count(labels)

        every = self.data.evaluation_batches(name, self.config.batch_tokens, device=fabric.device)
        batches = (batch for _, batch in islice(every, fabric.global_rank, None, fabric.world_size))
        return evaluate(fabric, network, batches, sums)

    def _scored(self, name: SetName, fabric: Fabric, network: nn.Module, width: int = 1) -> tuple[Bleu, list[str]]:
        """BLEU of the translations of a set, by greedy or by beam search, and these."""
        config, place = self.config, self.place(fabric)
        search = {"width": width, "penalty": config.length_penalty, "longer_by": config.longer_by}
        with fabric.autocast():
            translations = translate(network, self.data, name, **search, **place)  # type: ignore[arg-type]
        return bleu(translations, self.data.pairs(name).target), translations


def _fitted_to(model: str, vocabulary: int) -> str:
    """The text of a model with the size of its vocabulary."""
    source, separator, call = model.strip().partition(":")
    if not separator:
        raise ValueError(
            f"Expected normless:transformer(…), FILE.py:FUNCTION or the folder of a saved network, got {model!r}."
        )
    name, arguments = parse_call(call)
    if "vocabulary" in arguments:
        raise ValueError(
            f"{model} sets vocabulary, which is the number of byte pairs of the text: leave it out there, and limit "
            "that number by the setting vocabulary of the run."
        )
    if arguments.get("padding", SPECIAL_TOKENS.padding) != SPECIAL_TOKENS.padding:
        raise ValueError(f"{model} sets padding, but the token that fills up sentences is {SPECIAL_TOKENS.padding}.")
    return format_call(f"{source}:{name}", {**arguments, "vocabulary": vocabulary})
