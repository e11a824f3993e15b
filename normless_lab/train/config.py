"""The configurations of the three kinds of runs: images, text classification, translation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge

from normless_lab.train.contents import contents_of
from normless_lab.train.settings import (
    DecayPolicy,
    Device,
    Fraction,
    Graph,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Precision,
    Recompute,
    Settings,
    Strategy,
    Text,
)

Schedule = Literal["hold_then_halve", "step", "cosine", "linear", "constant"]
TranslationSchedule = Literal["inverse_square_root", "hold_then_halve", "step", "cosine", "linear", "constant"]
# Schedules that do not depend on the length of the training.
OPEN_ENDED = ("constant", "inverse_square_root")


@dataclass(frozen=True, kw_only=True)
class RunConfig(Settings):
    """What all runs have: a network, its edits, data and optimization.

    Attributes:
        BATCH, MICRO_BATCH: the fields that limit the examples, or tokens, of a step and of a forward pass.

    Args:
        model: the network before its conversion.
        scheme: the edits made to it before training.
        data: the data set as text, with its options in brackets.
        data_root: folder that holds or receives the data set; the usual place if null.
        weight_decay: L2 coefficient λ of λ/2·‖p‖².
        decay_policy: which parameters decay: guidelines (weights and the γ of the roles last and other), all,
            weights, or groups and roles joined by +, as in weights+last. An unknown one lists them.
        scalar_rate_scale: learning rate of scalar multipliers and biases, relative to that of the weights.
        precision: number format of the computation, by the names of Lightning Fabric.
        device: the kind of processor; auto is cuda where available.
        schedule: course of the learning rate, a function of the share of training done.
        label_smoothing: share of each training target spread evenly over all classes, 0 ≤ share < 1.
        clip: limit of the gradients. Off if null.
        devices: number of processes, started by torchrun, that share every batch.
        recompute: compute activations of L blocks a second time in the backward pass, in about √L segments, rather
            than keep them; auto where those of a batch take more than half of the free memory. Gradients stay.
    """

    BATCH: ClassVar[str]
    MICRO_BATCH: ClassVar[str]

    model: Text
    scheme: Text
    data: Text
    data_root: Text | None = None
    epochs: PositiveInt
    rate: PositiveFloat
    weight_decay: NonNegativeFloat
    decay_policy: DecayPolicy = "guidelines"
    scalar_rate_scale: NonNegativeFloat = 1.0
    label_smoothing: Fraction = 0.0
    clip: PositiveFloat | None = None
    precision: Precision = "32-true"
    seed: NonNegativeInt = 0
    device: Device = "auto"
    devices: PositiveInt = 1
    recompute: Recompute = "never"

    def __post_init__(self) -> None:
        super().__post_init__()
        contents = contents_of(self.model, self.scheme, self.data, self.data_root)
        object.__setattr__(self, "_contents", MappingProxyType(contents))

    @property
    def contents(self) -> Mapping[str, str]:
        """See `Settings.contents`."""
        contents: Mapping[str, str] = self.__dict__["_contents"]
        return contents

    @property
    def scheme_text(self) -> str:
        """The scheme that is applied."""
        return self.scheme

    @property
    def is_open_ended(self) -> bool:
        """See `Settings.is_open_ended`."""
        return getattr(self, "schedule", None) in OPEN_ENDED and not getattr(self, "warmup", 0.0)

    @property
    def batch_limit(self) -> int:
        """Examples, or tokens, of an optimizer step of all processes together."""
        return int(getattr(self, self.BATCH))

    @property
    def micro_batch_limit(self) -> int | None:
        """Examples, or tokens, of a forward pass of one process; None for the whole batch."""
        limit: int | None = getattr(self, self.MICRO_BATCH)
        return limit


@dataclass(frozen=True, kw_only=True)
class ExamplesConfig(RunConfig):
    """A run of which a step has a number of examples.

    Args:
        batch_size: examples per optimizer step, of all processes together.
        micro_batch_size: examples per forward pass of a process; gradients accumulate to the batch. Off if null.
        strategy: what each process keeps: ddp everything, fsdp2 its part of weights, gradients and optimizer state.
    """

    BATCH: ClassVar[str] = "batch_size"
    MICRO_BATCH: ClassVar[str] = "micro_batch_size"

    batch_size: PositiveInt
    micro_batch_size: PositiveInt | None = None
    strategy: Strategy = "ddp"

    def conflicts(self) -> Iterator[str]:
        """See `Settings.conflicts`."""
        share, micro = self.batch_size // self.devices, self.micro_batch_size
        if self.batch_size % self.devices:
            yield f"A batch of batch_size={self.batch_size} cannot be shared evenly by devices={self.devices}."
        elif micro is not None and micro > share:
            yield (
                f"Expected micro_batch_size to be at most the {share} examples of a batch that each process has, "
                f"got {micro}."
            )
        if self.strategy == "fsdp2" and (self.recompute != "never" or getattr(self, "compile", False)):
            yield "strategy='fsdp2' is for networks neither compiled nor recomputed; leave one of the two out."


@dataclass(frozen=True, kw_only=True)
class AdamConfig(RunConfig):
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
class TrainConfig(ExamplesConfig):
    """One training run of one network on labelled images, by stochastic gradient descent with heavy-ball momentum.

    Args:
        model: the network as text, normless:NAME(key=value, …), torchvision:…, timm:… or FILE.py:FUNCTION, or the
            folder of a network saved by normless convert, whose weights are trained further.
        scheme: the edits made to it before training, such as skipinit or skipinit(alpha=1); for a saved network the
            one it has, or left out.
        data: the data set as text, such as digits or cifar10.
        ghost_batch_size: examples that share batch-norm statistics; needs scheme batch_norm. Off if null.
        momentum: μ of m ← μ·m + g, the sum of gradients by which a step of rate·m moves the weights, 0 ≤ μ < 1.
        warmup_epochs: epochs over which the learning rate first rises linearly; they count among the epochs.
        warm_start_epochs: first epochs, trained at warm_start_rate; they count among the epochs.
        warm_start_rate: learning rate of these, before the groups' multipliers.
        epochs_until_plateau: train anew with twice the epochs until the training loss plateaus.
        max_doublings: how often the epochs may be doubled.
        weight_decay: L2 coefficient λ of λ/2·‖p‖², in the gradient (not decoupled from the learning rate).
        clip: adaptive gradient clipping: largest norm of a gradient relative to the norm of its weights, row by row;
            not for the classifier. Off if null.
        dropout: share of features dropped before the classifier. No dropout if null.
        mixup: α of mixup's Beta(α, α), 0 for off; the data set's default if null.
        cutout: side of the square cut out, in pixels, 0 for off; the data set's default if null.
        crop: zero padding before the random crop, in pixels, 0 for off; the data set's default if null.
        flip: mirror half of the images left to right; the data set's default if null.
        compile: compile the residual blocks by torch.compile; those of one structure share their code.
        graph: auto captures a training step as a CUDA graph, on a card and in one process; never leaves it out.
        sync_batch_norm: batch norms have the statistics of the examples of all processes, on CUDA devices alone.
    """

    COMMAND: ClassVar[str] = "train"
    ADDED: ClassVar[Mapping[str, Any]] = {"sync_batch_norm": False}

    model: Text = "normless:wide_resnet(depth=16, width=4)"
    scheme: Text = "batch_norm"
    data: Text = "digits"
    batch_size: PositiveInt = 128
    ghost_batch_size: PositiveInt | None = None
    epochs: PositiveInt = 200
    rate: PositiveFloat = 0.1
    momentum: Fraction = 0.9
    schedule: Schedule = "hold_then_halve"
    warmup_epochs: NonNegativeInt = 0
    warm_start_epochs: NonNegativeInt = 0
    warm_start_rate: PositiveFloat = 1e-4
    epochs_until_plateau: bool = False
    max_doublings: NonNegativeInt = 3
    weight_decay: NonNegativeFloat = 5e-4
    dropout: Fraction | None = None
    mixup: NonNegativeFloat | None = None
    cutout: NonNegativeInt | None = None
    crop: NonNegativeInt | None = None
    flip: bool | None = None
    compile: bool = False
    graph: Graph = "auto"
    sync_batch_norm: bool = False

    @property
    def scheme_text(self) -> str:
        """The scheme that is applied: with a ghost batch size, ghost batch norm."""
        return self.scheme if self.ghost_batch_size is None else f"ghost_batch_norm(size={self.ghost_batch_size})"

    def conflicts(self) -> Iterator[str]:
        """See `Settings.conflicts`."""
        yield from super().conflicts()
        if self.ghost_batch_size is not None and self.scheme != "batch_norm":
            yield (
                f"ghost_batch_size={self.ghost_batch_size} turns scheme batch_norm into ghost batch norm, but the "
                f"scheme is {self.scheme!r}; leave one of the two out."
            )
        if self.sync_batch_norm and (self.compile or self.recompute != "never"):
            yield "sync_batch_norm is for networks neither compiled nor recomputed; leave one of the two out."
        if self.compile and self.recompute != "never":
            yield (
                "A compiled network chooses itself what it recomputes; leave out compile or "
                f"recompute={self.recompute!r}."
            )
        for name, part in (("warmup_epochs", "warm-up"), ("warm_start_epochs", "warm start")):
            if getattr(self, name) >= self.epochs:
                yield (
                    f"Expected {name} below epochs={self.epochs}, got {getattr(self, name)}: "
                    f"the {part} is part of the training."
                )
        if self.epochs_until_plateau and self.epochs < 2:
            yield (
                "epochs_until_plateau compares the training losses of epochs, so it needs epochs of 2 or more, "
                f"got {self.epochs}."
            )


@dataclass(frozen=True, kw_only=True)
class TextConfig(ExamplesConfig, AdamConfig):
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

    COMMAND: ClassVar[str] = "train-text"

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
class TranslationConfig(AdamConfig):
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

    COMMAND: ClassVar[str] = "train-translation"
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
    schedule: TranslationSchedule = "inverse_square_root"
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
