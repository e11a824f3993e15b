"""What a training run for translation is: every setting that decides its result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from normless.train.settings import AdamSettings, DecayPolicy, Device, Precision

TranslationSchedule = Literal["inverse_square_root", "hold_then_halve", "step", "cosine", "linear", "constant"]


@dataclass(frozen=True)
class TranslationConfig(AdamSettings):
    """One training run of one encoder-decoder on one parallel text, by Adam on the cross entropy per token.

    Args:
        model: the network as text, normless:transformer(key=value, …) or FILE.py:FUNCTION, which is given the
            vocabulary's size as vocabulary; it has encode and decode.
        scheme: the edits made to it before training, such as fixup or skipinit; layer_norm for none, the network as
            it is written.
        data: the parallel text, as grammar, multi30k or parallel_text, with its options in brackets.
        data_root: folder that holds or receives the text; the usual place if null.
        source: short name of the language to translate, as en; the text's own default if null.
        target: short name of the language to translate to; the text's own default if null.
        vocabulary: greatest number of byte pairs, of both languages together.
        longest: tokens of a side; longer training pairs are left out. No limit if null.
        batch_tokens: tokens of a batch, the longer side of its pairs with padding.
        micro_batch_tokens: tokens of a forward pass; gradients accumulate to the batch. Off if null.
        epochs: passes over the training pairs.
        rate: learning rate at its highest, before the groups' multipliers.
        schedule: course of the rate; inverse_square_root falls as the root of the steps.
        warmup_steps: steps over which the rate first rises linearly.
        label_smoothing: share of each target spread evenly over the vocabulary, 0 ≤ share < 1.
        beta1: share of the mean gradient that Adam keeps, 0 ≤ share < 1.
        beta2: share of the mean squared gradient that Adam keeps, 0 ≤ share < 1.
        epsilon: what Adam adds to the root it divides by.
        weight_decay: L2 coefficient λ of λ/2·‖p‖², in the gradient unless it is decoupled.
        decoupled_decay: let weights decay apart from the gradient, by rate times λ, as AdamW does.
        decay_policy: which parameters decay: guidelines, all, weights, or what + joins, as in weights+last, by the
            rules of normless.decay.
        scalar_rate_scale: rate of scalar multipliers and biases, relative to that of the weights.
        clip: greatest norm of the gradient of all parameters together. Off if null.
        bleu_every: epochs between two BLEU scores of the validation set, by greedy search; it also has one after the
            last epoch. Only that one if null.
        beam_width: beginnings that the beam search on the test set keeps.
        length_penalty: strength of the beam search's length penalty, 0 for none.
        longer_by: a translation may have so many tokens more than its source.
        precision: numbers the network computes in, by the names of Lightning Fabric.
        seed: of initialization, order of sentences and dropout.
        device: the kind of processor; auto is cuda where there is one.

    Raises:
        ValueError: a setting is out of its range or does not go with another; names both and what came.
    """

    COMMAND: ClassVar[str] = "train-translation"

    model: str = "normless:transformer(layers=3, width=64, heads=4, feed_forward=128, norm='pre', dropout=0.0)"
    scheme: str = "layer_norm"
    data: str = "grammar"
    data_root: str | None = None
    source: str | None = None
    target: str | None = None
    vocabulary: int = 800
    longest: int | None = None
    batch_tokens: int = 512
    micro_batch_tokens: int | None = None
    epochs: int = 10
    rate: float = 3e-3
    schedule: TranslationSchedule = "inverse_square_root"
    warmup_steps: int = 400
    label_smoothing: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.98
    epsilon: float = 1e-9
    weight_decay: float = 0.0
    decoupled_decay: bool = False
    decay_policy: DecayPolicy = "guidelines"
    scalar_rate_scale: float = 1.0
    clip: float | None = None
    bleu_every: int | None = None
    beam_width: int = 4
    length_penalty: float = 0.6
    longer_by: int = 50
    precision: Precision = "32-true"
    seed: int = 0
    device: Device = "auto"

    def __post_init__(self) -> None:
        from normless.train.translation.rules import checked_translation_settings

        for name, value in checked_translation_settings(self).items():
            object.__setattr__(self, name, value)
