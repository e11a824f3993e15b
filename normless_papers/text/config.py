"""The configurations and the results of runs on text: classification of sentences, translation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge

from normless_lab.train import (
    ExamplesConfig,
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Result,
    Row,
    RunConfig,
    RunResult,
    Schedule,
    Text,
    TrainingResult,
)


@dataclass(frozen=True)
class TranslationRow(Row):
    """One finished epoch of translation; losses are means in nats per token, accuracies shares of tokens in 0..1.

    Attributes:
        validation_loss: teacher-forced, on the validation set after the epoch, without label smoothing.
        validation_accuracy: share of its tokens with the largest logit, teacher-forced.
        validation_bleu: of its translations by greedy search, 0..100; None in epochs without BLEU.
    """

    validation_loss: float
    validation_accuracy: float
    validation_bleu: float | None

    @property
    def score(self) -> str:
        """The validation loss, and BLEU if there is one."""
        bleu = "" if self.validation_bleu is None else f", BLEU {self.validation_bleu:.1f}"
        return f"validation loss {self.validation_loss:.3f}{bleu}"


@dataclass(frozen=True, kw_only=True)
class _OfText:
    """The further fields of runs on text.

    Attributes:
        vocabulary: number of tokens.
        data_checksum: SHA-256, in hexadecimal, of all sentences and labels.
        seed: of the run.
        versions: of the packages that numbers depend on, by name.
    """

    vocabulary: int
    data_checksum: str
    seed: int
    versions: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class TextResult(RunResult, _OfText):
    """How a text run ended."""


@dataclass(frozen=True, kw_only=True)
class TranslationResult(TrainingResult[TranslationRow], _OfText):
    """How a translation run ended.

    Attributes:
        test_bleu_greedy: BLEU on the test set by greedy search with the network at the end, 0..100.
        test_bleu_beam: the same by beam search.
        bleu_signature: sacrebleu's, of both.
        validation_loss, validation_bleu: of the validation set, from the last row; None without rows.
    """

    ROW = TranslationRow

    test_bleu_greedy: float
    test_bleu_beam: float
    bleu_signature: str
    validation_loss: float | None
    validation_bleu: float | None

    @property
    def score(self) -> str:
        """BLEU on the test set."""
        return f"test BLEU {self.test_bleu_beam:.1f}"

    def metrics_in_words(self) -> dict[str, str]:
        """Return the metrics as the command prints them, by title."""
        bleu = f"{self.test_bleu_greedy:.2f} greedy, {self.test_bleu_beam:.2f} by beam search ({self.bleu_signature})"
        return {"test BLEU": bleu} | super().metrics_in_words()


INVERSE_SQUARE_ROOT: Literal["inverse_square_root"] = "inverse_square_root"
TranslationSchedule = Literal["inverse_square_root", "hold_then_halve", "step", "cosine", "linear", "constant"]


@dataclass(frozen=True, kw_only=True)
class AdamConfig(RunConfig[Result]):
    """A run by Adam.

    Args:
        rate: peak learning rate, before the groups' multipliers.
        clip: largest norm of the gradient of all parameters together. Off if null.
        beta1: decay of Adam's mean of gradients, 0 ≤ share < 1.
        beta2: decay of Adam's mean of squared gradients, 0 ≤ share < 1.
        epsilon: added to the root that Adam divides by.
        decoupled_decay: decay the weights apart from the gradient, by rate times λ, as AdamW does.
    """

    beta1: Fraction = 0.9
    beta2: Fraction = 0.999
    epsilon: PositiveFloat = 1e-8
    decoupled_decay: bool = True


@dataclass(frozen=True, kw_only=True)
class TextConfig(ExamplesConfig[TextResult], AdamConfig[TextResult]):
    """One training run of one transformer on one labelled text, by Adam on the cross entropy.

    Args:
        model: the network as text: transformers:KIND with settings of its configuration, as
            transformers:bert(num_hidden_layers=2); transformers:FILE.json, a configuration; transformers:FOLDER, a
            checkpoint on this machine, with its tokenizer if it has one; FILE.py:FUNCTION, called with vocabulary,
            classes and padding, whose network returns logits for tokens; or the folder of a network saved by
            normless.save, with a vocabulary.json in it where it has byte pairs of its own.
        scheme: the edits made to it before training, such as fixup or skipinit; as_written for none.
        data: the labelled text, as sentiment, sst2 or labelled_text, with its options in brackets.
        vocabulary: largest number of byte pairs, where no checkpoint brings a tokenizer.
        longest: tokens of a sentence; longer ones are cut off.
        warmup: share of the training over which the learning rate first rises linearly, 0 ≤ share < 1.
    """

    KIND: ClassVar[str] = "train-text"
    TASK: ClassVar[str] = "train-text"
    FOLDERS: ClassVar[tuple[str, ...]] = ("labelled_text",)
    GROUPS: ClassVar[Mapping[str, tuple[str, ...]]] = {"data": ("vocabulary", "longest")}

    model: Text = (
        "transformers:bert(num_hidden_layers=2, hidden_size=64, num_attention_heads=4, intermediate_size=128, "
        "hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)"
    )
    scheme: Text = "as_written"
    data: Text = "sentiment"
    vocabulary: PositiveInt = 1000
    # A start, a piece of text and an end.
    longest: Annotated[int, Ge(3)] = 128
    batch_size: PositiveInt = 32
    epochs: PositiveInt = 5
    rate: PositiveFloat = 2e-3
    schedule: Schedule = "linear"
    warmup: Fraction = 0.1
    weight_decay: NonNegativeFloat = 0.01
    clip: PositiveFloat | None = 1.0

    def conflicts(self) -> Iterator[str]:
        """See `Settings.conflicts`."""
        yield from super().conflicts()
        if self.strategy == "fsdp2" and self.micro_batch_size is not None:
            # Of an incomplete last batch they have different numbers of micro-batches.
            yield "By strategy='fsdp2' processes share every pass; leave micro_batch_size out for text."


@dataclass(frozen=True, kw_only=True)
class TranslationConfig(AdamConfig[TranslationResult]):
    """One training run of one encoder-decoder on one parallel text, by Adam on the cross entropy per token.

    Args:
        model: the network as text, normless:transformer(key=value, …) or FILE.py:FUNCTION, called with the
            vocabulary's size as vocabulary, with methods encode and decode; or the folder of a network saved by
            normless.save, with its vocabulary.json.
        scheme: the edits made to it before training, such as fixup or skipinit; layer_norm for none, the network as
            it is written.
        data: the parallel text, as grammar, multi30k or parallel_text, with its options in brackets.
        source: short name of the language to translate, as en; the text's own default if null.
        target: short name of the language to translate to; the text's own default if null.
        vocabulary: largest number of byte pairs, of both languages together.
        longest: tokens of a side; longer training pairs are left out. No limit if null.
        batch_tokens: tokens of a batch of all processes together, the longer side of its pairs with padding.
        micro_batch_tokens: tokens of a forward pass; gradients accumulate to the batch. Off if null.
        schedule: course of the learning rate; inverse_square_root falls as the root of the steps.
        warmup_steps: steps over which the learning rate first rises linearly.
        label_smoothing: share of each target spread evenly over the vocabulary, 0 ≤ share < 1.
        bleu_every: epochs between two BLEU scores of the validation set, by greedy search; the last epoch always has
            one. Only that one if null.
        beam_width: hypotheses per sentence in the beam search on the test set.
        length_penalty: strength of the beam search's length penalty, 0 for none.
        longer_by: largest number of tokens by which a translation may exceed its source.
    """

    KIND: ClassVar[str] = "train-translation"
    TASK: ClassVar[str] = "train-translation"
    FOLDERS: ClassVar[tuple[str, ...]] = ("parallel_text",)
    GROUPS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "data": ("source", "target", "vocabulary", "longest"),
        "machine": ("micro_batch_tokens",),
        "scores": ("bleu_every", "beam_width", "length_penalty", "longer_by"),
    }
    BATCH: ClassVar[str] = "batch_tokens"
    MICRO_BATCH: ClassVar[str] = "micro_batch_tokens"
    ADDED: ClassVar[Mapping[str, Any]] = {"devices": 1}

    model: Text = "normless:transformer(layers=3, width=64, heads=4, feed_forward=128, norm='pre', dropout=0.0)"
    scheme: Text = "layer_norm"
    data: Text = "grammar"
    source: Text | None = None
    target: Text | None = None
    vocabulary: PositiveInt = 800
    longest: PositiveInt | None = None
    batch_tokens: PositiveInt = 512
    micro_batch_tokens: PositiveInt | None = None
    epochs: PositiveInt = 10
    rate: PositiveFloat = 3e-3
    schedule: TranslationSchedule = INVERSE_SQUARE_ROOT
    warmup_steps: NonNegativeInt = 400
    label_smoothing: Fraction = 0.1
    beta2: Fraction = 0.98
    epsilon: PositiveFloat = 1e-9
    weight_decay: NonNegativeFloat = 0.0
    decoupled_decay: bool = False
    bleu_every: PositiveInt | None = None
    beam_width: PositiveInt = 4
    length_penalty: NonNegativeFloat = 0.6
    longer_by: NonNegativeInt = 50

    @property
    def is_open_ended(self) -> bool:
        """See `Settings.is_open_ended`."""
        return self.schedule in ("constant", INVERSE_SQUARE_ROOT)

    def conflicts(self) -> Iterator[str]:
        """See `Settings.conflicts`."""
        if self.source is not None and self.source == self.target:
            yield (
                f"Expected two languages, one to translate to the other; source and target are both {self.source!r}."
            )
        if self.longest is not None and self.longest > self.batch_tokens:
            yield (
                f"A sentence of longest={self.longest} tokens does not fit into a batch of "
                f"batch_tokens={self.batch_tokens}; allow larger batches or shorter sentences."
            )
        if self.micro_batch_tokens is not None and self.micro_batch_tokens > self.batch_tokens:
            yield (
                f"Expected micro_batch_tokens to be at most the batch_tokens={self.batch_tokens} of a batch, "
                f"got {self.micro_batch_tokens}."
            )
