"""What a training run for text classification is: every setting that decides its result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from normless.train.config import Schedule
from normless.train.settings import AdamSettings, ClassificationSettings, DecayPolicy, Device, Precision


@dataclass(frozen=True)
class TextConfig(ClassificationSettings, AdamSettings):
    """One training run of one transformer on one labelled text, by Adam on the cross entropy.

    Args:
        model: the network as text: a kind of transformers with settings of its configuration, as
            transformers:bert(num_hidden_layers=2); transformers:FILE.json, a configuration; transformers:FOLDER, a
            checkpoint on this machine, with its tokenizer if it has one; or FILE.py:FUNCTION, which is given
            vocabulary, classes and padding and returns logits for tokens.
        scheme: the edits made to it before training, such as fixup or skipinit; as_written for none.
        data: the labelled text, as sentiment, sst2 or labelled_text, with its options in brackets.
        data_root: folder that holds the text; the usual place if null.
        vocabulary: greatest number of byte pairs, where no checkpoint brings a tokenizer.
        longest: tokens of a sentence; what comes behind is cut off.
        batch_size: sentences per optimizer step, of all processes together.
        micro_batch_size: sentences per forward pass of a process; gradients accumulate to the batch. Off if null.
        epochs: passes over the training set.
        rate: learning rate at its highest, before the groups' multipliers.
        schedule: course of the rate, a function of the share of training done.
        warmup: share of the training over which the rate first rises linearly, 0 ≤ share < 1.
        label_smoothing: share of each training target spread evenly over all classes, 0 ≤ share < 1.
        beta1: share of the mean gradient that Adam keeps, 0 ≤ share < 1.
        beta2: share of the mean squared gradient that Adam keeps, 0 ≤ share < 1.
        epsilon: what Adam adds to the root it divides by.
        weight_decay: L2 coefficient λ of λ/2·‖p‖², in the gradient unless it is decoupled.
        decoupled_decay: let weights decay apart from the gradient, by rate times λ, as AdamW does.
        decay_policy: which parameters decay: guidelines, all, weights, or what + joins, as in weights+last, by the
            rules of normless.decay.
        scalar_rate_scale: rate of scalar multipliers and biases, relative to that of the weights.
        clip: greatest norm of the gradient of all parameters together. Off if null.
        precision: numbers the network computes in, by the names of Lightning Fabric.
        seed: of initialization, order of sentences and dropout.
        device: the kind of processor; auto is cuda where there is one.
        devices: number of processes, started by torchrun, that share every batch.

    Raises:
        ValueError: a setting is out of its range or does not go with another; names both and what came.
    """

    COMMAND: ClassVar[str] = "train-text"

    model: str = (
        "transformers:bert(num_hidden_layers=2, hidden_size=64, num_attention_heads=4, intermediate_size=128, "
        "hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)"
    )
    scheme: str = "as_written"
    data: str = "sentiment"
    data_root: str | None = None
    vocabulary: int = 1000
    longest: int = 128
    batch_size: int = 32
    micro_batch_size: int | None = None
    epochs: int = 5
    rate: float = 2e-3
    schedule: Schedule = "linear"
    warmup: float = 0.1
    label_smoothing: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.01
    decoupled_decay: bool = True
    decay_policy: DecayPolicy = "guidelines"
    scalar_rate_scale: float = 1.0
    clip: float | None = 1.0
    precision: Precision = "32-true"
    seed: int = 0
    device: Device = "auto"
    devices: int = 1

    def __post_init__(self) -> None:
        from normless.train.text.rules import checked_text_settings

        for name, value in checked_text_settings(self).items():
            object.__setattr__(self, name, value)
